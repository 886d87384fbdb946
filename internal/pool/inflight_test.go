package pool

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/telemetry"
)

// ledger is the naive account of one pool: it remembers every unit and every
// scrape by the number of the step at which it happened, and counts afresh each
// time it is asked.
type ledger struct {
	registry *Registry
	step     int
	// present are the members by name; lives are all that ever were.
	present map[string]*liveAccount
	lives   []*liveAccount
	units   []*unitAccount
}

type liveAccount struct {
	live *Live
	// scraping is the scrape in flight, nil for none.
	scraping *scrapeAccount
	// seen is the step at which the scrape behind the snapshot began; 0 before
	// the first page.
	seen int
}

type scrapeAccount struct {
	began int
	mark  uint32
}

type unitAccount struct {
	unit  Unit
	at    *liveAccount // nil once released
	taken int
}

// newLedger begins with three of the four names as members.
func newLedger(t *rapid.T) *ledger {
	l := &ledger{registry: NewRegistry("default/pool", false), present: map[string]*liveAccount{}}
	l.set(t, []string{"a", "b", "c"})
	return l
}

var names = []string{"a", "b", "c", "d"}

// set makes the named endpoints the members of the pool, each at its address of
// always.
func (l *ledger) set(t *rapid.T, members []string) {
	var specs []Spec
	for _, name := range members {
		specs = append(specs, spec(name, "uid-"+name, fmt.Sprintf("10.0.0.%d:8000", name[0])))
	}
	if err := l.registry.Update("default/pool", specs); err != nil {
		t.Fatal(err)
	}
	was := l.present
	l.present = map[string]*liveAccount{}
	for _, e := range l.registry.Set().Endpoints {
		account := was[e.Name]
		if account == nil {
			account = &liveAccount{live: e.Live}
			l.lives = append(l.lives, account)
		}
		if account.live != e.Live {
			t.Fatalf("%s has a new live part, but was never away", e.Name)
		}
		l.present[e.Name] = account
	}
}

// anyUnit draws one of the units ever taken, released ones among them.
func (l *ledger) anyUnit(t *rapid.T) *unitAccount {
	if len(l.units) == 0 {
		t.Skip("no unit was taken")
	}
	return l.units[rapid.IntRange(0, len(l.units)-1).Draw(t, "unit")]
}

// anyLive draws one live part, that of a removed endpoint among them: scrapes
// and requests outlive their endpoint.
func (l *ledger) anyLive(t *rapid.T) *liveAccount {
	return l.lives[rapid.IntRange(0, len(l.lives)-1).Draw(t, "live")]
}

func (l *ledger) take(t *rapid.T) {
	at := l.anyLive(t)
	l.step++
	l.units = append(l.units, &unitAccount{unit: at.live.Take(telemetry.Instant(l.step)), at: at, taken: l.step})
}

func (l *ledger) release(t *rapid.T) {
	u := l.anyUnit(t)
	u.unit.Release()
	u.at = nil
}

func (l *ledger) move(t *rapid.T) {
	u, to := l.anyUnit(t), l.anyLive(t)
	l.step++
	u.unit.Move(to.live)
	if u.at != nil && u.at != to {
		u.at, u.taken = to, l.step
	}
}

func (l *ledger) beginScrape(t *rapid.T) {
	at := l.anyLive(t)
	if at.scraping != nil {
		t.Skip("one scrape in flight per endpoint")
	}
	l.step++
	at.scraping = &scrapeAccount{began: l.step, mark: at.live.BeginScrape()}
}

func (l *ledger) publish(t *rapid.T) {
	at := l.anyLive(t)
	if at.scraping == nil {
		t.Skip("no scrape in flight")
	}
	at.live.Publish(&telemetry.Snapshot{}, at.scraping.mark)
	at.seen, at.scraping = at.scraping.began, nil
}

func (l *ledger) scrapeFails(t *rapid.T) {
	at := l.anyLive(t)
	if at.scraping == nil {
		t.Skip("no scrape in flight")
	}
	at.live.ScrapeFailed("timeout")
	at.scraping = nil
}

func (l *ledger) membersChange(t *rapid.T) {
	l.set(t, rapid.Permutation(names).Draw(t, "order")[:rapid.IntRange(0, len(names)).Draw(t, "members")])
}

