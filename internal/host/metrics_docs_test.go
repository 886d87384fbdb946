package host

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

func metricsDoc(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// tokensOf are the first cells of the table of a section.
func tokensOf(t *testing.T, doc, section string) (tokens []string) {
	t.Helper()
	_, text, found := strings.Cut(doc, "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/metrics.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(text, -1) {
		tokens = append(tokens, row[1])
	}
	return tokens
}

func TestEveryResultOfAScrapeIsDocumented(t *testing.T) {
	want := append(collect.Reasons(), "ok", "none", "status_NNN", "status_other")
	got := tokensOf(t, metricsDoc(t), "Results of scrapes")
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("documented are %q\nthere are %q", got, want)
	}
}

func TestEveryCauseIsDocumented(t *testing.T) {
	var want []string
	for c := noCause + 1; c < numCauses; c++ {
		want = append(want, c.String())
	}
	if got := tokensOf(t, metricsDoc(t), "Why readings are not fresh"); !slices.Equal(got, want) {
		t.Errorf("documented are %q\nthere are %q", got, want)
	}
}

// An alert whose metric, label or value there is not never fires.
func TestTheAlertsAreAboutWhatThereIs(t *testing.T) {
	doc := metricsDoc(t)
	_, alerts, _ := strings.Cut(doc, "\n## Alerts\n")
	var fields, causes, results, engines []string
	for f := range telemetry.NumFields {
		fields = append(fields, f.String())
	}
	for c := noCause + 1; c < numCauses; c++ {
		causes = append(causes, c.String())
	}
	results = append(collect.Reasons(), "ok", "none", "failed")
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range set.Profiles() {
		engines = append(engines, p.Name())
	}
	allowed := map[string][]string{"field": fields, "cause": causes, "result": results, "engine": engines}
	metrics := regexp.MustCompile(`berth_[a-z_]+`).FindAllString(alerts, -1)
	if len(metrics) < 6 {
		t.Fatalf("the alerts name %q", metrics)
	}
	for _, name := range metrics {
		if !strings.Contains(doc, "\n| `"+name+"` |") {
			t.Errorf("an alert is about %s, which there is not", name)
		}
	}
	matchers := regexp.MustCompile(`([a-z]+)(?:=~|!~|!=|=)"([^"]*)"`).FindAllStringSubmatch(alerts, -1)
	for _, m := range matchers {
		for value := range strings.SplitSeq(m[2], "|") {
			if !slices.Contains(allowed[m[1]], value) {
				t.Errorf("an alert asks for %s %q, which there is not", m[1], value)
			}
		}
	}
}
