package engine

import (
	"fmt"
	"slices"

	"github.com/berth-dev/berth/internal/telemetry"
)

// decided notes which source a load field is read from.
func (e *evaluation) decided(f telemetry.Field, src *source, o outcome) {
	if i := slices.Index(telemetry.LoadFields[:], f); i >= 0 && o.kind == possible {
		e.loads[i] = src
	}
}

// judgeRanks compares the ranks that the load fields are read from. One that the page
// shows in one of them and not in another has not said everything yet: what it lacks
// is not zero. A sum is not known without it, and a mean or a largest is doubtful.
func (e *evaluation) judgeRanks(readings *[telemetry.NumFields]telemetry.Reading) {
	if len(e.profile.labels.ranks) == 0 {
		return
	}
	var shown [len(telemetry.LoadFields)]int
	e.ranks = e.ranks[:0]
	for i, src := range e.loads {
		if src == nil {
			continue
		}
		begin := len(e.ranks)
		list, _, _ := e.chosen(&src.series)
		for _, s := range list {
			if s.ranked {
				e.ranks = append(e.ranks, s.index)
			}
		}
		own := e.ranks[begin:]
		slices.Sort(own)
		own = slices.Compact(own)
		e.ranks = e.ranks[:begin+len(own)]
		shown[i] = len(own)
	}
	slices.Sort(e.ranks)
	all := len(slices.Compact(e.ranks))
	for i, src := range e.loads {
		if shown[i] == 0 || shown[i] == all {
			continue
		}
		f := telemetry.LoadFields[i]
		r := &readings[f]
		words := fmt.Sprintf("%s shows %d of %d ranks that are on the page", e.profile.families[src.family].name, shown[i], all)
		if src.combine == sum {
			*r = e.without(f, telemetry.Supported, e.from(src.detail.Source), words)
		} else {
			e.distrust(r, doubtful, words)
		}
	}
}
