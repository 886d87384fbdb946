package placement

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/datadriven"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// TestScripts plays conversations between a pool, its readings and placement.
// Each command that changes something answers nothing. Commands:
//
//	pool NAME...                                the members; those that stay keep what is known of them
//	plan [queue=W] [active=W] [cache=W] [given=W] [quorum=Q]   given scores 1 everywhere; quorum 0.5
//	scrape NAME... [queue=N] [active=N] [cache=N] [ttl=D] [frozen]  a page, asked for and answered now; ttl 10s
//	begin NAME... | page NAME... [as scrape]    the same in two steps
//	fail NAME...                                a scrape that began yields nothing
//	send NAME N | finish NAME N                 N requests begin or end there
//	answered NAME... | refused NAME...          the last connection
//	latency NAME D                              a finished request's time to first byte
//	advance D                                   time passes
//	order [key=K]                               one decision: rung, use of the load fields, and the rows in order
//	burst N                                     N decisions, each sent on at once: where they went
//	ask N                                       N decisions that are not sent: whether they are even
//
// In an order, queue=2 is a reading with what is pending, queue~2 an imputed one.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{
			registry: pool.NewRegistry("default/pool", false),
			now:      now,
			marks:    map[string]uint32{},
			units:    map[string][]pool.Unit{},
		}
		datadriven.RunTest(t, path, s.play)
	})
}

type script struct {
	registry *pool.Registry
	plan     *Plan
	now      telemetry.Instant
	marks    map[string]uint32
	units    map[string][]pool.Unit
	// asked numbers the decisions, for their keys.
	asked int
}

func (s *script) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "pool":
		var specs []pool.Spec
		for _, name := range plain(d) {
			specs = append(specs, pool.Spec{Name: name, Address: addressOf(name), Ready: true})
		}
		if err := s.registry.Update("default/pool", specs); err != nil {
			d.Fatalf(t, "%v", err)
		}
	case "plan":
		quorum := number(t, d, "quorum", 0.5)
		one := make([]float64, len(s.registry.Set().Endpoints))
		for i := range one {
			one[i] = 1
		}
		s.plan = planOf(t, quorum,
			queue(number(t, d, "queue", 0)), active(number(t, d, "active", 0)), cache(number(t, d, "cache", 0)),
			given(number(t, d, "given", 0), one...))
	case "scrape":
		for _, name := range plain(d) {
			s.page(t, d, name, s.endpoint(t, d, name).BeginScrape())
		}
	case "begin":
		for _, name := range plain(d) {
			s.marks[name] = s.endpoint(t, d, name).BeginScrape()
		}
	case "page":
		for _, name := range plain(d) {
			s.page(t, d, name, s.marks[name])
		}
	case "fail":
		for _, name := range plain(d) {
			s.endpoint(t, d, name).ScrapeFailed("timeout")
		}
	case "send":
		name := plain(d)[0]
		for range count(t, d, 1) {
			s.units[name] = append(s.units[name], s.endpoint(t, d, name).Take(s.now))
		}
	case "finish":
		name := plain(d)[0]
		for range count(t, d, 1) {
			s.units[name][0].Release()
			s.units[name] = s.units[name][1:]
		}
	case "answered":
		for _, name := range plain(d) {
			s.endpoint(t, d, name).Answered()
		}
	case "refused":
		for _, name := range plain(d) {
			s.endpoint(t, d, name).Refused()
		}
	case "latency":
		args := plain(d)
		s.endpoint(t, d, args[0]).Observe(duration(t, d, args[1]), s.now)
	case "advance":
		s.now = s.now.Add(duration(t, d, plain(d)[0]))
	case "order":
		var key uint64
		d.MaybeScanArgs(t, "key", &key)
		return s.order(key)
	case "burst":
		return s.burst(count(t, d, 0))
	case "ask":
		return s.ask(count(t, d, 0))
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

// plain are the arguments without a value, frozen apart.
func plain(d *datadriven.TestData) []string {
	var names []string
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 && arg.Key != "frozen" {
			names = append(names, arg.Key)
		}
	}
	return names
}

