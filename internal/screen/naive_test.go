package screen

import (
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// This file is a second, slow evaluation of hard constraints, written from what the
// contract says: over texts, maps and lists of names, one endpoint and one stage at
// a time. It shares no code with what it is held against.

const poolName = "default/pool"

// subject is one endpoint in plain words, from which both the pool and the naive
// evaluation are made.
type subject struct {
	name, address       string
	ready, terminating  bool
	served              []string // nil: not declared
	engine, node, zone  string
	context             int64 // 0: not declared
	labels, annotations map[string]string
	said                word
	away                away
}

// word is what the newest page of the engine says, if there is one.
type word struct {
	scraped                bool
	asleep, healthy, ready yesNo
	models, adapters       namesWord
	engine                 string
	version                textWord
	contextState           telemetry.State
	context                float64
	unrelated              float64
	unrelatedState         telemetry.State
}

type yesNo struct {
	yes     bool
	state   telemetry.State
	expires telemetry.Instant // 0: never
}

type namesWord struct {
	state telemetry.State
	given bool
	names []string
}

type textWord struct {
	state telemetry.State
	given bool
	text  string
}

// away is the quarantine of a subject: since 0 is none. A request may try it once until
// has passed, and has as long for that as it took until then.
type away struct {
	since, until telemetry.Instant
	tried        bool
}

func (a away) in(now telemetry.Instant) bool {
	return a.since != 0 && (now < a.until || a.tried && now-a.until < a.until-a.since)
}

func (s *subject) spec() pool.Spec {
	return pool.Spec{
		Name: s.name, Address: netip.MustParseAddrPort(s.address), Ready: s.ready, Terminating: s.terminating,
		ServedModels: s.served, Engine: s.engine, Node: s.node, Zone: s.zone, ContextLimit: s.context,
		Labels: s.labels, Annotations: s.annotations,
	}
}

func (w *word) page() *telemetry.Snapshot {
	page := &telemetry.Snapshot{Engine: w.engine}
	value := map[bool]float64{true: 1}
	for f, r := range map[telemetry.Field]yesNo{
		telemetry.Sleeping: w.asleep, telemetry.Health: w.healthy, telemetry.Ready: w.ready,
	} {
		page.Readings[f] = telemetry.Reading{Value: value[r.yes], Recorded: r.state, ExpiresAt: r.expires}
	}
	for f, r := range map[telemetry.Field]namesWord{telemetry.ServedModels: w.models, telemetry.AdaptersLoaded: w.adapters} {
		page.Readings[f].Recorded = r.state
		if r.given {
			page.Readings[f].Detail = &telemetry.Detail{Names: r.names}
		}
	}
	page.Readings[telemetry.EngineVersion].Recorded = w.version.state
	if w.version.given {
		page.Readings[telemetry.EngineVersion].Detail = &telemetry.Detail{Text: w.version.text}
	}
	page.Readings[telemetry.ContextLimit] = telemetry.Reading{Value: w.context, Recorded: w.contextState}
	page.Readings[telemetry.QueueDepth] = telemetry.Reading{Value: w.unrelated, Recorded: w.unrelatedState}
	return page
}

// apply makes a new endpoint of the pool what the subject says of it.
func (s *subject) apply(e *pool.Endpoint) {
	if s.said.scraped {
		e.Publish(s.said.page(), e.BeginScrape())
	}
	if s.away.since != 0 {
		e.Failed(s.away.since, pool.QuarantineRules{Failures: 1, ProbeAfter: s.away.until.Sub(s.away.since)})
		if s.away.tried {
			e.Take(s.away.until)
		}
	}
}

// update makes the subjects the members of the pool, in the order given.
func update(t testing.TB, r *pool.Registry, subjects []subject) *pool.Set {
	t.Helper()
	specs := make([]pool.Spec, len(subjects))
	for i := range subjects {
		specs[i] = subjects[i].spec()
	}
	if err := r.Update(poolName, specs); err != nil {
		t.Fatal(err)
	}
	return r.Set()
}

// demand is a request and the rules in plain words.
type demand struct {
	models       []string
	trusted      bool
	hasSubset    bool
	subset       []string
	requirements []v1alpha1.Requirement
	context      int64
	rules        Rules
}

func (d *demand) request() *Request {
	req := &Request{Models: d.models, Trusted: d.trusted, Requirements: d.requirements, Context: d.context}
	if d.hasSubset {
		req.Subset = NewSubset(d.subset)
		if len(d.subset)%2 == 1 {
			req.Subset = SplitSubset(strings.Join(d.subset, ", "))
		}
	}
	return req
}

// items is an attribute in plain words: absent, invalid, or a set.
type items struct {
	there, invalid bool
	set            map[string]bool
}

func setOfItems(texts ...string) map[string]bool {
	set := map[string]bool{}
	for _, text := range texts {
		for len(text) > 0 && strings.ContainsRune(" \t\r\n", rune(text[0])) {
			text = text[1:]
		}
		for len(text) > 0 && strings.ContainsRune(" \t\r\n", rune(text[len(text)-1])) {
			text = text[:len(text)-1]
		}
		if text != "" {
			set[text] = true
		}
	}
	return set
}

// agree is what several sources say: all the same, or it is invalid.
func agree(statements []map[string]bool) items {
	var a items
	for i, s := range statements {
		a.there = true
		if i == 0 {
			a.set = s
			continue
		}
		if len(a.set) != len(s) {
			a.invalid = true
		}
		for item := range s {
			if !a.set[item] {
				a.invalid = true
			}
		}
	}
	return a
}

func told(state telemetry.State) bool { return state == telemetry.Fresh || state == telemetry.Stale }

// engineServes are the models that the engine says it serves.
func (s *subject) engineServes() (names []string, known bool) {
	w := &s.said
	if !w.scraped || !told(w.models.state) || !w.models.given {
		return nil, false
	}
	names = append(names, w.models.names...)
	if told(w.adapters.state) && w.adapters.given {
		names = append(names, w.adapters.names...)
	}
	return names, true
}

// attribute is the attribute of a key.
func (s *subject) attribute(key string) items {
	var statements []map[string]bool
	if text, ok := s.labels[key]; ok {
		statements = append(statements, setOfItems(strings.Split(text, ",")...))
	}
	if text, ok := s.annotations[key]; ok {
		statements = append(statements, setOfItems(strings.Split(text, ",")...))
	}
	state := func(text string) {
		if text != "" {
			statements = append(statements, setOfItems(text))
		}
	}
	switch key {
	case "berth.dev/pool":
		state(poolName)
	case "berth.dev/replica":
		state(s.name)
	case "berth.dev/node":
		state(s.node)
	case "berth.dev/zone":
		state(s.zone)
	case "berth.dev/engine":
		if s.engine != "" && !agree(statements).invalid {
			// The label may have named it by an alias.
			statements = nil
			state(s.engine)
		}
		if s.said.scraped && s.said.engine != "unknown" {
			state(s.said.engine)
		}
	case "berth.dev/engine-version":
		if s.said.scraped && told(s.said.version.state) && s.said.version.given {
			state(s.said.version.text)
		}
	case "berth.dev/served-models":
		said, known := s.engineServes()
		switch {
		case known && s.served != nil:
			var both []string
			for _, name := range said {
				for _, other := range s.served {
					if name == other {
						both = append(both, name)
					}
				}
			}
			statements = append(statements, setOfItems(both...))
		case known:
			statements = append(statements, setOfItems(said...))
		case s.served != nil:
			statements = append(statements, setOfItems(s.served...))
		}
	case "berth.dev/context-limit":
		limit, there, sense := s.contextLimit()
		if there && !sense {
			return items{there: true, invalid: true}
		}
		statements = nil
		if there {
			state(limit.String())
		}
	}
	if len(statements) == 0 && !s.said.answered(key) {
		// The engine may state it, and has not been asked.
		return items{there: true, invalid: true}
	}
	return agree(statements)
}

// answered reports that the engine has no more to say of an attribute: it states none,
// or the page that would tell was read.
func (w *word) answered(key string) bool {
	switch key {
	case "berth.dev/engine":
		return w.scraped
	case "berth.dev/engine-version":
		return w.scraped && (w.version.state != telemetry.Missing || w.version.given)
	case "berth.dev/served-models":
		return w.scraped && (w.models.state != telemetry.Missing || w.models.given)
	case "berth.dev/context-limit":
		return w.scraped && w.contextState != telemetry.Missing
	default:
		return true
	}
}

// contextLimit is the lowest of what is declared and what the engine says. Where
// there is one that makes no sense, nothing fits.
func (s *subject) contextLimit() (limit *big.Int, there, sense bool) {
	sense = true
	lower := func(n *big.Int) {
		if n.Sign() <= 0 {
			sense = false
		}
		if !there || n.Cmp(limit) < 0 {
			limit = n
		}
		there = true
	}
	var statements []map[string]bool
	for _, texts := range []map[string]string{s.labels, s.annotations} {
		if text, ok := texts["berth.dev/context-limit"]; ok {
			statements = append(statements, setOfItems(strings.Split(text, ",")...))
		}
	}
	if s.context != 0 {
		statements = append(statements, setOfItems(big.NewInt(s.context).String()))
	}
	if declared := agree(statements); declared.there {
		n, ok := declared.integer()
		if !ok {
			return nil, true, false
		}
		lower(n)
	}
	if s.said.scraped && told(s.said.contextState) {
		n, _ := big.NewFloat(s.said.context).Int(nil)
		lower(n)
	}
	return limit, there, sense
}

// integer is the one 64-bit integer that a set consists of.
func (a items) integer() (*big.Int, bool) {
	if a.invalid || len(a.set) != 1 {
		return nil, false
	}
	for item := range a.set {
		return wholeNumber(item)
	}
	return nil, false
}

func wholeNumber(text string) (*big.Int, bool) {
	n, ok := new(big.Int).SetString(text, 10)
	return n, ok && n.IsInt64()
}

// meets reports whether the subject meets a requirement.
func (s *subject) meets(r *v1alpha1.Requirement) bool {
	a := s.attribute(r.Key)
	if a.invalid {
		return false
	}
	wanted := setOfItems(r.Values...)
	intersect := false
	for item := range a.set {
		intersect = intersect || wanted[item]
	}
	switch r.Operator {
	case "In":
		return a.there && intersect
	case "NotIn":
		return a.there && !intersect
	case "Exists":
		return a.there && len(a.set) > 0
	case "DoesNotExist":
		return !a.there
	case "Gt", "Lt":
		have, ok := a.integer()
		if !ok || len(wanted) != 1 {
			return false
		}
		for text := range wanted {
			bound, ok := wholeNumber(text)
			return ok && have.Cmp(bound) == map[v1alpha1.Operator]int{"Gt": 1, "Lt": -1}[r.Operator]
		}
	}
	return false
}

// unmet are the requirements of one class that the subject does not meet, by key,
// operator and values.
func (s *subject) unmet(requirements []v1alpha1.Requirement, class string) []v1alpha1.Requirement {
	var result []v1alpha1.Requirement
	for i := range requirements {
		if r := &requirements[i]; string(r.Class) == class && !s.meets(r) {
			result = append(result, *r)
		}
	}
	slices.SortStableFunc(result, func(a, b v1alpha1.Requirement) int {
		return strings.Compare(plain(&a), plain(&b))
	})
	return result
}

func plain(r *v1alpha1.Requirement) string {
	return r.Key + "\x00" + string(r.Operator) + "\x00" + strings.Join(r.Values, "\x00")
}

// serves tells whether the subject may serve one of the models, and whether that is
// known.
func (s *subject) serves(models []string) (serves, known bool) {
	said, knownBySaid := s.engineServes()
	if !knownBySaid && s.served == nil {
		return false, false
	}
	for _, model := range models {
		if (!knownBySaid || slices.Contains(said, model)) && (s.served == nil || slices.Contains(s.served, model)) {
			return true, true
		}
	}
	return false, true
}

func (s *subject) excluded(now telemetry.Instant) bool {
	holds := func(r yesNo, yes bool) bool {
		return s.said.scraped && r.yes == yes && r.state == telemetry.Fresh && (r.expires == 0 || now < r.expires)
	}
	return !s.ready || s.terminating || holds(s.said.asleep, true) || holds(s.said.healthy, false) || holds(s.said.ready, false)
}

// verdict is what screening comes to.
type verdict struct {
	left      []string
	removedBy map[string]string
	// quarantined are left although they are in quarantine.
	quarantined map[string]bool
	cause       string
	keys        []string
}

// naively evaluates the stages one after the other, the way the contract tells them.
func naively(subjects []subject, d *demand, now telemetry.Instant) verdict {
	v := verdict{removedBy: map[string]string{}, quarantined: map[string]bool{}}
	if len(subjects) == 0 {
		v.cause = "pool"
		return v
	}
	remaining := make([]*subject, len(subjects))
	for i := range subjects {
		remaining[i] = &subjects[i]
	}
	stage := func(name, cause string, out func(s *subject) bool) {
		if v.cause != "" {
			return
		}
		var next []*subject
		for _, s := range remaining {
			if out(s) {
				v.removedBy[s.name] = name
			} else {
				next = append(next, s)
			}
		}
		if remaining = next; len(remaining) == 0 {
			v.cause = cause
		}
	}
	ofClass := func(class string) {
		stage(class, class, func(s *subject) bool { return len(s.unmet(d.requirements, class)) > 0 })
		if v.cause == class {
			keys := map[string]bool{}
			for _, r := range d.requirements {
				if string(r.Class) == class && !keys[r.Key] {
					keys[r.Key] = true
					v.keys = append(v.keys, r.Key)
				}
			}
			slices.Sort(v.keys)
		}
	}

	stage("subset", "subset", func(s *subject) bool { return d.hasSubset && !slices.Contains(d.subset, s.address) })
	otherwise := "model_unserved"
	for _, s := range remaining {
		if _, known := s.serves(d.models); !known {
			otherwise = "model_unknown"
		}
	}
	stage("served_model", otherwise, func(s *subject) bool {
		serves, known := s.serves(d.models)
		return len(d.models) > 0 && !serves && (known || d.trusted)
	})
	ofClass("authorization")
	ofClass("safety")
	ofClass("residency")
	ofClass("capability")
	stage("context", "context", func(s *subject) bool {
		if d.context == 0 {
			return false
		}
		limit, there, sense := s.contextLimit()
		if !there {
			return !d.rules.PassContextUnknown
		}
		return !sense || big.NewInt(d.context).Cmp(limit) > 0
	})
	ofClass("placement")
	stage("health", "health", func(s *subject) bool { return s.excluded(now) })

	// Those put away first stay away, as many as the share allows; never all.
	var inside []*subject
	for _, s := range remaining {
		if s.away.in(now) {
			inside = append(inside, s)
			v.quarantined[s.name] = true
		}
	}
	slices.SortStableFunc(inside, func(a, b *subject) int { return int(b.away.since - a.away.since) })
	allowed := 0
	for allowed < len(remaining)-1 && float64(allowed+1) <= d.rules.QuarantineShare*float64(len(remaining)) {
		allowed++
	}
	for len(inside) > allowed {
		inside = inside[1:]
	}
	for _, s := range inside {
		delete(v.quarantined, s.name)
	}
	stage("quarantine", "quarantine", func(s *subject) bool { return slices.Contains(inside, s) })

	for _, s := range remaining {
		v.left = append(v.left, s.name)
	}
	return v
}

var causeOf = map[string]Cause{
	"": None, "pool": PoolEmpty, "subset": SubsetEmpty, "model_unserved": ModelUnserved, "model_unknown": ModelUnknown,
	"authorization": AuthorizationUnmet, "safety": SafetyUnmet, "residency": ResidencyUnmet, "capability": CapabilityUnmet,
	"context": ContextExceeded, "placement": PlacementUnmet, "health": Unhealthy,
}

// compare screens once and holds every part of the result against the naive
// evaluation. The latter works with names and does not know of slots, so the same
// answer for two orders of the endpoints is the same fate for each of them.
func compare(t *testing.T, x *Index, set *pool.Set, subjects []subject, d *demand, now telemetry.Instant, res *Result) {
	t.Helper()
	x.Screen(set, d.request(), d.rules, now, res)
	hold(t, set, subjects, d, now, res)
}

func hold(t *testing.T, set *pool.Set, subjects []subject, d *demand, now telemetry.Instant, res *Result) {
	t.Helper()
	want := naively(subjects, d, now)
	explain := func(what string, got, want any) {
		t.Helper()
		t.Errorf("%s: %v, want %v\nof %+v\nfor %+v at %d", what, got, want, subjects, d, now)
	}
	if res.Cause != causeOf[want.cause] {
		explain("cause", res.Cause, want.cause)
	}
	names := make([]string, 0, len(res.Slots))
	for i, slot := range res.Slots {
		if i > 0 && slot <= res.Slots[i-1] {
			explain("slots are not ascending", res.Slots, want.left)
		}
		names = append(names, set.Endpoints[slot].Name)
	}
	if !slices.Equal(names, want.left) {
		explain("left", names, want.left)
	}
	var removed [NumClasses]int
	for slot, e := range set.Endpoints {
		fate := want.removedBy[e.Name]
		if fate == "" {
			fate = "kept"
		} else {
			for class := range NumClasses {
				if class.String() == fate {
					removed[class]++
				}
			}
		}
		if got := res.Fate(slot).String(); got != fate {
			explain("fate of "+e.Name, got, fate)
		}
		if got := res.Members().Contains(slot); got != (fate == "kept") {
			explain(e.Name+" is a member of the screened set", got, fate == "kept")
		}
		if got := res.Quarantined(slot); got != want.quarantined[e.Name] {
			explain(e.Name+" is left though in quarantine", got, want.quarantined[e.Name])
		}
		unmet := subjects[slot].unmet(d.requirements, fate)
		switch rule := res.Rule(slot); {
		case (rule < 0) != (len(unmet) == 0):
			explain("rule that excludes "+e.Name, rule, unmet)
		case rule >= 0 && (string(d.requirements[rule].Class) != fate || plain(&d.requirements[rule]) != plain(&unmet[0])):
			explain("rule that excludes "+e.Name, d.requirements[rule], unmet[0])
		}
	}
	if res.Removed != removed {
		explain("removed", res.Removed, removed)
	}
	if keys := res.Keys(); !slices.Equal(keys, want.keys) {
		explain("keys", keys, want.keys)
	}
	for _, outside := range []int{-1, len(subjects), len(subjects) + 64, 1 << 40} {
		if res.Members().Contains(outside) || res.Fate(outside) != Kept || res.Rule(outside) != -1 || res.Quarantined(outside) {
			explain("slot outside the pool is of the result", outside, len(subjects))
		}
	}
}
