package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/berth-dev/berth/test/finding"
)

func TestARunThatDoesNotBeginSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		exit int
		says string
	}{
		{"an unknown flag", []string{"-x"}, finding.ExitUsage, "-x"},
		{"help", []string{"-h"}, 0, "-profile"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(t.Context(), tc.args, &stdout, &stderr); got != tc.exit {
				t.Errorf("exit code %d, want %d", got, tc.exit)
			}
			if !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("it says %q, want %s in it", stderr.String(), tc.says)
			}
			if stdout.Len() != 0 {
				t.Errorf("standard output has %q, want nothing", stdout.String())
			}
		})
	}
}

func TestTheListHasWhatRunChooses(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if got := run(t.Context(), []string{"-list", "-run", "^(decision|record)$"}, &stdout, &stderr); got != 0 {
		t.Fatalf("exit code %d: %s", got, &stderr)
	}
	var names []string
	for line := range strings.Lines(stdout.String()) {
		names = append(names, strings.Fields(line)[0])
	}
	if got := strings.Join(names, " "); got != "decision record" {
		t.Errorf("the list has %q, want decision and record", got)
	}
}

func TestNoTwoBudgetsHaveOneName(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range budgets() {
		if seen[b.name] || b.name == "" || strings.ContainsAny(b.name, " /") {
			t.Errorf("budget name %q: must be unique, without spaces and slashes", b.name)
		}
		seen[b.name] = true
	}
}

func TestTheMedianIsTheMiddleValue(t *testing.T) {
	values := []float64{9, 1, 5, 3, 7}
	if got := median(values); got != 5 {
		t.Errorf("median is %v, want 5", got)
	}
	if values[0] != 9 {
		t.Error("the values were sorted in place")
	}
}

func TestChatBodiesAreValidAndOfTheSizeAskedFor(t *testing.T) {
	for _, codeOnly := range []bool{false, true} {
		body := chatBody(64_000, codeOnly)
		if !json.Valid(body) {
			t.Errorf("code only %v: not valid JSON", codeOnly)
		}
		if n := len(body); n < 64_000 || n > 70_000 {
			t.Errorf("code only %v: %d bytes, want a little more than 64000", codeOnly, n)
		}
		if !bytes.Equal(body, chatBody(64_000, codeOnly)) {
			t.Errorf("code only %v: another body the second time", codeOnly)
		}
	}
	if body := shortBody(); len(body) != bodyBytes || !json.Valid(body) {
		t.Errorf("the short body has %d bytes, want %d of valid JSON", len(body), bodyBytes)
	}
}

// lossyServer is an empty server that loses a byte of every response body.
type lossyServer struct{ emptyServer }

func (lossyServer) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	return emptyServer{}.Process(lossyStream{stream})
}

type lossyStream struct {
	extprocv3.ExternalProcessor_ProcessServer
}

func (s lossyStream) Send(m *extprocv3.ProcessingResponse) error {
	if part := m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse(); part != nil {
		part.Body = part.Body[1:]
	}
	return s.ExternalProcessor_ProcessServer.Send(m)
}

func TestTheGatewayChecksWhatItIsAnswered(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server extprocv3.ExternalProcessorServer
		wants  string
	}{
		{"the empty server answers all", emptyServer{}, ""},
		{"a byte of the response is lost", lossyServer{}, "1024 bytes comes back with 1023"},
		{"no answer at all", extprocv3.UnimplementedExternalProcessorServer{}, "Unimplemented"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			extprocv3.RegisterExternalProcessorServer(server, tc.server)
			served := make(chan error, 1)
			go func() { served <- server.Serve(l) }()
			defer func() {
				server.Stop()
				if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
					t.Error(err)
				}
			}()
			g, err := dial(l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer g.close()
			err = g.run(t.Context(), 20, 4)
			switch {
			case tc.wants == "" && err != nil:
				t.Errorf("run: %v", err)
			case tc.wants != "" && (err == nil || !strings.Contains(err.Error(), tc.wants)):
				t.Errorf("run: %v, want an error with %q", err, tc.wants)
			}
		})
	}
}