func number(t *testing.T, d *datadriven.TestData, key string, otherwise float64) float64 {
	text := ""
	if d.MaybeScanArgs(t, key, &text); text == "" {
		return otherwise
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

func count(t *testing.T, d *datadriven.TestData, arg int) int {
	n, err := strconv.Atoi(plain(d)[arg])
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

func duration(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

// addressOf gives each name an address of its own, the same each time.
func addressOf(name string) netip.AddrPort {
	h := xxhash.Sum64String(name)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(h >> 16), byte(h >> 8), byte(h)}), 8000)
}

func (s *script) endpoint(t *testing.T, d *datadriven.TestData, name string) *pool.Endpoint {
	slot, ok := s.registry.Set().ByAddress(addressOf(name))
	if !ok {
		d.Fatalf(t, "no endpoint %s", name)
	}
	return s.registry.Set().Endpoints[slot]
}

var loadNames = [numLoadFields]string{"queue", "active", "cache"}

func (s *script) page(t *testing.T, d *datadriven.TestData, name string, mark uint32) {
	ttl := "10s"
	d.MaybeScanArgs(t, "ttl", &ttl)
	recorded := telemetry.Fresh
	if d.HasArg("frozen") {
		recorded = telemetry.Stale
	}
	page := &telemetry.Snapshot{}
	for i, f := range LoadFields {
		if !d.HasArg(loadNames[i]) {
			continue
		}
		page.Readings[f] = telemetry.Reading{
			Value: number(t, d, loadNames[i], 0), Recorded: recorded,
			ObservedAt: s.now, ExpiresAt: s.now.Add(duration(t, d, ttl)),
		}
	}
	e := s.endpoint(t, d, name)
	e.Answered()
	e.Publish(page, mark)
}

func (s *script) decide(key uint64) (*pool.Set, *Evidence, *Result) {
	set := s.registry.Set()
	var slots []int32
	for slot := range set.Endpoints {
		slots = append(slots, int32(slot))
	}
	ev, res := &Evidence{}, &Result{}
	ev.Gather(set, slots, s.now)
	s.plan.Place(ev, key, MaxFallbacks, res)
	return set, ev, res
}

// next decides for a key that no decision of the script had before.
func (s *script) next() (*pool.Set, *Result) {
	s.asked++
	set, _, res := s.decide(xxhash.Sum64String(fmt.Sprint("decision-", s.asked)))
	return set, res
}

func (s *script) order(key uint64) string {
	set, ev, res := s.decide(key)
	var out strings.Builder
	out.WriteString(res.Rung.String())
	for i, u := range res.Uses {
		if u != Unused {
			fmt.Fprintf(&out, ", %s %s", loadNames[i], u)
		}
	}
	out.WriteByte('\n')
	for _, row := range res.Ranked {
		fmt.Fprintf(&out, "%s %s", set.Endpoints[row].Name, show(res.Total[row:row+1]))
		for i, values := range res.Estimate {
			if values == nil {
				continue
			}
			sign := "="
			if ev.Load[i].State[row] != telemetry.Fresh {
				sign = "~"
			}
			fmt.Fprintf(&out, " %s%s%s", loadNames[i], sign, show(values[row:row+1]))
		}
		if ev.InFlight[row] > 0 {
			fmt.Fprintf(&out, " in-flight=%d", ev.InFlight[row])
		}
		if ev.Pending[row] > 0 {
			fmt.Fprintf(&out, " pending=%d", ev.Pending[row])
		}
		if ev.Last[row] {
			out.WriteString(" last")
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func (s *script) burst(n int) string {
	counts := make([]int, len(s.registry.Set().Endpoints))
	var rungs []string
	for range n {
		set, res := s.next()
		e := set.Endpoints[res.Ranked[0]]
		s.units[e.Name] = append(s.units[e.Name], e.Take(s.now))
		counts[res.Ranked[0]]++
		if r := res.Rung.String(); len(rungs) == 0 || rungs[len(rungs)-1] != r {
			rungs = append(rungs, r)
		}
	}
	out := strings.Join(rungs, ", then ") + ":"
	for row, e := range s.registry.Set().Endpoints {
		out += fmt.Sprintf(" %s %d", e.Name, counts[row])
	}
	return out + "\n"
}

func (s *script) ask(n int) string {
	counts := make([]int, len(s.registry.Set().Endpoints))
	rung := ""
	for range n {
		_, res := s.next()
		counts[res.Ranked[0]]++
		rung = res.Rung.String()
	}
	even := float64(n) / float64(len(counts))
	for _, c := range counts {
		if float64(c) < 0.9*even || float64(c) > 1.1*even {
			return fmt.Sprintf("%s: %v\n", rung, counts)
		}
	}
	return rung + ": every share within 10 % of even\n"
}
