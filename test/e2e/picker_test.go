package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/enginesim"
)

// TestX13_AKilledPickerFailsClosed kills a real berth-epp at every phase of a
// request. What the client gets is the gateway's doing; that no replica serves a
// request without a pick is what the whole is for.
func TestX13_AKilledPickerFailsClosed(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{}), binary: buildPicker(t)})
	hang := func(on bool) {
		for _, e := range f.engines {
			if err := e.SetFaults(enginesim.Faults{Hang: on}); err != nil {
				t.Fatal(err)
			}
		}
	}
	works := func() {
		t.Helper()
		for version, c := range f.clients() {
			if a := f.post(c, asks(1)); a.status != http.StatusOK || a.header.Get("X-Berth-Acted") != "confirmed" {
				t.Errorf("%s POST: status %d, acted %q; want 200 and confirmed", version, a.status, a.header.Get("X-Berth-Acted"))
			}
			if a := f.models(c); a.status != http.StatusOK || a.engine() == "" {
				t.Errorf("%s GET: status %d from %q, want 200 from an engine", version, a.status, a.engine())
			}
		}
	}
	// failsClosed: without a picker everything is a 500 of the gateway's own.
	failsClosed := func() {
		t.Helper()
		before := f.total()
		for version, c := range f.clients() {
			for _, req := range []*http.Request{
				f.request(t.Context(), http.MethodPost, completions, asks(1)),
				f.request(t.Context(), http.MethodPost, completions, streams(1)),
				f.request(t.Context(), http.MethodGet, "/v1/models", ""),
				f.request(t.Context(), http.MethodHead, "/v1/files", ""),
			} {
				req.Header.Set("X-Gateway-Destination-Endpoint", f.engines[0].Addr())
				if a := f.do(c, req); a.status != http.StatusInternalServerError || a.engine() != "" {
					t.Errorf("%s %s: status %d from %q, want 500 from nobody", version, req.Method, a.status, a.engine())
				}
			}
		}
		if n := f.total() - before; n != 0 {
			t.Errorf("%d requests reached an engine without a pick", n)
		}
	}
	restart := func() {
		t.Helper()
		f.startProcess(f.extproc)
		works()
	}

	works()

	t.Run("before the request", func(t *testing.T) {
		f.epp.kill()
		failsClosed()
		restart()
	})

	t.Run("during the upload", func(t *testing.T) {
		before := f.total()
		for version, c := range f.clients() {
			body, rest := io.Pipe()
			go func() { _, _ = io.WriteString(rest, `{"model":"sim-model","pro`) }()
			req := f.request(t.Context(), http.MethodPost, completions, "")
			req.Header.Set("Content-Type", "application/json")
			req.Body, req.ContentLength = body, -1
			got := make(chan answer, 1)
			go func() {
				a, err := try(c, req)
				if err != nil {
					a.body = err.Error()
				}
				got <- a
			}()
			eventually(t, "the picker has the request", func() bool { return f.envoy.asking() == 1 })
			f.epp.kill()
			if a := <-got; a.status != http.StatusInternalServerError {
				t.Errorf("%s: status %d, %q; want 500", version, a.status, a.body)
			}
			_ = rest.Close()
			if n := f.total() - before; n != 0 {
				t.Errorf("%s: %d requests reached an engine without a pick", version, n)
			}
			restart()
			before = f.total()
		}
	})

	t.Run("while the request waits for its replica", func(t *testing.T) {
		for version, c := range f.clients() {
			hang(true)
			before := f.total()
			got := make(chan answer, 1)
			req := f.request(t.Context(), http.MethodPost, completions, asks(1))
			go func() {
				a, err := try(c, req)
				if err != nil {
					a.body = err.Error()
				}
				got <- a
			}()
			eventually(t, "an engine has the request", func() bool { return f.total() == before+1 })
			f.epp.kill()
			if a := <-got; a.status != http.StatusInternalServerError || a.engine() != "" {
				t.Errorf("%s: status %d from %q, %q; want 500 from the gateway", version, a.status, a.engine(), a.body)
			}
			if n := f.total(); n != before+1 {
				t.Errorf("%s: the request reached engines %d times, want once", version, n-before)
			}
			hang(false)
			eventually(t, "the engines have let go", func() bool { return f.holds(0, 0, 0) && f.holds(1, 0, 0) })
			restart()
		}
	})

	t.Run("in mid-stream", func(t *testing.T) {
		for version, c := range f.clients() {
			before := f.total()
			s := f.open(c, streams(8000), "")
			if _, err := s.event(); err != nil {
				t.Fatal(err)
			}
			f.epp.kill()
			rest, err := s.rest()
			if err == nil || strings.Contains(rest, "[DONE]") {
				t.Errorf("%s: the client saw a stream that ends well", version)
			}
			if n := f.total(); n != before+1 {
				t.Errorf("%s: the request reached engines %d times, want once", version, n-before)
			}
			eventually(t, "the engines have let go", func() bool { return f.holds(0, 0, 0) && f.holds(1, 0, 0) })
			failsClosed()
			restart()
		}
	})
}
