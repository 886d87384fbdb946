package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	profiles "github.com/berth-dev/berth/config/engines"
	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/enginemodel"
	"github.com/berth-dev/berth/internal/enginesim"
)

func (e engineFacts) name() string { return e.dialect.Name() }

// loadFields are what rungs depend on.
var loadFields = []string{"queueDepth", "activeRequests", "kvCacheUtilization"}

// A replica is an engine of a fleet, and what the pool says of it.
type replica struct {
	engineFacts
	enginesim.Load
	// declared: the pool says which engine it is.
	declared bool
}

// config makes requests so short that one ends every few tens of milliseconds,
// and prefills them one after the other, so that they do not end all at once.
func (r replica) config() enginesim.Config {
	c := enginesim.Config{
		Dialect:     r.dialect,
		Speed:       0.5,
		MaxModelLen: 64,
		Engine:      enginemodel.Config{Blocks: 256, MaxRunning: 24, MaxBatchedTokens: 24},
		Background:  r.Load,
	}
	if r.Waiting > 0 {
		c.Engine.MaxRunning = r.Running
	}
	return c
}

// member is the replica as a pool has it.
func (r replica) member(name, address string) v1alpha1.StaticEndpoint {
	m := member(name, address)
	m.Engine = ""
	if r.declared {
		m.Engine = r.name()
	}
	if r.name() == "triton-tensorrt-llm" {
		// A real one has a port of its own for its page.
		m.Metrics = &v1alpha1.EndpointMetrics{Port: &m.Port}
	}
	return m
}

// told reports that a report has the load that the engine was made to have.
func (r replica) told(o *v1alpha1.Observation) bool {
	active, running := amount(o.Fields["activeRequests"])
	queue, waiting := amount(o.Fields["queueDepth"])
	want := 0.0
	if r.Waiting > 0 {
		want = float64(r.Waiting) - r.lag
	}
	return running && waiting && active == float64(r.Running) && queue == want && o.Fields["kvCacheUtilization"].State == v1alpha1.Fresh
}

// startEngines starts a fleet of these replicas: e1, e2, ...
func startEngines(t *testing.T, binary string, replicas []replica, s spec) *fleet {
	t.Helper()
	for _, r := range replicas {
		s.engines = append(s.engines, r.config())
	}
	edit := s.members
	s.members = func(members []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
		for i, r := range replicas {
			members[i] = r.member(members[i].Name, fmt.Sprintf("%s:%d", members[i].Address, members[i].Port))
		}
		if edit != nil {
			members = edit(members)
		}
		return members
	}
	// A page may take longer, and a reading lives longer, than a busy machine keeps
	// engines and picker waiting.
	patient := tree{"telemetry": tree{"timeout": "5s"}}
	merge(patient, s.berth)
	s.berth = patient
	s.binary, s.envoy = binary, subsetFromHeader
	f := start(t, s)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, o := range f.replicas() {
			var text strings.Builder
			if err := console.Observation(&text, time.Now(), &o); err != nil {
				text.WriteString(err.Error())
			}
			t.Logf("at the end of %s:\n%s", o.Replica.Name, text.String())
		}
	})
	return f
}

// twoOfEach are two busy replicas of each engine, no two equally busy. Of each
// pair the pool declares the first.
func twoOfEach() []replica {
	var all []replica
	for _, e := range allEngines {
		for _, declared := range []bool{true, false} {
			n := len(all)
			all = append(all, replica{e, enginesim.Load{Running: 3 + n, Waiting: 2 + n}, declared})
		}
	}
	return all
}

