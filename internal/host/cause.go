package host

import (
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

// cause is why a reading is not fresh, in one word of a fixed set. What a reading
// itself says, its reasons, is text for people and never becomes a label.
type cause uint8

const (
	// noCause is that of a fresh reading.
	noCause cause = iota
	// causeNotRead: the page with it has not been asked for, or never will be.
	causeNotRead
	// causePageUnread: the page with it could not be read when it was last asked for.
	causePageUnread
	// causeExpired: it was not read anew in time, though the metrics page can be read.
	causeExpired
	// causeAbsent: the page was read and does not say it.
	causeAbsent
	// causeNoData: the page has it, and there is no value yet, or none lately.
	causeNoData
	// causeInvalid: what the page says cannot be true.
	causeInvalid
	// causeFrozen: the page says that the engine works, and stands still.
	causeFrozen
	// causeStandstill: the page stands still while requests of this picker are there.
	causeStandstill
	// causeEngineTime: by the time that the engine states, its values are old.
	causeEngineTime
	// causeDoubted: it is stale for another reason than these.
	causeDoubted
	// causeOff: the engine has it switched off.
	causeOff
	// causeUnsupported: the engine cannot tell.
	causeUnsupported
	// causeNoSource: the engine's profile does not name it.
	causeNoSource
	numCauses
)

func (c cause) String() string {
	return [...]string{
		"", "not_read", "page_unread", "expired", "absent", "no_data", "invalid", "frozen", "standstill", "engine_time",
		"doubted", "off", "unsupported", "no_source",
	}[c]
}

// spoken are the causes that readings tell in words alone, by how these begin.
var spoken = [...]struct {
	words string
	cause cause
}{
	{"frozen: ", causeFrozen},
	{"no value on the page moved ", causeStandstill},
	{"the engine's own time ", causeEngineTime},
	{"the engine's process was started anew", causeNoData},
	{telemetry.NotRead + ": ", causePageUnread},
	{"no source: ", causeNoSource},
}

// causeOf is why a reading that has this state now is not fresh. failure is why the
// last scrape of its endpoint failed, empty if it did not; named tells whether the
// profile of the engine names the field, or gives it up.
func causeOf(r *telemetry.Reading, state telemetry.State, failure string, named bool) cause {
	var reasons []string
	if r.Detail != nil {
		reasons = r.Detail.Reasons
	}
	switch {
	case state == telemetry.Fresh:
		return noCause
	case state == telemetry.Invalid:
		return causeInvalid
	case r.Recorded == telemetry.Stale:
		if len(reasons) > 0 {
			// What spoke against it comes after what its source says of itself.
			if c := spokenCause(reasons[len(reasons)-1]); c != noCause {
				return c
			}
		}
		return causeDoubted
	case state == telemetry.Stale:
		if failure != "" {
			return causePageUnread
		}
		return causeExpired
	case r.Support == telemetry.Unsupported:
		return causeUnsupported
	case r.Support == telemetry.Disabled:
		return causeOff
	case len(reasons) == 0, len(reasons) == 1 && reasons[0] == telemetry.NotRead:
		switch {
		case !named:
			return causeNoSource
		case failure != "":
			return causePageUnread
		}
		return causeNotRead
	}
	if c := spokenCause(reasons[0]); c != noCause {
		return c
	}
	if r.Support == telemetry.Supported {
		return causeNoData
	}
	return causeAbsent
}

func spokenCause(reason string) cause {
	for i := range spoken {
		if strings.HasPrefix(reason, spoken[i].words) {
			return spoken[i].cause
		}
	}
	return noCause
}

// unreadCause is that of every field of an endpoint of which nothing was ever read.
func unreadCause(failure string) cause {
	if failure != "" {
		return causePageUnread
	}
	return causeNotRead
}
