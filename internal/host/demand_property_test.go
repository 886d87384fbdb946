package host

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// candidate is what this test knows of an endpoint, in words of its own.
type candidate struct {
	name, address       string
	out                 bool     // not ready, terminating, asleep or unhealthy
	serves              []string // nil: not known
	limit               int64    // 0: not known
	labels, annotations map[string]string
}

// rule is a requirement, in the order that refusals have.
type rule struct {
	class, key, op string
	values         []string
}

var refusedAs = []struct{ class, said string }{
	{"authorization", "403 authorization_unmet"}, {"safety", "403 safety_unmet"}, {"residency", "403 residency_unmet"},
	{"capability", "422 capability_unmet"}, {"context", "422 context_exceeded"}, {"placement", "422 placement_unmet"},
}

// asked is a request with its intent.
type asked struct {
	bodyModel string // of a body that can be read; "" names none
	// shape is read, bodiless, gzip, unseen or tunnel.
	shape   string
	intent  bool
	broken  bool
	logical string
	served  []string
	rules   []rule
	context int64
	subset  []string // nil: none
}

// judgedBy is the policy, as far as it matters who may serve.
type judgedBy struct {
	required, passUnreadable, passContext bool
	aliases                               map[string][]string
}

func items(text string) []string {
	var out []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" && !slices.Contains(out, item) {
			out = append(out, item)
		}
	}
	slices.Sort(out)
	return out
}

// meets is an operator over what labels and annotations say, as the contract has it.
func (c *candidate) meets(r rule) bool {
	label, labelled := c.labels[r.key]
	annotation, annotated := c.annotations[r.key]
	if !labelled && !annotated {
		return r.op == "DoesNotExist"
	}
	text := annotation
	if !annotated {
		text = label
	}
	if labelled && annotated && !slices.Equal(items(label), items(annotation)) {
		return false
	}
	set := items(text)
	hit := slices.ContainsFunc(r.values, func(v string) bool { return slices.Contains(set, v) })
	switch r.op {
	case "In":
		return hit
	case "NotIn":
		return !hit
	case "Exists":
		return len(set) > 0
	case "Gt", "Lt":
		if len(set) != 1 {
			return false
		}
		n, err := strconv.Atoi(set[0])
		bound, _ := strconv.Atoi(r.values[0])
		return err == nil && (r.op == "Gt" && n > bound || r.op == "Lt" && n < bound)
	}
	return false
}

// judge says who may serve, or how the request must be refused.
func (a *asked) judge(members []candidate, by judgedBy) (eligible []string, refusal string) {
	if a.broken {
		return nil, "400 intent_malformed"
	}
	if !a.intent && by.required {
		return nil, "403 intent_required"
	}
	var names []string
	if a.intent {
		names = a.served
		if len(names) == 0 && a.logical != "" {
			names = by.aliases[a.logical]
			if len(names) == 0 {
				names = []string{a.logical}
			}
		}
	}
	trusted := len(names) > 0
	readable := a.shape == "read" && a.bodyModel != ""
	switch {
	case trusted && readable && !slices.Contains(names, a.bodyModel), trusted && !readable && a.shape != "bodiless" && !by.passUnreadable:
		return nil, "403 model_not_eligible"
	case readable:
		names = []string{a.bodyModel}
	}
	left := slices.Clone(members)
	stage := func(keep func(*candidate) bool) bool {
		left = slices.DeleteFunc(left, func(c candidate) bool { return !keep(&c) })
		return len(left) == 0
	}
	if len(left) == 0 {
		return nil, "503 pool_empty"
	}
	if a.subset != nil && stage(func(c *candidate) bool { return slices.Contains(a.subset, c.address) }) {
		return nil, "503 subset_empty"
	}
	if len(names) > 0 {
		unknown := slices.ContainsFunc(left, func(c candidate) bool { return c.serves == nil })
		if stage(func(c *candidate) bool {
			if c.serves == nil {
				return !trusted
			}
			return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(c.serves, n) })
		}) {
			if unknown {
				return nil, "503 model_unknown"
			}
			return nil, "404 model_unserved"
		}
	}
	for _, r := range refusedAs {
		if stage(func(c *candidate) bool {
			if r.class == "context" {
				return a.context == 0 || c.limit >= a.context || c.limit == 0 && by.passContext
			}
			return !slices.ContainsFunc(a.rules, func(x rule) bool { return x.class == r.class && !c.meets(x) })
		}) {
			return nil, r.said
		}
	}
	if stage(func(c *candidate) bool { return !c.out }) {
		return nil, "503 unhealthy"
	}
	for _, c := range left {
		eligible = append(eligible, c.address)
	}
	return eligible, ""
}