// quick is a directory with the built-in profiles, changed so that tests need
// not wait long: for windows, for pages that change seldom, and for doubt.
func quick(t *testing.T) tree {
	t.Helper()
	dir := t.TempDir()
	for _, e := range allEngines {
		text, err := profiles.FS.ReadFile(e.name() + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, edit := range []struct{ key, value string }{{"window", "2s"}, {"every", "1s"}, {"stillAfter", e.stillAfter}} {
			text = regexp.MustCompile(`\b`+edit.key+`: \d+[ms]+`).ReplaceAll(text, []byte(edit.key+": "+edit.value))
		}
		if err := os.WriteFile(filepath.Join(dir, e.name()+".yaml"), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return tree{"telemetry": tree{"profiles": dir, "idle": "1s"}}
}

// askOf has a request answered by one of some replicas.
func (f *fleet) askOf(addresses []string, prompt string) answer {
	f.t.Helper()
	req := f.request(f.t.Context(), http.MethodPost, completions, fmt.Sprintf(`{"model":"sim-model","prompt":%q,"max_tokens":1}`, prompt))
	req.Header.Set("X-Test-Subset", strings.Join(addresses, ","))
	return f.do(f.h1, req)
}

// pageValue reads one sample of an engine's page as a person would.
func (f *fleet) pageValue(engine int, e engineFacts, prefix string) float64 {
	f.t.Helper()
	for line := range strings.Lines(string(fetch(f.t, "http://"+f.engines[engine].Addr()+e.page))) {
		if strings.HasPrefix(line, prefix) {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				f.t.Fatalf("%s: %v", line, err)
			}
			return v
		}
	}
	return -1
}

// reported waits until the report on a replica is as it should be.
func (f *fleet) reported(engine int, what string, holds func(*v1alpha1.Observation) bool) *v1alpha1.Observation {
	f.t.Helper()
	var got *v1alpha1.Observation
	eventually(f.t, fmt.Sprintf("%s: %s", nameOf(engine), what), func() bool {
		got = f.replica(nameOf(engine))
		return holds(got)
	})
	return got
}

// nameOf is the name of an engine by its place in the fleet.
func nameOf(engine int) string { return fmt.Sprintf("e%d", engine+1) }

// loadIs reports that all load fields of a replica are in a state.
func loadIs(o *v1alpha1.Observation, state v1alpha1.State) bool {
	for _, field := range loadFields {
		if o.Fields[field].State != state {
			return false
		}
	}
	return true
}

// fault sets what is wrong with an engine.
func (f *fleet) fault(engine int, faults enginesim.Faults) {
	f.t.Helper()
	if err := f.engines[engine].SetFaults(faults); err != nil {
		f.t.Fatal(err)
	}
}

// evidence is what a decision knew of a field at one of its candidates.
func evidence(d v1alpha1.Decision, field, replica string) (e v1alpha1.FieldEvidence, ok bool) {
	at := slices.IndexFunc(d.Fields, func(u v1alpha1.FieldUse) bool { return u.Field == field })
	for _, c := range d.Candidates {
		if c.Replica == replica && at >= 0 && at < len(c.Readings) {
			return c.Readings[at], true
		}
	}
	return e, false
}

// inFull is all that a report says of a field, for a test to complain about.
func inFull(r v1alpha1.Reading) string {
	text, err := yaml.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return "\n" + string(text)
}

// amount is the number that a fresh reading tells.
func amount(r v1alpha1.Reading) (v float64, ok bool) {
	if r.State != v1alpha1.Fresh {
		return 0, false
	}
	return number(r)
}

func TestTwoReplicasOfEachEngine(t *testing.T) {
	binary := buildPicker(t)
	for name, scenario := range map[string]func(*testing.T, string){
		"healthy ones are read for what they are":                        healthyEngines,
		"S3 one whose page is frozen is neither believed nor starved":    frozenEngines,
		"R4 M6 M13 M18 one without a page is not idle, and serves still": pagelessEngines,
		"one that is asleep or unhealthy gets nothing":                   sleepingEngines,
		"each fault of a page is told and spoils no more than it must":   faultyPages,
		"another engine at the same address is read as what it is":       replacedEngines,
		"R5 one that was killed is left":                                 killedEngines,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, binary)
		})
	}
}

