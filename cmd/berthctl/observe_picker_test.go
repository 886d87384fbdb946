package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// knownReplica is what a picker knows of a vLLM, with the power of an exporter.
func knownReplica(t *testing.T) v1alpha1.Observation {
	t.Helper()
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	now := telemetry.At(time.Now())
	s, err := set.Profile("vllm").Read([]byte(pageText(t, "vllm.prom")), engine.Input{At: now})
	if err != nil {
		t.Fatal(err)
	}
	o := s.Observation(v1alpha1.Replica{Pool: "local/demo", Name: "r1", Address: "127.0.0.1:8000"}, now)
	o.Fields["power"] = v1alpha1.Reading{Support: v1alpha1.Supported, State: v1alpha1.Fresh, Value: 512.5, Unit: "W", Quality: 1,
		Source: &v1alpha1.Source{Path: "/metrics", Metric: "DCGM_FI_DEV_POWER_USAGE", Rule: "sum over the series"}, Reasons: []string{}}
	return o
}

// reporting is a picker that reports these replicas.
func reporting(t *testing.T, replicas ...v1alpha1.Observation) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1alpha1/replicas" {
			http.NotFound(w, r)
			return
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"version": v1alpha1.Version, "kind": "ReplicaList", "items": replicas}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestAReplicaOfAPickerIsShownAsThePickerKnowsIt(t *testing.T) {
	known := knownReplica(t)
	other := knownReplica(t)
	other.Replica.Name = "r2"
	url := reporting(t, other, known)
	out, stderr, err := execute("observe", "r1", "--server", url)
	if err != nil || stderr != "" {
		t.Fatalf("%v, %q on stderr", err, stderr)
	}
	shows(t, "observe r1", out,
		`replica  127\.0\.0\.1:8000`, `engine   vllm, read by the profile vllm@sha256:[0-9a-f]{12}$`,
		`queueDepth +fresh +12 requests +1 +\S+ +(in )?\S+( ago)? +/metrics vllm:num_requests_waiting`,
		`power +fresh +512\.5 W +1 +- +- +/metrics DCGM_FI_DEV_POWER_USAGE`,
	)
	if wide, _, err := execute("observe", "r1", "--server", url, "--wide"); err != nil || !strings.Contains(wide, "sum over the series") || strings.Contains(out, "sum over the series") {
		t.Errorf("%v\n%s", err, wide)
	}
	text, _, err := execute("observe", "r1", "--server", url, "-o", "json")
	var got, want any
	encoded, _ := json.Marshal(known)
	if err != nil || json.Unmarshal([]byte(text), &got) != nil || json.Unmarshal(encoded, &want) != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: the document is not the picker's:\n%s", err, text)
	}
	lines, _, err := execute("observe", "r1", "--server", url, "-o", "json", "--watch", "--for", "1500ms")
	if n := strings.Count(lines, "\n"); err != nil || n < 1 || n != strings.Count(lines, `"kind":"Observation"`) {
		t.Errorf("watched: %v, %d lines", err, n)
	}
}

func TestTheExitCodeSaysHowThePickerSeesTheReplica(t *testing.T) {
	failing, invalid, another, unread := knownReplica(t), knownReplica(t), knownReplica(t), v1alpha1.Observation{Engine: "unknown", Order: "last"}
	failing.ScrapeError = "status_404"
	invalid.Fields["power"] = v1alpha1.Reading{State: v1alpha1.Invalid, Reasons: []string{"value -1"}}
	another.Declared = "sglang"
	for want, o := range map[string]v1alpha1.Observation{
		"r1: status_404: there is no page at the path of the metrics\n    vLLM shows its page": failing,
		"r1: invalid: power":                          invalid,
		"r1: it is vllm, not sglang as the pool says": another,
		"r1: the picker has not read it yet":          unread,
	} {
		o.Replica.Name = "r1"
		out, _, err := execute("observe", "r1", "--server", reporting(t, o))
		if exit(err) != exitFindings || !strings.HasPrefix(fmt.Sprint(err), want) || !strings.Contains(out, "queueDepth") {
			t.Errorf("%v with exit %d, want %q and the table:\n%s", err, exit(err), want, out)
		}
	}
}

func TestAReplicaThatThePickerDoesNotHaveIsUnreadableInput(t *testing.T) {
	hostile := v1alpha1.Observation{Replica: v1alpha1.Replica{Name: "a\x1b[2J"}}
	for name, tc := range map[string]struct {
		url  string
		want string
	}{
		"others":     {reporting(t, hostile, knownReplica(t)), `NAME: "r9": the picker at http://`},
		"the names":  {reporting(t, hostile, knownReplica(t)), `it has "a\x1b[2J", "r1"`},
		"none":       {reporting(t), "it has none"},
		"what to do": {reporting(t), "\n    the URL of a replica itself begins with http:// or https://"},
	} {
		_, _, err := execute("observe", "r9", "--server", tc.url)
		if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), tc.want) || strings.ContainsRune(fmt.Sprint(err), '\x1b') {
			t.Errorf("%s: %v with exit %d, want %q", name, err, exit(err), tc.want)
		}
	}
}

