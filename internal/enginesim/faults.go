package enginesim

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Faults are what is wrong with an engine; the zero value means nothing is. They last until they are replaced or the process ends.
type Faults struct {
	// FreezePage: the telemetry page keeps showing what was true when this was set.
	FreezePage bool `json:"freezePage"`
	// PageStatus, from 200 to 599: the page answers with this status; unless it is 200, without the page. 0 is off.
	PageStatus int `json:"pageStatus"`
	// PageHang: the page never answers.
	PageHang bool `json:"pageHang"`
	// PageDelay, from 0 to 1h: the page waits that long before it is made.
	PageDelay Duration `json:"pageDelay"`
	// Page: the page is not what it should be.
	Page PageFaults `json:"page,omitzero"`
	// Slow, from 0.001 to 1000: steps that begin from now on take that many times as long. 0 means 1.
	Slow float64 `json:"slow"`
	// RefuseStatus, from 400 to 599: inference is answered with this status and an error at once. 0 is off.
	RefuseStatus int `json:"refuseStatus"`
	// DropConnection: the connection of an inference request is cut at its next token; a stream gets its first token before
	// that, an answer in one piece nothing at all.
	DropConnection bool `json:"dropConnection"`
	// Hang: the scheduler stands still. Requests are accepted and get no token, streams stop, the page shows arrivals and
	// departures but no progress, and a /health that costs nothing says 200. When it ends, everything goes on where it was.
	Hang bool `json:"hang"`
	// Sleep: Hang, and it shows where the engine has a place for it: in vLLM's sleep state (weights offloaded), and at
	// paths that say whether the engine is ready, but not at /health.
	Sleep bool `json:"sleep"`
	// ZeroCounters: when this is set, all counters and histograms of the page start again from 0, without a new process. They do
	// not come back when it is cleared.
	ZeroCounters bool `json:"zeroCounters"`
}

func (f Faults) validate() error {
	switch {
	case f.PageStatus != 0 && (f.PageStatus < 200 || f.PageStatus > 599):
		return fmt.Errorf("pageStatus: %d: must be 0 (off) or from 200 to 599", f.PageStatus)
	case f.PageDelay < 0 || f.PageDelay > Duration(time.Hour):
		return fmt.Errorf("pageDelay: %v: must be from 0s to 1h", time.Duration(f.PageDelay))
	case f.Slow != 0 && !(f.Slow >= 1e-3 && f.Slow <= 1e3) || math.IsNaN(f.Slow):
		return fmt.Errorf("slow: %v: must be 0 (off) or from 0.001 to 1000", f.Slow)
	case f.RefuseStatus != 0 && (f.RefuseStatus < 400 || f.RefuseStatus > 599):
		return fmt.Errorf("refuseStatus: %d: must be 0 (off) or from 400 to 599", f.RefuseStatus)
	}
	return f.Page.validate()
}

// still says whether the scheduler stands still.
func (f Faults) still() bool { return f.Hang || f.Sleep }

// slowdown is Slow with its zero value resolved.
func (f Faults) slowdown() float64 {
	if f.Slow == 0 {
		return 1
	}
	return f.Slow
}

// Duration is a time.Duration that JSON spells as time.ParseDuration does: "200ms".
type Duration time.Duration

// MarshalJSON writes the duration as a string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads a string as time.ParseDuration does.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("duration %s: must be a string such as \"200ms\"", data)
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("duration %q: must be a number with a unit, such as 200ms", text)
	}
	*d = Duration(parsed)
	return nil
}