func healthyEngines(t *testing.T, binary string) {
	replicas := twoOfEach()
	f := startEngines(t, binary, replicas, spec{})
	for i, r := range replicas {
		o := f.reported(i, fmt.Sprintf("its load is %+v", r.Load), r.told)
		if o.Engine != r.name() || o.Declared != "" || !strings.HasPrefix(o.Profile, r.name()) {
			t.Errorf("%s: engine %q by profile %q, declared %q", r.name(), o.Engine, o.Profile, o.Declared)
		}
		if o.Replica.Incarnation != 1 || o.Order != "normal" || o.Excluded != "" || o.ScrapeError != "" {
			t.Errorf("%s: incarnation %d, order %q, excluded %q, failing %q", r.name(), o.Replica.Incarnation, o.Order, o.Excluded, o.ScrapeError)
		}
	}

	// A cache that is in use changes from step to step: an engine that stands still
	// shows one value.
	f.hang(true)
	for i, r := range replicas {
		const field = "kvCacheUtilization"
		f.reported(i, field+" is what the page says", func(o *v1alpha1.Observation) bool {
			usage, known := amount(o.Fields[field])
			page := f.pageValue(i, r.engineFacts, r.load[field].prefix)
			return known && usage > 0 && usage-page < 1e-6 && page-usage < 1e-6
		})
	}
	f.hang(false)

	for i, r := range replicas {
		if a := f.askOf([]string{f.engines[i].Addr()}, "hello"); a.status != http.StatusOK || a.engine() != nameOf(i) {
			t.Errorf("%s: status %d from %q: %s", r.name(), a.status, a.engine(), a.body)
		}
	}
	for i, r := range replicas {
		f.truthful(i, r, "is well", well)
	}

	for i, e := range f.engines {
		if n := e.Arrivals().Drained; n != 0 {
			t.Errorf("%s: a page that empties when it is read was read %d times", replicas[i].name(), n)
		}
	}
	for _, page := range []string{f.admin + "/v1alpha1/replicas", f.admin + "/v1alpha1/decisions", f.metrics + "/metrics"} {
		if strings.Contains(string(fetch(t, page)), enginesim.SGLangAPIKey) {
			t.Errorf("%s tells the key that is on a page of SGLang", page)
		}
	}
}

