package console

import (
	"testing"

	"github.com/berth-dev/berth/internal/collect"
)

func TestEveryReasonOfAScrapeHasItsWords(t *testing.T) {
	none := ScrapeFailure("no such reason", "").Meaning
	for _, reason := range collect.Reasons() {
		// A fault of the picker says nothing of the page.
		if got := ScrapeFailure(reason, "").Meaning; (got == none) != (reason == "panic") {
			t.Errorf("%s: %q", reason, got)
		}
	}
}
