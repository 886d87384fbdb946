package console

import (
	"strings"

	"github.com/berth-dev/berth/internal/engine"
)

// mostProfiles is how many profiles a hint speaks of.
const mostProfiles = 4

// FailureOf tells what a reason of a scrape means where the profiles of set are known;
// nil are those that are built in. p is that of the engine, nil if it is not known
// which one it is: then the hint is about the profiles of one's own, if there are any.
func FailureOf(reason string, set *engine.Set, p *engine.Profile) Failure {
	own := ownOf(set)
	switch {
	case failures[reason].more != engineNeeds, p == nil && len(own) == 0:
		name := ""
		if p != nil {
			name = p.Name()
		}
		return ScrapeFailure(reason, name)
	case p != nil:
		own = []*engine.Profile{p}
	}
	f := failures[reason].Failure
	hints := []string{f.Hint}
	for _, o := range own[:min(len(own), mostProfiles)] {
		if p == nil {
			hints = append(hints, o.Name()+" has its page at "+PageAddress(o.Metrics())+" and is recognised by "+o.Recognition()+".")
		}
		hints = append(hints, o.Metrics().Needs)
	}
	f.Hint = strings.TrimSpace(strings.Join(strings.Fields(strings.Join(hints, " ")), " "))
	return f
}

// ownOf are the engines' profiles that are not built in.
func ownOf(set *engine.Set) (own []*engine.Profile) {
	if set == nil {
		return nil
	}
	for _, p := range set.Engines() {
		if OriginOf(p) != BuiltIn {
			own = append(own, p)
		}
	}
	return own
}