// frozenEngines has pages that stand still at high numbers, while the engine
// behind each has nothing to do any more: as after a mass abort, with requests
// that never come, since the numbers say so.
func frozenEngines(t *testing.T, binary string) {
	var replicas []replica
	for _, e := range allEngines {
		replicas = append(replicas, replica{e, enginesim.Load{Running: 8, Waiting: 7}, true}, replica{e, enginesim.Load{Running: 6, Waiting: 2}, true})
	}
	f := startEngines(t, binary, replicas, spec{berth: quick(t)})
	for i, r := range replicas {
		f.reported(i, "its load is known", r.told)
		f.truthful(i, r, "before it is frozen", well)
	}
	for stuck := 0; stuck < len(replicas); stuck += 2 {
		f.fault(stuck, enginesim.Faults{FreezePage: true})
		if err := f.engines[stuck].SetLoad(enginesim.Load{}); err != nil {
			t.Fatal(err)
		}
	}
	for stuck := 0; stuck < len(replicas); stuck += 2 {
		r := replicas[stuck]
		o := f.reported(stuck, "its load is stale since its page is frozen", func(o *v1alpha1.Observation) bool {
			return !slices.ContainsFunc(loadFields, func(field string) bool { return !isFrozen(o.Fields[field]) })
		})
		queue := f.pageValue(stuck, r.engineFacts, r.load["queueDepth"].prefix)
		if o.Fields["queueDepth"].Value != queue || queue < 5 {
			t.Errorf("%s: the stale queueDepth is %v, want that of the page, %v, of at least 5", r.name(), o.Fields["queueDepth"].Value, queue)
		}
		pair := []string{f.engines[stuck].Addr(), f.engines[stuck+1].Addr()}
		n := 0
		eventually(t, r.name()+": the frozen replica gets a request", func() bool {
			f.reported(stuck+1, "its load is known", func(o *v1alpha1.Observation) bool { return loadIs(o, v1alpha1.Fresh) })
			n++
			a := f.askOf(pair, fmt.Sprint("request ", n))
			d := f.record(a.decision())
			known, ok := evidence(d, "queueDepth", nameOf(stuck))
			if a.status != http.StatusOK || !ok || known.State != "stale" || known.Estimate != nil && *known.Estimate >= queue {
				t.Fatalf("%s: status %d on rung %q with a queue that is %s %v, taken for %v; want what is stale replaced",
					r.name(), a.status, d.Rung, known.State, valueOf(known.Value), valueOf(known.Estimate))
			}
			return a.engine() == nameOf(stuck) && d.Rung == "partial"
		})
		// A request that came and went, and moved nothing on the page, is no reason
		// to believe it.
		ended := time.Now()
		f.reported(stuck, "it was read again", func(o *v1alpha1.Observation) bool {
			queue := o.Fields["queueDepth"]
			if !isFrozen(queue) {
				t.Fatalf("%s: after a request the frozen page counts again: %s", r.name(), inFull(queue))
			}
			return queue.ObservedAt.Sub(ended) > time.Second
		})
	}
	for stuck := 0; stuck < len(replicas); stuck += 2 {
		f.truthful(stuck, replicas[stuck], "whose page is frozen", frozen)
		f.truthful(stuck+1, replicas[stuck+1], "beside it", well)
		pair := []string{f.engines[stuck].Addr(), f.engines[stuck+1].Addr()}
		const requests = 30
		got := 0
		for n := range requests {
			a := f.askOf(pair, fmt.Sprint("share ", n))
			if a.status != http.StatusOK {
				t.Errorf("%s: status %d from %q", replicas[stuck].name(), a.status, a.engine())
			}
			if a.engine() == nameOf(stuck) {
				got++
			}
		}
		// By what its page says it would get none, and all by what it does.
		if got < requests/10 || got > requests-requests/10 {
			t.Errorf("%s: the frozen replica got %d of %d requests, want about as many as the other", replicas[stuck].name(), got, requests)
		}
	}

	for stuck := 0; stuck < len(replicas); stuck += 2 {
		if err := f.engines[stuck].SetLoad(enginesim.Load{Running: 2}); err != nil {
			t.Fatal(err)
		}
		f.fault(stuck, enginesim.Faults{})
	}
	for stuck := 0; stuck < len(replicas); stuck += 2 {
		f.truthful(stuck, replicas[stuck], "whose page moves again", well)
		pair := []string{f.engines[stuck].Addr(), f.engines[stuck+1].Addr()}
		eventually(t, replicas[stuck].name()+": it is preferred for what it says now", func() bool {
			a := f.askOf(pair, "again")
			return a.engine() == nameOf(stuck) && a.header.Get("X-Berth-Rung") == "full"
		})
	}
}

func valueOf(v *float64) any {
	if v == nil {
		return nil
	}
	return *v
}

