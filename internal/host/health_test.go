package host

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestX24_WhoWatchesHealthDoesNotKeepThePicker(t *testing.T) {
	r := run(t, quiet+"limits: {drain: 10m}\n", poolDocument("19101"))
	for _, addr := range []net.Addr{r.ExtProcAddr(), r.HealthAddr()} {
		conn := dial(t, addr)
		defer conn.Close()
		watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if first, err := watch.Recv(); err != nil || first.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Fatalf("%s: first told %v, %v; want SERVING", addr, first, err)
		}
		defer func() {
			last := healthv1.HealthCheckResponse_UNKNOWN
			for {
				told, err := watch.Recv()
				if err != nil {
					if last != healthv1.HealthCheckResponse_NOT_SERVING || status.Code(err) != codes.Unavailable || errors.Is(err, io.EOF) {
						t.Errorf("%s: last told %s, then %v; want NOT_SERVING, then Unavailable", addr, last, err)
					}
					return
				}
				last = told.GetStatus()
			}
		}()
	}
	start := time.Now()
	r.stop()
	if took := time.Since(start); took > patience {
		t.Errorf("an idle picker took %s to stop", took)
	}
}

func TestWatchesOfHealthAreBounded(t *testing.T) {
	s := newHealthServer()
	defer s.Shutdown()
	s.watches.Store(maxWatches)
	if err := s.Watch(&healthv1.HealthCheckRequest{}, nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more ended with %v, want ResourceExhausted", err)
	}
	if n := s.watches.Load(); n != maxWatches {
		t.Errorf("%d watches are counted, want %d", n, maxWatches)
	}
}

func TestAPickerThatDrainsIsNotReady(t *testing.T) {
	r := run(t, quiet+"limits: {drain: 10m}\n", poolDocument("19101"))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	g := r.ask(conn, question{})
	mustPlace(t, g)
	if code, body := r.get(r.MetricsAddr(), "/readyz"); code != http.StatusOK {
		t.Fatalf("before: %d, %s", code, body)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	eventually(t, "/readyz says that the picker ends", func() bool {
		code, body := r.get(r.MetricsAddr(), "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "shutting down")
	})
	g.tell("200", "application/json", "{}")
	<-stopped
}
