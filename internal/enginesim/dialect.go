package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// Dialect is how one kind of engine shows its state. Implementations keep no state of their own and are safe for concurrent use.
type Dialect interface {
	// Name is the engine's name as configurations spell it.
	Name() string
	// Cadence says how the telemetry page follows the engine.
	Cadence() Cadence
	// Bounds are those of the histograms that the telemetry page shows.
	Bounds() Bounds
	// Pages are all paths that the engine answers to GET.
	Pages() Pages
}

// Dialects returns all dialects of this package.
func Dialects() []Dialect { return []Dialect{VLLM{}, SGLang{}, ATOM{}, TRTLLM{}, Triton{}} }

// DialectNamed returns the dialect with a name: vllm, sglang, atom, trtllm-serve or triton-tensorrt-llm, for which triton is
// enough. The error of another name says so.
func DialectNamed(name string) (Dialect, error) {
	if name == "triton" {
		return Triton{}, nil
	}
	var allowed []string
	for _, d := range Dialects() {
		if d.Name() == name {
			return d, nil
		}
		allowed = append(allowed, d.Name())
	}
	return nil, fmt.Errorf("engine: %q: must be %s or triton", name, strings.Join(allowed, ", "))
}

// Pages are pages by path.
type Pages map[string]Page

// Page is what an engine answers to GET at one path.
type Page struct {
	// Make writes the page.
	Make func(State) Content
	// Telemetry: what Faults say of the page is about this one.
	Telemetry bool
	// Negotiates: the answer's format follows the request's Accept header, as in Python's client library. Other pages have one
	// format.
	Negotiates bool
	// Generates: the engine generates a token first, and looks for one once a second. If none comes in 20 s, by this or any
	// other request, the answer is 503.
	Generates bool
	// Drains: the page shows State.Rows and takes them away.
	Drains bool
}

// Content is an answer to GET.
type Content struct {
	// Status 0 means 200.
	Status      int
	ContentType string
	Body        []byte
}

// State is everything that a page can be made from, at one instant.
type State struct {
	// Models are the served names, Root is what the model itself is called.
	Models []string
	Root   string
	// MaxModelLen is in tokens.
	MaxModelLen int
	Engine      enginemodel.Config
	// Asleep is Faults.Sleep.
	Asleep bool
	// Started is when the process started, Now when the state was read. Counters are of the time since Counting, which is
	// Started unless they were set to zero later.
	Started, Counting, Now time.Time

	// Truth is what is true now, Shown the report that the page shows by the Cadence of the dialect. Looked is when the
	// page's server last looked for one.
	Truth, Shown Report
	Looked       time.Time
	// Busy is how long there were requests in the batch.
	Busy time.Duration
	// Device is for a dialect with a Cadence.Device.
	Device Device
	// Rows are for a page with Page.Drains; others have none.
	Rows []Report

	// Streamed and Whole are requests by the way in which they are answered. Background requests are streamed.
	Streamed, Whole Work
}

// Work is what has become of requests.
type Work struct {
	Totals
	Latencies
}

// All is the work of both kinds.
func (s State) All() Work { return s.Streamed.plus(s.Whole) }

// Up is how long counters have counted.
func (s State) Up() time.Duration { return s.Now.Sub(s.Counting) }

// restarted returns the state with counters that count since an earlier state of the same process.
func (s State) restarted(since *State) State {
	if since == nil {
		return s
	}
	s.Counting = since.Now
	s.Busy -= since.Busy
	// What the driver said may be older than that.
	s.Device.Busy = max(0, s.Device.Busy-since.Busy)
	s.Truth = s.Truth.minus(since.Truth)
	// What is shown may be older than that.
	s.Shown = s.Shown.minus(since.Truth)
	s.Streamed = s.Streamed.minus(since.Streamed)
	s.Whole = s.Whole.minus(since.Whole)
	return s
}

func (w Work) plus(o Work) Work { return Work{w.Totals.plus(o.Totals), w.Latencies.plus(o.Latencies)} }