// pagelessEngines has engines without a page beside those that have one, and
// nothing to do: they would win if nothing to say were nothing to do.
func pagelessEngines(t *testing.T, binary string) {
	ways := []struct {
		name   string
		faults enginesim.Faults
		reason string
	}{
		{"a page that is not there", enginesim.Faults{PageStatus: http.StatusNotFound}, "status_404"},
		{"a web page", enginesim.Faults{Page: enginesim.PageFaults{Instead: enginesim.InsteadHTML}}, "not_text"},
		{"JSON", enginesim.Faults{Page: enginesim.PageFaults{Instead: enginesim.InsteadJSON}}, "not_text"},
		{"an empty page", enginesim.Faults{Page: enginesim.PageFaults{Instead: enginesim.InsteadEmpty}}, "empty"},
		{"a port that refuses", enginesim.Faults{}, "refused"},
	}
	// Of each engine: one that does little, one that is busy, one for each way of
	// having no page, and one that nobody has declared.
	each := 2 + len(ways) + 1
	var replicas []replica
	for _, e := range allEngines {
		replicas = append(replicas, replica{e, enginesim.Load{Running: 1}, true}, replica{e, enginesim.Load{Running: 6, Waiting: 3}, true})
		for range ways {
			replicas = append(replicas, replica{e, enginesim.Load{}, true})
		}
		replicas = append(replicas, replica{e, enginesim.Load{}, false})
	}
	closed := netip.MustParseAddrPort(closedPort(t))
	f := startEngines(t, binary, replicas, spec{
		unscraped: true,
		prepare: func(engines []*enginesim.Server) {
			for i, e := range engines {
				way := i%each - 2
				switch {
				case way < 0:
					continue
				case way == len(ways):
					way = 0
				}
				if err := e.SetFaults(ways[way].faults); err != nil {
					t.Fatal(err)
				}
			}
		},
		members: func(members []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			for i := range members {
				if way := i%each - 2; way == len(ways)-1 {
					port := int(closed.Port())
					members[i].Metrics = &v1alpha1.EndpointMetrics{Port: &port}
				}
			}
			return members
		},
	})

	for first := 0; first < len(replicas); first += each {
		name := replicas[first].name()
		little, busy, busier := first, first+1, (first+1+each)%len(replicas)
		for _, i := range []int{little, busy, busier} {
			f.reported(i, "its load is known", func(o *v1alpha1.Observation) bool {
				return loadIs(o, v1alpha1.Fresh) && (i == little || replicas[i].told(o))
			})
		}
		for w, way := range ways {
			missing := first + 2 + w
			o := f.reported(missing, "it was asked", func(o *v1alpha1.Observation) bool { return o.ScrapeError != "" })
			if o.ScrapeError != way.reason || o.Engine != name || o.Excluded != "" {
				t.Errorf("%s, %s: failing %q, engine %q, excluded %q; want %s", name, way.name, o.ScrapeError, o.Engine, o.Excluded, way.reason)
			}
			f.truthful(missing, replicas[missing], "with "+way.name, pageless)
			with := []string{f.engines[missing].Addr(), f.engines[little].Addr(), f.engines[busy].Addr(), f.engines[busier].Addr()}
			n := 0
			eventually(t, name+": requests are placed by what is known of the others", func() bool {
				a := f.askOf(with, fmt.Sprint("request ", n))
				d := f.record(a.decision())
				if d.Rung != "partial" {
					return false // the picker was kept from reading them for too long
				}
				known, ok := evidence(d, "queueDepth", nameOf(missing))
				if a.engine() != nameOf(little) || !ok || known.State != "missing" || known.Value != nil {
					t.Errorf("%s, %s: status %d from %q, with a queue that is %s %v; want the one that does little",
						name, way.name, a.status, a.engine(), known.State, valueOf(known.Value))
				}
				n++
				return n == 3
			})
			if a := f.askOf(with[:1], "alone"); a.status != http.StatusOK || a.engine() != nameOf(missing) {
				t.Errorf("%s, %s: alone, status %d from %q", name, way.name, a.status, a.engine())
			}
		}
		undeclared := first + 2 + len(ways)
		o := f.reported(undeclared, "it was asked", func(o *v1alpha1.Observation) bool { return o.ScrapeError != "" })
		if o.Engine != "unknown" || o.Profile != "" {
			t.Errorf("%s without a page and undeclared: engine %q by profile %q, want unknown by none", name, o.Engine, o.Profile)
		}
		for field, got := range o.Fields {
			if !absent(got, v1alpha1.SupportUnknown, "not read") {
				t.Errorf("%s without a page and undeclared: %s should be unknown since nothing was read: %s", name, field, inFull(got))
			}
		}
		if n := f.engines[undeclared].Arrivals().Drained; n != 0 {
			t.Errorf("%s: a page that empties when it is read was read %d times", name, n)
		}
	}
}

