package demo

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"time"
)

// The mix of the workload. Sizes are tokens, bounds inclusive; a simulated
// token is four bytes.
const (
	tenants = 6
	// Each tenant's requests begin with its own system prompt.
	systemMin, systemMax = 300, 700
	userMin, userMax     = 40, 160
	outputMin, outputMax = 8, 32
	// completionShare of the requests use /v1/completions, the others chat;
	// streamShare of either are streamed.
	completionShare = 0.2
	streamShare     = 0.85
)

const bytesPerToken = 4

// request is one request of a workload.
type request struct {
	// At is when it is due, from the start of the run.
	At     time.Duration
	Tenant int
	Path   string
	Stream bool
	// MaxTokens is the exact length of the answer.
	MaxTokens int
	Body      []byte
}

// workload is the requests of one run, in the order in which they are due:
// Poisson arrivals at rate per second, for as long as duration. It is a function
// of its arguments.
func workload(seed uint64, rate float64, duration time.Duration) []request {
	rng := rand.New(rand.NewPCG(seed, 0))
	systems := make([]string, tenants)
	for i := range systems {
		systems[i] = prose(rng, between(rng, systemMin, systemMax))
	}
	var work []request
	for at := gap(rng, rate); at < duration; at += gap(rng, rate) {
		r := request{At: at, Tenant: popular(rng), Path: "/v1/chat/completions"}
		user := prose(rng, between(rng, userMin, userMax))
		r.MaxTokens = between(rng, outputMin, outputMax)
		completion := rng.Float64() < completionShare
		r.Stream = rng.Float64() < streamShare
		if completion {
			r.Path = "/v1/completions"
		}
		r.Body = body(systems[r.Tenant], user, r, completion)
		work = append(work, r)
	}
	return work
}

// gap is the time between two arrivals of a Poisson process.
func gap(rng *rand.Rand, rate float64) time.Duration {
	return time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
}

// popular draws a tenant; each is half as popular as the one before, and the
// last two are alike.
func popular(rng *rand.Rand) int {
	for i := range tenants - 1 {
		if rng.IntN(2) == 0 {
			return i
		}
	}
	return tenants - 1
}

func between(rng *rand.Rand, low, high int) int { return low + rng.IntN(high-low+1) }

// vocabulary is what prompts are made of: no meaning, but no two prompts alike.
var vocabulary = strings.Fields("anchor ballast beacon bow buoy cable capstan cargo chart compass crew current deck " +
	"dock draught ferry galley harbour hatch helm hull jetty keel knot lantern lighthouse mast mooring pilot port quay " +
	"reef rigging rudder sail shoal shore sound star stern tackle tide tiller tug wake watch wharf wind")

// prose is that many tokens of text.
func prose(rng *rand.Rand, tokens int) string {
	var b strings.Builder
	for b.Len() < tokens*bytesPerToken {
		b.WriteString(vocabulary[rng.IntN(len(vocabulary))])
		b.WriteByte(' ')
	}
	return b.String()[:tokens*bytesPerToken]
}

// model is what the fleet serves.
const model = "llama-3.1-8b"

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func body(system, user string, r request, completion bool) []byte {
	doc := map[string]any{"model": model, "max_tokens": r.MaxTokens}
	if completion {
		doc["prompt"] = system + "\n" + user
	} else {
		doc["messages"] = []message{{"system", system}, {"user", user}}
	}
	if r.Stream {
		doc["stream"] = true
		doc["stream_options"] = map[string]bool{"include_usage": true}
	}
	// Text, numbers and booleans can always be encoded.
	text, _ := json.Marshal(doc)
	return text
}