func one[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func drawCandidates(rng *rand.Rand) []candidate {
	members := make([]candidate, one(rng, 0, 1, 2, 5, 9, 14))
	for i := range members {
		c := &members[i]
		c.name, c.address = fmt.Sprintf("r%d", i+1), fmt.Sprintf("10.0.0.%d:8000", i+1)
		c.out = rng.IntN(6) == 0
		c.serves = one(rng, nil, []string{"m"}, []string{"m"}, []string{"m", "n"}, []string{"n"})
		c.limit = one[int64](rng, 0, 100, 1000, 1000)
		c.labels, c.annotations = map[string]string{}, map[string]string{}
		for _, key := range []string{"k1", "k2", "k3"} {
			if rng.IntN(3) > 0 {
				c.annotations[key] = one(rng, "a", "a,b", " b , a,,", "c", "", " , ", "A", "5", "7", "5,7", "-1")
			}
			if rng.IntN(4) == 0 {
				c.labels[key] = one(rng, "a", "b", "", "5", c.annotations[key])
			}
		}
	}
	return members
}

func drawAsked(rng *rand.Rand, members []candidate) *asked {
	a := &asked{
		bodyModel: one(rng, "m", "m", "m", "n", "x", ""),
		shape:     one(rng, "read", "read", "read", "read", "bodiless", "gzip", "unseen", "tunnel"),
		intent:    rng.IntN(5) > 0,
	}
	if rng.IntN(4) == 0 {
		a.subset = []string{}
		for _, c := range members {
			if rng.IntN(2) == 0 {
				a.subset = append(a.subset, c.address)
			}
		}
	}
	if !a.intent {
		return a
	}
	a.broken = rng.IntN(20) == 0
	a.logical = one(rng, "", "fast", "fast", "m", "x")
	if rng.IntN(4) == 0 {
		a.served = one(rng, []string{"m"}, []string{"m", "n"}, []string{"x", "n"})
	}
	a.context = one[int64](rng, 0, 0, 0, 100, 101, 1000)
	for range one(rng, 0, 0, 1, 1, 2, 4) {
		r := rule{
			class: one(rng, "authorization", "safety", "residency", "capability", "placement"),
			key:   one(rng, "k1", "k2", "k3"),
			op:    one(rng, "In", "In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
		}
		switch r.op {
		case "In", "NotIn":
			r.values = one(rng, []string{"a"}, []string{"a", "b"}, []string{"z"}, []string{"c", "5"})
		case "Gt", "Lt":
			r.values = one(rng, []string{"5"}, []string{"6"}, []string{"-2"})
		}
		a.rules = append(a.rules, r)
	}
	return a
}

// metadata writes the intent as a gateway would: as a struct, as text, or, where all
// of it can be said so, in flat keys.
func (a *asked) metadata(t *testing.T, rng *rand.Rand) map[string]any {
	if !a.intent {
		return nil
	}
	if form := rng.IntN(3); form == 2 && !slices.ContainsFunc(a.rules, func(r rule) bool { return r.op != "In" }) && len(a.rules) < 2 {
		m := map[string]any{"priority": "0"}
		if a.logical != "" {
			m["logicalModel"] = a.logical
		}
		if len(a.served) > 0 {
			m["servedModels"] = " " + strings.Join(a.served, " ,")
		}
		if a.context > 0 {
			m["contextInputTokens"], m["contextOutputTokens"] = float64(a.context-1), "1"
		}
		for _, r := range a.rules {
			m["requirement."+r.class+"."+r.key] = strings.Join(r.values, ", ")
		}
		if a.broken {
			one(rng, func() { m["logicalmodel"] = "m" }, func() { m["requirement.tenancy.k1"] = "a" }, func() { m["intent"] = "{}" },
				func() { m["servedModels"] = " , " }, func() { m["contextInputTokens"] = "-1" }, func() { m["priority"] = "high" })()
		}
		return m
	}
	i := v1alpha1.RoutingIntent{Version: v1alpha1.Version, LogicalModel: a.logical, ServedModels: a.served}
	if a.context > 0 {
		i.Context = &v1alpha1.ContextNeed{InputTokens: a.context - 1, OutputTokens: 1}
	}
	for _, r := range a.rules {
		i.Requirements = append(i.Requirements, v1alpha1.Requirement{
			Class: v1alpha1.RequirementClass(r.class), Key: r.key, Operator: v1alpha1.Operator(r.op), Values: r.values,
		})
	}
	text, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	if a.broken {
		bad := map[string]any{"class": "safety", "key": "k1", "operator": "Exists"}
		one(rng, func() { bad["operator"] = "exists" }, func() { bad["class"] = "Safety" }, func() { delete(bad, "key") },
			func() { bad["value"] = "a" }, func() { bad["values"] = []any{"a"} }, func() { bad["operator"] = "In" }, func() { bad["key"] = nil })()
		one(rng, func() { tree["requirements"] = []any{bad} }, func() { tree["Requirements"] = []any{} }, func() { tree["requirements"] = bad },
			func() { tree["requirements"] = nil }, func() { tree["context"] = map[string]any{"inputToken": 1.0} }, func() { tree["logicalModel"] = 7.0 })()
	}
	if rng.IntN(2) == 0 {
		return map[string]any{"intent": tree}
	}
	if text, err = json.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	return map[string]any{"intent": string(text)}
}

// Over random pools, intents and policies no pick and no fallback leaves those that
// may serve, at any rung, and each refusal tells the truth.
func TestNoPickLeavesThoseThatMayServeWhateverIsDemanded(t *testing.T) {
	const policies, pools, requests = 50, 100, 20
	rng := rand.New(rand.NewPCG(7, 11))
	outcomes := map[string]int{}
	for range policies {
		by := judgedBy{
			required: rng.IntN(6) == 0, passUnreadable: rng.IntN(2) == 0, passContext: rng.IntN(2) == 0,
			aliases: map[string][]string{"fast": one(rng, []string{"m"}, []string{"m", "n"})},
		}
		word := map[bool]string{true: "pass", false: "fail"}
		r := newRig(t, fmt.Sprintf(`gateway: {fallbacks: %d}
intent: {required: %v, unreadableBody: %s}
models: {aliases: {fast: [%s]}}
screening: {contextUnknown: %s, quarantine: {failures: 1, maxShare: %v}}
ledger: {candidates: %d}
`, rng.IntN(5), by.required, strings.ReplaceAll(word[by.passUnreadable], "fail", "refuse"), strings.Join(by.aliases["fast"], ","),
			word[by.passContext], one(rng, "0", "0.5", "1"), one(rng, 0, 512)))
		for range pools {
			members := drawCandidates(rng)
			populate(r, rng, members)
			for range requests {
				a := drawAsked(rng, members)
				eligible, want := a.judge(members, by)
				req := r.request(map[bool]string{true: fmt.Sprintf(`{"model":%q}`, a.bodyModel), false: "{}"}[a.bodyModel != ""])
				switch a.shape {
				case "bodiless":
					req.Body, req.Method, req.Path = nil, "GET", "/v1/models"
				case "gzip":
					req.ContentEncoding = "gzip"
				case "unseen":
					req.Body, req.BodySeen = nil, false
				case "tunnel":
					req.Body, req.Tunnel = nil, true
				}
				req.IntentMetadata = a.metadata(t, rng)
				if a.subset != nil {
					req.Subset = screen.NewSubset(a.subset)
				}
				d, refusal := r.decider.begin().Decide(req)
				got := ""
				if refusal != nil {
					got = fmt.Sprintf("%d %s", refusal.Status, refusal.Reason)
				}
				if got != want {
					t.Fatalf("%q, want %q: %+v\nof %+v\nby %+v\nmetadata %v", got, want, a, members, by, req.IntentMetadata)
				}
				outcomes[got]++
				if refusal != nil {
					continue
				}
				for address := range strings.SplitSeq(d.Destination(), ",") {
					if !slices.Contains(eligible, address) {
						t.Fatalf("%s is in %s, and only %v may serve %+v\nof %+v\nby %+v", address, d.Destination(), eligible, a, members, by)
					}
				}
				f := d.(*inFlight)
				outcomes[f.rung.String()]++
				failing(r, f, one(rng, "ok", "ok", "500", "refused", "client"))
			}
			for _, e := range r.pools.Set().Endpoints {
				if e.InFlight() != 0 {
					t.Fatalf("%s has %d requests in flight after all have ended", e.Name, e.InFlight())
				}
			}
		}
	}
	for _, want := range []string{
		"full", "partial", "local", "spread", "400 intent_malformed", "403 intent_required", "403 model_not_eligible", "503 pool_empty",
		"503 subset_empty", "404 model_unserved", "503 model_unknown", "403 authorization_unmet", "403 safety_unmet", "403 residency_unmet",
		"422 capability_unmet", "422 context_exceeded", "422 placement_unmet", "503 unhealthy",
	} {
		if outcomes[want] < 100 {
			t.Errorf("%s came up %d times, too seldom to say anything: %v", want, outcomes[want], outcomes)
		}
	}
}

// populate makes the members the pool, with pages or without.
func populate(r *rig, rng *rand.Rand, members []candidate) {
	// Another pool, so that nothing is known of the endpoints yet.
	r.update()
	r.clock.pass(2 * time.Minute)
	var specs []pool.Spec
	word := make([]int, len(members))
	for i, c := range members {
		word[i] = rng.IntN(4)
		spec := endpoint(i+1, serving(c.serves...), holding(c.limit))
		if c.serves == nil {
			spec.ServedModels = nil
		}
		spec.Labels, spec.Annotations = maps.Clone(c.labels), maps.Clone(c.annotations)
		if c.out {
			spec.Ready, spec.Terminating = word[i] != 0, word[i] == 1
		}
		specs = append(specs, spec)
	}
	r.update(specs...)
	seldom := rng.IntN(3)
	for i, c := range members {
		asleepOrIll := c.out && word[i] >= 2
		if !asleepOrIll && rng.IntN(3) < seldom {
			continue
		}
		r.publish(c.name, load{float64(rng.IntN(5)), float64(rng.IntN(5)), rng.Float64()}, 0, func(s *telemetry.Snapshot) {
			if asleepOrIll && word[i] == 2 {
				asleep(s)
			} else if asleepOrIll {
				unhealthy(s)
			}
		})
	}
	if len(members) > 0 && rng.IntN(4) == 0 {
		// Somebody has been seen at work: more than nothing is known, without a page.
		r.live(members[0].name).Observe(time.Second, telemetry.Instant(r.clock.now.Load()))
	}
}
