package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
)

func TestTheOtherPagesOfAProfileAreRead(t *testing.T) {
	dir := files(t, map[string]string{
		"models.json":  `{"object":"list","data":[{"id":"llama","object":"model","owned_by":"vllm","max_model_len":4096}]}`,
		"version.json": `{"version":"0.32.0"}`,
		"broken.json":  "{\n\"version\": 0.32.0\n}",
		"html.json":    "<html>",
		"two.prom": "vllm:num_requests_waiting{engine=\"0\",model_name=\"llama\"} 1\n" +
			"vllm:num_requests_waiting{engine=\"0\",model_name=\"b\"} 2\n",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	doc, err := tested(t, savedPage("vllm.prom"), "--page", "/v1/models="+at("models.json"), "--page", "/version="+at("version.json"), "--page", "/health=200")
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]any{"contextLimit": 4096.0, "engineVersion": "0.32.0", "health": true, "queueDepth": 12.0} {
		if r := doc.Fields[field]; r.State != v1alpha1.Fresh || r.Value != want {
			t.Errorf("%s is %+v, want %v", field, r, want)
		}
	}
	if r := doc.Fields["servedModels"]; !slices.Equal(r.Value.([]string), []string{"llama"}) || r.Source.Path != "/v1/models" {
		t.Errorf("servedModels is %+v", r)
	}
	if doc.Replica.EngineVersion != "0.32.0" {
		t.Errorf("the replica is %+v", doc.Replica)
	}
	// The names that the replica serves choose among the models of a metrics page.
	if doc, err := tested(t, at("two.prom"), "--page", "/v1/models="+at("models.json")); err != nil || doc.Fields["queueDepth"].Value != 1.0 {
		t.Errorf("%v, %+v", err, doc.Fields["queueDepth"])
	}
	if doc, err := tested(t, at("two.prom"), "--page", "/v1/models="+at("models.json"), "--models", "b"); err != nil || doc.Fields["queueDepth"].Value != 2.0 {
		t.Errorf("%v, %+v", err, doc.Fields["queueDepth"])
	}
	for status, want := range map[string]any{"200": true, "503": false} {
		if doc, err := tested(t, savedPage("vllm.prom"), "--page", "/health="+status); err != nil || doc.Fields["health"].Value != want {
			t.Errorf("/health=%s: %v, %+v", status, err, doc.Fields["health"])
		}
	}
	if doc, err := tested(t, savedPage("vllm.prom"), "--page", "/version=404"); err != nil || doc.Fields["engineVersion"].Support != v1alpha1.Unsupported {
		t.Errorf("a page that is not there: %v, %+v", err, doc.Fields["engineVersion"])
	}
	for arg, want := range map[string]string{
		"/version=" + at("broken.json"): "broken.json: read as /version of vllm: line 2: it is not JSON",
		"/version=" + at("html.json"):   "html.json: read as /version of vllm: want a JSON object",
		"/version=500":                  "500: read as /version of vllm: status 500",
		"/health=500":                   "500: read as /health of vllm: status 500 says neither yes nor no",
	} {
		if doc, err := tested(t, savedPage("vllm.prom"), "--page", arg); doc != nil || exit(err) != exitFindings || !strings.HasSuffix(fmt.Sprint(err), want) {
			t.Errorf("%s: %v with exit %d, want %q", arg, err, exit(err), want)
		}
	}
}

// What is read of saved pages lives as long as if they had been scraped so far apart.
func TestReadingsOfSavedPagesLiveByTheTimeBetweenThem(t *testing.T) {
	for every, want := range map[string]time.Duration{"15s": 46 * time.Second, "5s": 16 * time.Second} {
		doc, err := tested(t, savedPage("vllm.prom"), "--every", every, "--page", "/health=200")
		if err != nil {
			t.Fatal(err)
		}
		r := doc.Fields["queueDepth"]
		if got := r.ExpiresAt.Sub(*r.ObservedAt); got != want {
			t.Errorf("%s: %s, want three times as long and a second", every, got)
		}
		if r := doc.Fields["health"]; r.ExpiresAt.Sub(*r.ObservedAt) < want {
			t.Errorf("%s: health lives %s", every, r.ExpiresAt.Sub(*r.ObservedAt))
		}
	}
}

// A step of a build may ask for the fields that a page must give.
func TestRequiredFieldsMustBeFresh(t *testing.T) {
	dir := files(t, map[string]string{"own.yaml": ownProfile, "1.prom": "own_waitin 1\nown_tokens_total 1000\n", "2.prom": "own_waiting 1\n"})
	first, second := filepath.Join(dir, "1.prom"), filepath.Join(dir, "2.prom")
	for _, tc := range []struct {
		page, fields string
		want         string
	}{
		{first, "", ""},
		{second, "queueDepth", ""},
		{first, "queueDepth", first + ": queueDepth is missing, and --require wants it fresh: own_waiting is not on the page"},
		{second, "queueDepth,generationThroughput,power", second + ": power is missing, and --require wants it fresh: "},
	} {
		args := []string{tc.page, "--profiles", dir}
		if tc.fields != "" {
			args = append(args, "--require", tc.fields)
		}
		doc, err := tested(t, args...)
		if doc == nil || (err == nil) != (tc.want == "") || err != nil && (exit(err) != exitFindings || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s of %s: %v with exit %d, want %q", tc.fields, tc.page, err, exit(err), tc.want)
		}
	}
}

func TestANameThatIsNearlyOneOfThePageIsNoted(t *testing.T) {
	dir := files(t, map[string]string{"own.yaml": ownProfile})
	for page, want := range map[string]string{
		"own_waiting 1\nown_waitings 1\nown_tokens_total 1\n":           "",
		"own_waitin 1\nown_tokens_total 1\n":                            "queueDepth: own_waiting is not on the page, which has own_waitin",
		"# TYPE own_Waiting gauge\nown_Waiting 1\nown_tokens_total 1\n": "queueDepth: own_waiting is not on the page, which has own_Waiting",
		"own_waiting_total 1\nown_tokens_total 1\n":                     "queueDepth: own_waiting is not on the page, which has own_waiting_total",
		"own_something_else 1\nown_tokens_total 1\n":                    "",
		// The other one is what another field is read from.
		"own_tokens_total 1\n": "",
	} {
		path := filepath.Join(files(t, map[string]string{"page.prom": page}), "page.prom")
		_, stderr, err := execute("profiles", "test", path, "--profiles", dir)
		if want != "" {
			want = "berthctl: " + path + ": " + want + "\n"
		}
		if err != nil || stderr != want {
			t.Errorf("%q: %v, and %q on stderr, want %q", page, err, stderr, want)
		}
	}
}

// No page of an engine that is known looks as if its profile were misspelt.
func TestNoPageOfAKnownEngineIsTakenForAMistake(t *testing.T) {
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(savedPage("*.prom"))
	if err != nil || len(pages) < 5 {
		t.Fatalf("%v, %d pages", err, len(pages))
	}
	for _, path := range pages {
		page := []byte(pageText(t, filepath.Base(path)))
		if _, err := set.Detect(page); err != nil {
			continue
		}
		if _, notes, err := (&trial{}).read(set, []string{path}, [][]byte{page}); err == nil && len(notes) > 0 {
			t.Errorf("%s: %q", path, notes)
		}
	}
}

func TestTheFamiliesOfAPageAreNamedOnce(t *testing.T) {
	page := "# HELP b_seconds words\n# TYPE b_seconds histogram\nb_seconds_bucket{le=\"1\"} 1\nb_seconds_sum 1\nb_seconds_count 1\n" +
		"a:x{l=\"y\"} 1\na:x{l=\"z\"} 2\nlone_sum 3\n# EOF\n"
	if got, want := familiesOf(namesOn([]byte(page))), []string{"a:x", "b_seconds", "lone_sum"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