// A door is in front of an engine, and answers for it at one path.
type door struct {
	address string
	path    string
	status  atomic.Int64 // 0: the engine answers itself
}

func newDoor(t *testing.T, engine *enginesim.Server, path string) *door {
	t.Helper()
	d := &door{path: path}
	through := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine.Addr()})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := d.status.Load(); status != 0 && r.URL.Path == d.path {
			w.WriteHeader(int(status))
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	d.address = s.Listener.Addr().String()
	return d
}

// sleepingEngines has engines that say, each in its way, that they do not serve.
// ATOM has no word for it.
func sleepingEngines(t *testing.T, binary string) {
	cases := []struct {
		engine string
		field  string
		value  bool
		// path and status of a page that says it; of none, the engine sleeps.
		path   string
		status int64
		// others are fields that change with it.
		others []string
	}{
		{"vllm", "sleeping", true, "", 0, nil},
		{"vllm", "health", false, "/health", 503, nil},
		{"sglang", "ready", false, "", 0, nil},
		{"trtllm-serve", "health", false, "/health", 503, nil},
		// The device has nothing to do.
		{"triton-tensorrt-llm", "ready", false, "", 0, []string{"gpuUtilization", "power"}},
		{"triton-tensorrt-llm", "health", false, "/v2/health/live", 400, nil},
	}
	var replicas []replica
	for _, tc := range cases {
		e := allEngines[slices.IndexFunc(allEngines, func(e engineFacts) bool { return e.name() == tc.engine })]
		// Of two there is always one that the latest report says to run.
		replicas = append(replicas, replica{e, enginesim.Load{Running: 2}, true}, replica{e, enginesim.Load{Running: 6, Waiting: 2}, true})
	}
	doors := make([]*door, len(replicas))
	f := startEngines(t, binary, replicas, spec{
		berth: quick(t),
		prepare: func(engines []*enginesim.Server) {
			for i, tc := range cases {
				doors[2*i] = newDoor(t, engines[2*i], tc.path)
			}
		},
		members: func(members []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			for i, d := range doors {
				if d != nil {
					members[i] = replicas[i].member(members[i].Name, d.address)
				}
			}
			return members
		},
	})
	sleep := func(i int, asleep bool) {
		t.Helper()
		switch {
		case cases[i].path == "":
			f.fault(2*i, enginesim.Faults{Sleep: asleep})
		case asleep:
			doors[2*i].status.Store(cases[i].status)
		default:
			doors[2*i].status.Store(0)
		}
	}
	for i, tc := range cases {
		// Both are awake, and the one that does little is preferred.
		pair := []string{doors[2*i].address, f.engines[2*i+1].Addr()}
		eventually(t, tc.engine+": the replica that does little serves", func() bool { return f.askOf(pair, "awake").engine() == nameOf(2*i) })
	}
	for i := range cases {
		sleep(i, true)
	}
	for i, tc := range cases {
		o := f.reported(2*i, tc.field+" says so", func(o *v1alpha1.Observation) bool {
			return o.Fields[tc.field].State == v1alpha1.Fresh && o.Fields[tc.field].Value == tc.value
		})
		if o.Excluded != "asleep_or_unhealthy" {
			t.Errorf("%s whose %s is %v: excluded %q, want asleep_or_unhealthy", tc.engine, tc.field, tc.value, o.Excluded)
			continue
		}
		pair := []string{doors[2*i].address, f.engines[2*i+1].Addr()}
		for n := range 5 {
			a := f.askOf(pair, fmt.Sprint("request ", n))
			if a.status != http.StatusOK || a.engine() != nameOf(2*i+1) {
				t.Errorf("%s whose %s is %v: status %d from %q, want the other", tc.engine, tc.field, tc.value, a.status, a.engine())
			}
			if d := f.record(a.decision()); d.Screened != 1 {
				t.Errorf("%s whose %s is %v: %d screened, want one", tc.engine, tc.field, tc.value, d.Screened)
			}
		}
		expectRefusal(t, f.askOf(pair[:1], "alone"), 503, "unhealthy")
	}
	for i, tc := range cases {
		r := replicas[2*i]
		// Of an engine that sleeps the page stands still, as far as it is about requests.
		is := well
		if tc.path == "" {
			is = frozen
		}
		o := f.truthful(2*i, r, fmt.Sprintf("whose %s is %v", tc.field, tc.value), is, append(tc.others, tc.field)...)
		asked := r.stated[tc.field]
		if got := o.Fields[tc.field]; got.Value != tc.value || !r.readFrom(got, asked) || !rightly(got, asked.qualityOf(got.Value), false) {
			t.Errorf("%s: %s should be %v from %s%s: %s", tc.engine, tc.field, tc.value, asked.path, asked.metric, inFull(got))
		}
		f.truthful(2*i+1, replicas[2*i+1], "beside it", well)
	}
	for i := range cases {
		sleep(i, false)
	}
	for i, tc := range cases {
		f.reported(2*i, "it is back", func(o *v1alpha1.Observation) bool { return o.Excluded == "" && o.Fields[tc.field].Value == !tc.value })
		f.truthful(2*i, replicas[2*i], "that is back", well)
		if a := f.askOf([]string{doors[2*i].address}, "back"); a.status != http.StatusOK {
			t.Errorf("%s: status %d after it woke", tc.engine, a.status)
		}
	}
}

