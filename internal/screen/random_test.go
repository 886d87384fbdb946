package screen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
)

// source draws subjects and demands from a small world, so that they meet.
type source struct{ *rand.Rand }

func newSource(seed uint64) source { return source{rand.New(rand.NewPCG(seed, 2))} }

// in reports true once in n draws.
func (r source) in(n int) bool { return r.IntN(n) == 0 }

func pick[T any](r source, of ...T) T { return of[r.IntN(len(of))] }

var (
	anyState = []telemetry.State{telemetry.Missing, telemetry.Fresh, telemetry.Fresh, telemetry.Stale, telemetry.Invalid}
	// freeKeys are stated by labels and annotations alone.
	freeKeys  = []string{"team", "tier", v1alpha1.AttributeTenants}
	knownKeys = []string{
		v1alpha1.AttributePool, v1alpha1.AttributeReplica, v1alpha1.AttributeNode, v1alpha1.AttributeZone,
		v1alpha1.AttributeEngine, v1alpha1.AttributeEngineVersion, v1alpha1.AttributeServedModels, v1alpha1.AttributeContextLimit,
	}
	// listsOf has what a label or annotation may say; each has what is likely in front.
	listsOf = map[string][]string{
		"team":                          {"a", "a", "a,b", "A", " a ,b", "b,a,,a", "", " , ", "c"},
		"tier":                          {"7", "7", "8", "-1", "07", "1e3", "9223372036854775808", "7,8", "", "x"},
		v1alpha1.AttributeTenants:       {"a", "a,b", "a, b", "b ,a", "\tb\r\n", "A,B", "", "a b"},
		v1alpha1.AttributePool:          {poolName, "other/pool"},
		v1alpha1.AttributeReplica:       {"replica-1", "replica-0"},
		v1alpha1.AttributeNode:          {"n1", "n2", ""},
		v1alpha1.AttributeZone:          {"z1", " z1", "z2"},
		v1alpha1.AttributeEngine:        {"vllm", "vllm-openai", "sglang"},
		v1alpha1.AttributeEngineVersion: {"0.9.1", "0.10.0", ""},
		v1alpha1.AttributeServedModels:  {"m", "m,n", "n,m", ""},
		v1alpha1.AttributeContextLimit:  {"8192", "4096", "08192", "0", "-8192", "many", "8192,4096", "", "9223372036854775807"},
	}
	servedLists = [][]string{nil, nil, {}, {"m"}, {"n"}, {"n", "m"}, {"m", "m"}}
)

// texts are the labels or annotations of a subject.
func (r source) texts() map[string]string {
	texts := map[string]string{}
	for _, key := range freeKeys {
		if !r.in(4) {
			texts[key] = r.list(key)
		}
	}
	for _, key := range knownKeys {
		if r.in(12) {
			texts[key] = r.list(key)
		}
	}
	return texts
}

func (r source) list(key string) string {
	lists := listsOf[key]
	if r.in(2) {
		return lists[0]
	}
	return pick(r, lists...)
}

// subject draws an endpoint. Name and address follow from its number: two ports of one
// host are neighbours.
func (r source) subject(i int, now telemetry.Instant) subject {
	s := subject{
		name: fmt.Sprint("replica-", i), address: fmt.Sprintf("10.0.0.%d:%d", 1+i/2, 8000+i%2),
		said: r.word(now),
	}
	r.declare(&s)
	if r.in(3) {
		s.away.since = now - telemetry.Instant(r.IntN(20)) - 1
		s.away.until = s.away.since + telemetry.Instant(r.IntN(20)) + 1
		s.away.tried = s.away.until <= now && r.in(2)
	}
	return s
}

// declare draws what discovery states of an endpoint.
func (r source) declare(s *subject) {
	s.ready, s.terminating = !r.in(8), r.in(8)
	s.served = pick(r, servedLists...)
	s.engine, s.node, s.zone = pick(r, "", "vllm", "vllm", "sglang"), pick(r, "", "n1", "n2", " n1"), pick(r, "", "z1", "z2", "Z1")
	s.context = pick(r, int64(0), 0, 8192, 4096, 8192, -1, 1<<63-1)
	s.labels, s.annotations = r.texts(), r.texts()
	if r.in(2) {
		// No contradiction.
		for key := range s.labels {
			if _, twice := s.annotations[key]; twice {
				delete(pick(r, s.labels, s.annotations), key)
			}
		}
	}
}

// word draws what an engine says.
func (r source) word(now telemetry.Instant) word {
	w := word{scraped: !r.in(4)}
	for range 9 {
		r.reword(&w, now)
	}
	if !r.in(4) {
		w.asleep.yes, w.healthy.yes, w.ready.yes = false, true, true
	}
	return w
}

