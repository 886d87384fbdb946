package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/console"
)

// defaultServer is where berth-epp's admin listener is unless told otherwise.
const defaultServer = "http://127.0.0.1:9091"

// maxReport bounds one report: a replica list of a large pool takes some MiB.
const maxReport = 256 << 20

// reportLimit is how long one report may take.
const reportLimit = 10 * time.Second

// reports reads the documents of a picker's admin listener.
type reports struct {
	server string
	client *http.Client
}

func (r *reports) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.server, "server", defaultServer, "`URL` of the picker's admin listener")
	r.client = &http.Client{Timeout: reportLimit}
}

// get reads one document into doc. One that is not of the version and kind that the
// path has on a picker is refused: other servers answer with JSON too.
func (r *reports) get(ctx context.Context, path string, doc any) error {
	base, err := url.Parse(r.server)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return usageError{fmt.Errorf("--server: %q: must be a URL such as %s", r.server, defaultServer)}
	}
	from := strings.TrimSuffix(base.Redacted(), "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(r.server, "/")+path, http.NoBody)
	if err != nil {
		return usageError{fmt.Errorf("--server: %q: must be a URL such as %s", r.server, defaultServer)}
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return unanswered(ctx, from, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReport+1))
	switch {
	case err != nil:
		return unanswered(ctx, from, err)
	case len(body) > maxReport:
		return usageError{fmt.Errorf("%s%s: the report has more than %d bytes", from, path, maxReport)}
	case resp.StatusCode != http.StatusOK:
		var failure struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(body, &failure) != nil || failure.Error == "" {
			failure.Error = strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", http.StatusText(resp.StatusCode))) + "; this is not a picker's admin listener"
		}
		return usageError{fmt.Errorf("%s%s: %s", from, path, console.Line(failure.Error))}
	}
	return decodeReport(from+path, kindAt(path), body, doc)
}

// kindAt is the kind of the document that a picker has at a path.
func kindAt(path string) string {
	path, _, _ = strings.Cut(path, "?")
	switch path {
	case replicasPath:
		return "ReplicaList"
	case decisionsPath:
		return "DecisionList"
	default:
		return "Decision"
	}
}

// The reports that are read.
const (
	replicasPath  = "/v1alpha1/replicas"
	decisionsPath = "/v1alpha1/decisions"
)

func decodeReport(from, kind string, body []byte, doc any) error {
	var head struct{ Version, Kind string }
	switch err := json.Unmarshal(body, &head); {
	case err != nil:
		return usageError{fmt.Errorf("%s: not a report of a picker: it is no JSON object", from)}
	case head.Kind != kind || head.Version != v1alpha1.Version:
		return usageError{fmt.Errorf("%s: not a report of a picker: version %s, kind %s: must be %s, %s",
			from, stated(head.Version), stated(head.Kind), v1alpha1.Version, kind)}
	}
	if err := json.Unmarshal(body, doc); err != nil {
		member := "a member"
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
			member = console.Line(wrong.Field)
		}
		return usageError{fmt.Errorf("%s: not a report of a picker: %s is of another type than in a %s", from, member, kind)}
	}
	return nil
}

// stated is a member of a foreign document in a message.
func stated(text string) string {
	if text == "" {
		return "none"
	}
	return fmt.Sprintf("%.64q", text)
}

// unanswered says why a picker gave no whole answer.
func unanswered(ctx context.Context, from string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return usageError{fmt.Errorf("--server %s: is the picker running there? %s", from, silenceOf(err))}
}

// silenceOf says in words why an exchange over HTTP came to nothing.
func silenceOf(err error) string {
	var (
		timeout net.Error
		name    *net.DNSError
		op      *net.OpError
	)
	switch {
	case errors.As(err, &name):
		return fmt.Sprintf("the name %q is not known", name.Name)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no whole answer within %s", reportLimit)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at the address and port"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed before the end of the answer"
	case errors.As(err, &op) && op.Op == "dial":
		return "there is no way to the address"
	default:
		return "what answers does not speak HTTP, or no TLS that is trusted"
	}
}