// newer is a dialect whose engine states another version.
type newer struct {
	enginesim.Dialect
	version string
}

const newerVersion = "99.1.0"

func (n newer) Pages() enginesim.Pages {
	pages := enginesim.Pages{}
	for path, page := range n.Dialect.Pages() {
		of := page.Make
		page.Make = func(s enginesim.State) enginesim.Content {
			c := of(s)
			if !page.Telemetry {
				c.Body = bytes.ReplaceAll(c.Body, []byte(n.version), []byte(newerVersion))
			}
			return c
		}
		pages[path] = page
	}
	return pages
}

// replacedEngines has engines that end, and others that begin at the same
// address: of a newer version, and of the next kind.
func replacedEngines(t *testing.T, binary string) {
	type change struct {
		before, after replica
	}
	var changes []change
	var replicas []replica
	for i, e := range allEngines {
		load, next := enginesim.Load{Running: 4, Waiting: 3}, enginesim.Load{Running: 6, Waiting: 5}
		upgraded, other := e, allEngines[(i+1)%len(allEngines)]
		if upgraded.version != "" {
			upgraded.dialect, upgraded.version = newer{e.dialect, e.version}, newerVersion
		}
		for _, c := range []change{
			{before: replica{e, load, true}, after: replica{upgraded, next, true}},
			{before: replica{e, load, false}, after: replica{other, next, false}},
			{before: replica{e, load, true}, after: replica{other, next, true}},
		} {
			// Where the page of the declared engine was, the other may have none.
			if c.before.declared && c.before.page != c.after.page {
				continue
			}
			changes = append(changes, c)
			replicas = append(replicas, c.before)
		}
	}
	f := startEngines(t, binary, replicas, spec{berth: quick(t)})
	for i, c := range changes {
		f.reported(i, "it is read", func(o *v1alpha1.Observation) bool {
			// A process that has counted nothing yet may end without a trace.
			throughput, known := amount(o.Fields["promptThroughput"])
			return o.Engine == c.before.name() && c.before.told(o) && o.Replica.EngineVersion == c.before.version && known && throughput > 0
		})
	}
	for i := range changes {
		f.engines[i].Die()
	}
	for i := range changes {
		f.reported(i, "it is gone", func(o *v1alpha1.Observation) bool { return o.ScrapeError == "refused" })
	}
	for i, c := range changes {
		config := c.after.config()
		config.Name = nameOf(i)
		e, err := enginesim.New(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start(f.engines[i].Addr()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		f.engines[i] = e
	}
	for i, c := range changes {
		what := fmt.Sprintf("%s at the address of a %s (declared: %v)", c.after.name(), c.before.name(), c.before.declared)
		o := f.reported(i, what+" is read", func(o *v1alpha1.Observation) bool {
			return o.Engine == c.after.name() && c.after.told(o) && o.Replica.EngineVersion == c.after.version &&
				(o.Fields["servedModels"].State == v1alpha1.Fresh) == c.after.models
		})
		if o.Replica.Incarnation != 2 {
			t.Errorf("%s: incarnation %d, want 2", what, o.Replica.Incarnation)
		}
		declared := ""
		if c.before.declared && c.before.name() != c.after.name() {
			declared = c.before.name()
		}
		if o.Declared != declared {
			t.Errorf("%s: declared %q, want %q", what, o.Declared, declared)
		}
		for field, s := range c.after.load {
			if got := o.Fields[field]; got.Source == nil || got.Source.Path != c.after.page || got.Source.Metric != s.family {
				t.Errorf("%s: %s is read from %+v, want %s at %s", what, field, got.Source, s.family, c.after.page)
			}
		}
		if n := f.engines[i].Arrivals().Drained; n != 0 {
			t.Errorf("%s: a page that empties when it is read was read %d times", what, n)
		}
	}
}

// killedEngines has one of each engine die while it does little.
func killedEngines(t *testing.T, binary string) {
	var replicas []replica
	for _, e := range allEngines {
		replicas = append(replicas, replica{e, enginesim.Load{Running: 1}, true}, replica{e, enginesim.Load{Running: 6, Waiting: 3}, true})
	}
	f := startEngines(t, binary, replicas, spec{})
	for i := range replicas {
		f.reported(i, "its load is known", func(o *v1alpha1.Observation) bool { return loadIs(o, v1alpha1.Fresh) })
	}
	for killed := 0; killed < len(replicas); killed += 2 {
		f.engines[killed].Die()
	}
	for killed := 0; killed < len(replicas); killed += 2 {
		name := replicas[killed].name()
		f.reported(killed, "its end was noticed", func(o *v1alpha1.Observation) bool { return o.Order == "last" && o.ScrapeError == "refused" })
		pair := []string{f.engines[killed].Addr(), f.engines[killed+1].Addr()}
		for n := range 5 {
			if a := f.askOf(pair, fmt.Sprint("request ", n)); a.status != http.StatusOK || a.engine() != nameOf(killed+1) {
				t.Errorf("%s: status %d from %q, want the one that is left", name, a.status, a.engine())
			}
		}
	}
	for killed := 0; killed < len(replicas); killed += 2 {
		o := f.reported(killed, "what it said has expired", func(o *v1alpha1.Observation) bool { return loadIs(o, v1alpha1.Stale) })
		if queue := o.Fields["queueDepth"]; queue.Value != 0.0 || queue.ExpiresAt == nil {
			t.Errorf("%s: the stale queueDepth should be the last that was read, 0: %s", replicas[killed].name(), inFull(queue))
		}
		eventually(t, replicas[killed].name()+": requests are placed by what is known of the other", func() bool {
			a := f.askOf([]string{f.engines[killed].Addr(), f.engines[killed+1].Addr()}, "expired")
			if a.status != http.StatusOK || a.engine() != nameOf(killed+1) {
				t.Errorf("%s: status %d from %q, want the one that is left", replicas[killed].name(), a.status, a.engine())
			}
			return a.header.Get("X-Berth-Rung") == "partial"
		})
	}
}
