package demo

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTheWorkloadIsAFunctionOfItsArguments(t *testing.T) {
	a, b := workload(7, 50, 10*time.Second), workload(7, 50, 10*time.Second)
	if !reflect.DeepEqual(a, b) {
		t.Error("the same seed gave two workloads")
	}
	if c := workload(8, 50, 10*time.Second); reflect.DeepEqual(a, c) {
		t.Error("two seeds gave the same workload")
	}
}

func TestALongerWorkloadBeginsLikeAShorterOne(t *testing.T) {
	short, long := workload(7, 50, 2*time.Second), workload(7, 50, 4*time.Second)
	if len(short) == 0 || len(long) <= len(short) || !reflect.DeepEqual(short, long[:len(short)]) {
		t.Errorf("%d requests in 2s are not how the %d in 4s begin", len(short), len(long))
	}
}

func TestRequestsAreDueInOrderAndInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond
		work := workload(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.1, 100).Draw(t, "rate"), length)
		if !slices.IsSortedFunc(work, func(a, b request) int { return int(a.At - b.At) }) {
			t.Fatal("not in order")
		}
		for _, r := range work {
			if r.At < 0 || r.At >= length {
				t.Fatalf("due at %s in a workload of %s", r.At, length)
			}
		}
	})
}

// Of 20,000 Poisson arrivals the standard deviation is 141; gaps of an
// exponential distribution have a standard deviation as large as their mean.
func TestArrivalsArePoisson(t *testing.T) {
	work := workload(1, 1000, 20*time.Second)
	if n := len(work); n < 19400 || n > 20600 {
		t.Errorf("%d requests in 20s at 1000/s", n)
	}
	var sum, squares float64
	for i := 1; i < len(work); i++ {
		gap := (work[i].At - work[i-1].At).Seconds()
		sum += gap
		squares += gap * gap
	}
	n := float64(len(work) - 1)
	mean := sum / n
	if cv := math.Sqrt(squares/n-mean*mean) / mean; cv < 0.95 || cv > 1.05 {
		t.Errorf("gaps have a coefficient of variation of %.3f, want 1", cv)
	}
}

func TestTheMixIsWhatItSaysItIs(t *testing.T) {
	type body struct {
		Model     string
		MaxTokens int `json:"max_tokens"`
		Stream    bool
		Options   *struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		Messages []message
		Prompt   string
	}
	work := workload(3, 1000, 4*time.Second)
	systems := map[int]string{}
	prompts := map[string]bool{}
	perTenant := make([]int, tenants)
	var streamed, completions float64
	for i, r := range work {
		var b body
		if err := json.Unmarshal(r.Body, &b); err != nil {
			t.Fatal(err)
		}
		var system, user string
		switch r.Path {
		case "/v1/completions":
			completions++
			system, user, _ = strings.Cut(b.Prompt, "\n")
		case "/v1/chat/completions":
			if len(b.Messages) != 2 || b.Messages[0].Role != "system" || b.Messages[1].Role != "user" {
				t.Fatalf("request %d: messages %+v", i, b.Messages)
			}
			system, user = b.Messages[0].Content, b.Messages[1].Content
		default:
			t.Fatalf("request %d: path %q", i, r.Path)
		}
		if r.Stream {
			streamed++
		}
		switch {
		case b.Model != model:
			t.Errorf("request %d: model %q", i, b.Model)
		case b.Stream != r.Stream || r.Stream != (b.Options != nil && b.Options.Usage):
			t.Errorf("request %d: streamed %v, body %s", i, r.Stream, r.Body)
		case b.MaxTokens != r.MaxTokens || r.MaxTokens < outputMin || r.MaxTokens > outputMax:
			t.Errorf("request %d: %d tokens, %d in the body", i, r.MaxTokens, b.MaxTokens)
		case len(system) < systemMin*4 || len(system) > systemMax*4:
			t.Errorf("request %d: system prompt of %d bytes", i, len(system))
		case len(user) < userMin*4 || len(user) > userMax*4:
			t.Errorf("request %d: prompt of %d bytes", i, len(user))
		case prompts[user]:
			t.Errorf("request %d: a prompt for the second time", i)
		}
		prompts[user] = true
		if first, ok := systems[r.Tenant]; ok && first != system {
			t.Errorf("request %d: tenant %d has two system prompts", i, r.Tenant)
		}
		systems[r.Tenant] = system
		perTenant[r.Tenant]++
	}
	distinct := map[string]bool{}
	for _, s := range systems {
		distinct[s] = true
	}
	if len(systems) != tenants || len(distinct) != tenants {
		t.Errorf("%d tenants with %d system prompts, want %d", len(systems), len(distinct), tenants)
	}
	n := float64(len(work))
	if share := streamed / n; math.Abs(share-streamShare) > 0.05 {
		t.Errorf("%.2f are streamed, want %.2f", share, streamShare)
	}
	if share := completions / n; math.Abs(share-completionShare) > 0.05 {
		t.Errorf("%.2f are completions, want %.2f", share, completionShare)
	}
	if share := float64(perTenant[0]) / n; math.Abs(share-0.5) > 0.05 {
		t.Errorf("the first tenant has %.2f of the requests, want a half", share)
	}
}