func (l *ledger) check(t *rapid.T) {
	for i, account := range l.lives {
		var inFlight, pending int32
		for _, u := range l.units {
			if u.at != account {
				continue
			}
			inFlight++
			if u.taken > account.seen {
				pending++
			}
		}
		if got := account.live.InFlight(); got != inFlight {
			t.Fatalf("live %d: %d in flight, want %d", i, got, inFlight)
		}
		if got := account.live.Pending(); got != pending {
			t.Fatalf("live %d: %d pending, want %d of %d in flight", i, got, pending, inFlight)
		}
		member := slices.ContainsFunc(l.registry.Set().Endpoints, func(e *Endpoint) bool { return e.Live == account.live })
		if gone(account.live) == member {
			t.Fatalf("live %d: member %v, gone %v", i, member, gone(account.live))
		}
	}
}

func TestInFlightAndPendingEqualANaiveAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger(t)
		t.Repeat(map[string]func(*rapid.T){
			"":               l.check,
			"take":           l.take,
			"take another":   l.take,
			"release":        l.release,
			"move":           l.move,
			"begin a scrape": l.beginScrape,
			"publish":        l.publish,
			"a scrape fails": l.scrapeFails,
			"members change": l.membersChange,
		})
		for _, u := range l.units {
			u.unit.Release()
			u.unit.Release()
			u.at = nil
		}
		l.check(t)
	})
}

// TestEveryUnitComesBackUnderLoad lets requests, scrapes and discovery loose on
// one pool. Counts may not be negative at any time, and are zero at the end.
func TestEveryUnitComesBackUnderLoad(t *testing.T) {
	const (
		streams  = 8
		requests = 500
		flaps    = 100
	)
	members := []Spec{spec("a", "1", "10.0.0.1:8000"), spec("b", "2", "10.0.0.2:8000"), spec("c", "3", "10.0.0.3:8000")}
	r := registryOf(t, members...)
	var mu sync.Mutex
	lives := map[*Live]struct{}{}
	r.Watch(func(s *Set) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range s.Endpoints {
			lives[e.Live] = struct{}{}
		}
	})

	var negative atomic.Int64
	look := func(l *Live) {
		if l.InFlight() < 0 || l.Pending() < 0 {
			negative.Add(1)
		}
	}
	var requesting, others sync.WaitGroup
	done := make(chan struct{})
	for stream := range streams {
		requesting.Go(func() {
			var open []Unit
			for i := range requests {
				set := r.Set()
				e := set.Endpoints[(stream+i)%len(set.Endpoints)]
				open = append(open, e.Take(telemetry.Instant(i)))
				look(e.Live)
				if i%3 == 0 {
					open[0].Move(set.Endpoints[i%len(set.Endpoints)].Live)
				}
				if len(open) > 4 {
					open[0].Release()
					open[0].Release()
					open = open[1:]
				}
			}
			for i := range open {
				open[i].Release()
			}
		})
	}
	for i := range 2 { // the collector has one scrape in flight per endpoint: a and b, each its own
		others.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				set := r.Set()
				if i >= len(set.Endpoints) {
					continue
				}
				live := set.Endpoints[i].Live
				mark := live.BeginScrape()
				look(live)
				if n%4 == 0 {
					live.ScrapeFailed("timeout")
				} else {
					live.Publish(&telemetry.Snapshot{}, mark)
				}
				look(live)
			}
		})
	}
	others.Go(func() {
		for i := range flaps {
			now := slices.Clone(members)
			now[2].UID = fmt.Sprint("flap-", i)
			if err := r.Update("default/pool", now[:2+i%2]); err != nil {
				t.Error(err)
			}
		}
	})
	requesting.Wait()
	close(done)
	others.Wait()

	if n := negative.Load(); n != 0 {
		t.Errorf("a count was negative %d times", n)
	}
	if len(lives) < 3 {
		t.Errorf("only %d incarnations took part", len(lives))
	}
	for l := range lives {
		if l.InFlight() != 0 || l.Pending() != 0 {
			t.Errorf("at the end: %d in flight, %d pending, gone %v", l.InFlight(), l.Pending(), gone(l))
		}
	}
}
