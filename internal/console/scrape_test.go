package console

import (
	"testing"

	"github.com/berth-dev/berth/internal/engine"
)

// TestWhatAnEngineNeedsIsWhatItsProfileSays: nothing about engines is written down a
// second time here.
func TestWhatAnEngineNeedsIsWhatItsProfileSays(t *testing.T) {
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range set.Profiles() {
		said := p.Metrics().Needs
		if said == "" || Needs(p.Name()) != said {
			t.Errorf("%s needs %q, its profile says %q", p.Name(), Needs(p.Name()), said)
		}
		if p.Exporter() {
			continue
		}
		if got := ScrapeFailure("status_404", p.Name()).Hint; got != said {
			t.Errorf("a page of %s that is not there: %q, want %q", p.Name(), got, said)
		}
	}
	if got := Needs("mine"); got != "" {
		t.Errorf("an engine that is not built in needs %q", got)
	}
}