// reword changes one thing that an engine says, or nothing.
func (r source) reword(w *word, now telemetry.Instant) {
	answer := func() yesNo {
		expires := pick(r, now-1, now, now+1, now+2, now+5, now+20, 0)
		return yesNo{yes: r.in(2), state: pick(r, anyState...), expires: expires}
	}
	names := func() namesWord {
		return namesWord{state: pick(r, anyState...), given: !r.in(5), names: pick(r, servedLists...)}
	}
	switch r.IntN(9) {
	case 0:
		w.asleep = answer()
	case 1:
		w.healthy = answer()
	case 2:
		w.ready = answer()
	case 3, 4:
		w.models = names()
	case 5:
		w.adapters = names()
	case 6:
		w.engine = pick(r, "", "unknown", "vllm", "vllm", "sglang")
	case 7:
		w.version = textWord{state: pick(r, anyState...), given: !r.in(4), text: pick(r, "", "0.9.1", "0.9.1", "0.10.0")}
	case 8:
		w.contextState, w.context = pick(r, anyState...), pick(r, 8192, 4096, 4096.5, 8193, 0, -5, 0.5)
	}
	w.unrelated, w.unrelatedState = r.Float64(), pick(r, anyState...)
}

// subjects draws a pool: most are small, some take more than one word of a bitset.
func (r source) subjects(now telemetry.Instant) []subject {
	n := r.IntN(8)
	if r.in(40) {
		n = pick(r, 63, 64, 65, 127, 128, 129, 130, r.IntN(131))
	}
	subjects := make([]subject, n)
	for i := range subjects {
		subjects[i] = r.subject(i, now)
	}
	return subjects
}

// requirement draws one that some subjects meet.
func (r source) requirement() v1alpha1.Requirement {
	req := v1alpha1.Requirement{
		Class:    pick(r, v1alpha1.Authorization, v1alpha1.Safety, v1alpha1.Residency, v1alpha1.Capability, v1alpha1.Placement),
		Key:      pick(r, freeKeys...),
		Operator: pick(r, v1alpha1.In, v1alpha1.In, v1alpha1.NotIn, v1alpha1.Exists, v1alpha1.DoesNotExist, v1alpha1.Gt, v1alpha1.Lt),
	}
	if r.in(3) {
		req.Key = pick(r, knownKeys...)
	}
	switch req.Operator {
	case v1alpha1.In, v1alpha1.NotIn:
		for range 1 + r.IntN(3) {
			// One item of a list that an endpoint may have, or a stranger.
			item := pick(r, strings.Split(r.list(req.Key), ",")...)
			if strings.Trim(item, " \t\r\n") == "" {
				item = pick(r, "stranger", "b", " a ")
			}
			req.Values = append(req.Values, item)
		}
		if req.Key == v1alpha1.AttributeReplica {
			req.Values = append(req.Values, fmt.Sprint("replica-", r.IntN(8)))
		}
	case v1alpha1.Gt, v1alpha1.Lt:
		if req.Key == "team" {
			req.Key = "tier"
		}
		req.Values = []string{pick(r, "6", "7", " 8\t", "-1", "0", "4096", "8191", "-9223372036854775808", "9223372036854775807")}
	}
	return req
}

func (r source) demand(subjects []subject) demand {
	d := demand{
		models:  pick(r, nil, nil, []string{"m"}, []string{"m"}, []string{"n"}, []string{"o"}, []string{"o", "m"}, []string{"n", "m", "n"}),
		context: pick(r, int64(0), 0, 1, 4095, 4096, 4097, 8192, 8193, 1<<53),
		trusted: r.in(2),
		rules:   Rules{PassContextUnknown: !r.in(3), QuarantineShare: pick(r, 0, 0.1, 0.25, 0.5, 0.5, 0.75, 1, r.Float64())},
	}
	for range pick(r, 0, 0, 1, 1, 2, 3, 6) {
		d.requirements = append(d.requirements, r.requirement())
	}
	if len(d.requirements) > 0 && r.in(4) {
		// The same again, or one more over the same attribute for the same reason.
		again := pick(r, d.requirements...)
		if r.in(2) {
			other := r.requirement()
			again.Operator, again.Values = other.Operator, other.Values
		}
		d.requirements = append(d.requirements, again)
	}
	if d.hasSubset = r.in(3); d.hasSubset {
		for _, s := range subjects {
			if !r.in(4) {
				d.subset = append(d.subset, s.address)
			}
		}
		if r.in(4) {
			d.subset = append(d.subset, "10.0.0.1", "nobody:8000", "10.0.0.1:9999", "[fd00::1]:8000")
		}
		r.Shuffle(len(d.subset), func(i, j int) { d.subset[i], d.subset[j] = d.subset[j], d.subset[i] })
	}
	return d
}

func shuffled[T any](r source, list []T) []T {
	list = slices.Clone(list)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