// Other servers answer with JSON too, and must not be taken for a picker.
func TestOnlyThePickersOwnDocumentsAreReports(t *testing.T) {
	for answer, want := range map[string]string{
		`{"path":"/v1alpha1/replicas"}`:                                       "not a report of a picker: version none, kind none: must be berth.dev/v1alpha1, ",
		`{"version":"berth.dev/v1alpha1","kind":"Top"}`:                       `version "berth.dev/v1alpha1", kind "Top": must be`,
		`{"version":"berth.dev/v2","kind":"ReplicaList","items":[]}`:          `version "berth.dev/v2"`,
		`{"version":"berth.dev/v2\u001b[2J","kind":"ReplicaList","items":[]}`: `version "berth.dev/v2\x1b[2J"`,
		`{"version":7,"kind":"ReplicaList"}`:                                  "not a report of a picker: it is no JSON object",
		`[]`:                                                                  "not a report of a picker: it is no JSON object",
		`{`:                                                                   "not a report of a picker: it is no JSON object",
		``:                                                                    "not a report of a picker: it is no JSON object",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		defer s.Close()
		for _, args := range [][]string{{"top", "--once"}, {"observe", "r1"}, {"explain", "latest"}, {"explain", "d1"}} {
			_, _, err := execute(append(args, "--server", s.URL)...)
			if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), want) || strings.ContainsRune(fmt.Sprint(err), '\x1b') {
				t.Errorf("%q of %s: %v with exit %d, want %q", args, answer, err, exit(err), want)
			}
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"version":"berth.dev/v1alpha1","kind":"ReplicaList","items":{}}`)
	}))
	defer s.Close()
	if _, _, err := execute("top", "--once", "--server", s.URL); exit(err) != exitUsage || !strings.HasSuffix(fmt.Sprint(err), "not a report of a picker: items is of another type than in a ReplicaList") {
		t.Errorf("%v with exit %d", err, exit(err))
	}
}

// No message has the words of a library where this tool knows better ones.
func TestAPickerThatDoesNotAnswerIsToldInPlainWords(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	closing := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer closing.Close()
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":"not now\u001b[2J"}`)
	}))
	defer failing.Close()
	for url, want := range map[string]string{
		gone.URL:    "--server " + gone.URL + ": is the picker running there? nothing listens at the address and port",
		closing.URL: "is the picker running there? the connection was closed before the end of the answer",
		strings.Replace(closing.URL, "http://", "https://", 1): "is the picker running there? what answers does not speak HTTP, or no TLS that is trusted",
		failing.URL:             "not now",
		"http://picker.invalid": `is the picker running there? the name "picker.invalid" is not known`,
		"ftp://127.0.0.1":       `--server: "ftp://127.0.0.1": must be a URL such as http://127.0.0.1:9091`,
	} {
		_, _, err := execute("top", "--once", "--server", url)
		text := fmt.Sprint(err)
		if exit(err) != exitUsage || !strings.Contains(text, want) {
			t.Errorf("%s: %v with exit %d, want %q", url, err, exit(err), want)
		}
		for _, word := range []string{"dial tcp", "Get \"", "EOF", "connection refused", "lookup"} {
			if strings.Contains(text, word) {
				t.Errorf("%s: %s has %q", url, text, word)
			}
		}
		if strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("%s: %q", url, text)
		}
	}
}

func TestAFlagSaysWhatItsValueMayBe(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"demo", "--seed", "x"}, `--seed: "x": must be a whole number from 0 to 18446744073709551615`},
		{[]string{"demo", "--seed", "-1"}, `--seed: "-1": must be a whole number`},
		{[]string{"demo", "--keep=x\x1b[2J"}, `--keep: "x\x1b[2J": must be true or false`},
		{[]string{"top", "--interval", "20"}, `--interval: "20": must be a time with its unit, such as 500ms, 20s or 5m`},
		{[]string{"top", "--interval"}, "--interval"},
		{[]string{"top", "--loud"}, "--loud"},
	} {
		_, _, err := execute(tc.args...)
		text := fmt.Sprint(err)
		if exit(err) != exitUsage || !strings.Contains(text, tc.want) || strings.Contains(text, "strconv") || strings.Contains(text, "time:") {
			t.Errorf("%q: %v with exit %d, want %q", tc.args, err, exit(err), tc.want)
		}
	}
}

func TestNoErrorActsOnTheTerminal(t *testing.T) {
	var out strings.Builder
	report(&out, errors.New("one\x1b[2J\ntwo\u202e"))
	if got, want := out.String(), "berthctl: one\ufffd[2J\nberthctl: two\ufffd\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