func (w Work) minus(o Work) Work {
	return Work{w.Totals.minus(o.Totals), w.Latencies.minus(o.Latencies)}
}

func (r Report) minus(o Report) Report {
	r.Totals = r.Totals.minus(o.Totals)
	for _, c := range []struct {
		count *uint64
		less  uint64
	}{
		{&r.Stats.Submitted, o.Stats.Submitted}, {&r.Stats.Stopped, o.Stats.Stopped}, {&r.Stats.Truncated, o.Stats.Truncated},
		{&r.Stats.Aborted, o.Stats.Aborted}, {&r.Stats.Preemptions, o.Stats.Preemptions},
		{&r.Stats.PromptTokens, o.Stats.PromptTokens}, {&r.Stats.QueriedTokens, o.Stats.QueriedTokens},
		{&r.Stats.CachedTokens, o.Stats.CachedTokens}, {&r.Stats.GeneratedTokens, o.Stats.GeneratedTokens},
		{&r.Stats.Steps, o.Stats.Steps},
	} {
		*c.count = less(*c.count, c.less)
	}
	return r
}

func (t Totals) minus(o Totals) Totals {
	return Totals{less(t.LookedUp, o.LookedUp), less(t.Recovered, o.Recovered), less(t.Finished, o.Finished),
		less(t.PromptTokens, o.PromptTokens), less(t.CachedTokens, o.CachedTokens), less(t.GeneratedTokens, o.GeneratedTokens)}
}

// less is a-b, or 0 if b is larger.
func less(a, b uint64) uint64 { return a - min(a, b) }

// text is a page in Prometheus' text format.
func text(contentType string, e *exposition) Content {
	return Content{ContentType: contentType, Body: e.buf.Bytes()}
}

// empty is an answer of nothing but its status, 200.
func empty(State) Content { return Content{Status: http.StatusOK} }

// ready is an answer of nothing but a status, which says whether the engine takes requests.
func ready(no int) func(State) Content {
	return func(s State) Content {
		if s.Asleep {
			return Content{Status: no}
		}
		return Content{}
	}
}

// object is a JSON page that shows one value.
func object(value func(State) any) func(State) Content {
	return func(s State) Content { return jsonContent(http.StatusOK, value(s)) }
}

// constant is a JSON page that is always the same.
func constant(value any) func(State) Content {
	return object(func(State) any { return value })
}

// modelList is a JSON page with a card for each served name.
func modelList[T any](card func(s State, id string) T) func(State) Content {
	return object(func(s State) any {
		var cards []T
		for _, id := range s.Models {
			cards = append(cards, card(s, id))
		}
		return map[string]any{"object": "list", "data": cards}
	})
}

// card is what the model lists of all engines have in common.
type card struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func newCard(s State, id, owner string) card {
	return card{ID: id, Object: "model", Created: s.Started.Unix(), OwnedBy: owner}
}

// fullCard is a card with what vLLM and SGLang add.
type fullCard struct {
	card
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen int     `json:"max_model_len"`
}

func jsonContent(status int, value any) Content {
	body, err := json.Marshal(value)
	if err != nil {
		return Content{Status: http.StatusInternalServerError, ContentType: "text/plain", Body: []byte(err.Error())}
	}
	return Content{Status: status, ContentType: "application/json", Body: body}
}

// absent is what an engine answers where others have a page.
func absent() Content {
	return jsonContent(http.StatusNotFound, map[string]string{"detail": "Not Found"})
}

// behindFlags are paths at which an engine has a page only if it was started so: with VLLM_SERVER_DEV_MODE=1, with
// --enable-server-load-tracking, or as a release of TensorRT-LLM that is newer.
var behindFlags = [...]string{"/is_sleeping", "/load", "/energy_metrics"}

// pagesOfOthers are the paths at which some engine has a page, if not one of this package.
func pagesOfOthers() []string {
	paths := slices.Clone(behindFlags[:])
	for _, d := range Dialects() {
		for path := range d.Pages() {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
