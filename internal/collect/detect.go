package collect

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
)

// modelsPage changes nothing on any engine, and most have it.
const modelsPage = "/v1/models"

// probe is a metrics page to try where nothing says which engine there is.
type probe struct {
	engine.Page
	// guarded: some engine says of the path that it must not be asked for.
	guarded bool
}

// probesOf are the metrics pages of all engines, each once: those first that do
// no harm on any engine, and of these the ones on the serving port.
func probesOf(set *engine.Set) []probe {
	if set == nil {
		return []probe{{Page: engine.Page{Path: modelsPage}}}
	}
	var probes []probe
	for _, p := range set.Engines() {
		page := p.Metrics()
		if slices.ContainsFunc(probes, func(other probe) bool {
			return other.Scheme == page.Scheme && other.Port == page.Port && other.Path == page.Path
		}) {
			continue
		}
		probes = append(probes, probe{page, barredIn(set, page.Path)})
	}
	slices.SortStableFunc(probes, func(a, b probe) int {
		return cmp.Or(rank(a.guarded)-rank(b.guarded), rank(a.Port != 0)-rank(b.Port != 0))
	})
	return probes
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

func barredIn(set *engine.Set, path string) bool {
	return slices.ContainsFunc(set.Engines(), func(p *engine.Profile) bool { return p.Never(pathOf(path)) })
}

// barred reports that some engine says of a path that it must not be asked for.
func (w *worker) barred(path string) bool {
	return w.opts.Profiles != nil && barredIn(w.opts.Profiles, path)
}

// guard is what the models at one ip:port say of who serves them.
type guard struct {
	host   string
	owners []string
}

// detect tries the metrics pages of all engines until one is recognised. If none
// is, r has the reason that tells most.
func (w *worker) detect(j job, m *memory, r *report) (page, bool) {
	best := -1
	var tried []place
	for _, p := range w.probes {
		at := metricsAt(j.endpoint, p.Page)
		if slices.Contains(tried, at) {
			continue
		}
		tried = append(tried, at)
		got, profile, a := w.try(j, m, at, p.guarded || w.barred(at.path))
		r.reached = r.reached || a.status != 0
		if profile != nil {
			if profile == m.stated && at.path != m.page.path {
				w.opts.Logger.Warn("the metrics page is not where the profile says, and is read elsewhere", zap.String("endpoint", j.endpoint.Name),
					zap.String("engine", profile.Name()), zap.String("profile", m.page.path), zap.String("path", at.path))
			}
			m.become(profile, at)
			m.moved = a.redirected
			r.reason, r.cause = "", nil
			return got, true
		}
		if t := telling(a, at.host == m.serving); t > best {
			best = t
			r.fail(a.reason, a.cause)
		}
		if j.ctx.Err() != nil || a.status == 0 && a.reason != "no_text_page" && at.host == m.serving {
			break
		}
	}
	return page{}, false
}

// try asks for one page and finds out whose it is. Without a profile, the answer
// has the reason.
func (w *worker) try(j job, m *memory, at place, guarded bool) (page, *engine.Profile, answer) {
	if guarded {
		if a := w.pass(j, m, at); a.reason != "" {
			return page{}, nil, a
		}
	}
	got, found, a := w.whole(j, at, nil)
	if !found {
		return page{}, nil, a
	}
	profile, err := w.opts.Profiles.Detect(got.body)
	if err == nil && at.host != m.serving && j.endpoint.Metrics.Port == 0 && hostAt(j.endpoint, profile.Metrics().Port) != at.host {
		// Another endpoint of the same address may live at that port.
		profile, err = nil, fmt.Errorf("%w that has its metrics at %s: the page is of %s", engine.ErrNoEngineFamilies, at.host, profile.Name())
	}
	if err != nil {
		return page{}, nil, a.fault(readReason(err), err)
	}
	return got, profile, a
}

// pass says whether a path that some engine bars may be asked for at a place: by
// what the models there say of who serves them.
func (w *worker) pass(j job, m *memory, at place) answer {
	owners, a := w.owners(j, m, at)
	if a.reason != "" {
		return a
	}
	return w.drained(owners, at)
}

// owners are those of the models at a place, asked for once. Only a whole list
// tells, and a place without one; otherwise the answer has the reason.
func (w *worker) owners(j job, m *memory, at place) ([]string, answer) {
	if i := slices.IndexFunc(m.guards, func(g guard) bool { return g.host == at.host }); i >= 0 {
		return m.guards[i].owners, answer{}
	}
	a := w.get(j, question{scheme: at.scheme, host: at.host, path: modelsPage, never: w.barred, slow: true})
	owners, whole := engine.Owners(a.body)
	switch {
	case a.status == http.StatusNotFound:
		// The engines that bar a path have this page.
	case a.reason != "":
		return nil, a
	case a.unended || !whole:
		return nil, answer{status: a.status, reason: "no_text_page", cause: fmt.Errorf("%s does not tell whose models there are, and on some engine %s must not be asked for", modelsPage, pathOf(at.path))}
	}
	m.guards = append(m.guards, guard{at.host, owners})
	return owners, answer{}
}

// drained has a reason if one of the owners is an engine on which the path must
// not be asked for.
func (w *worker) drained(owners []string, at place) answer {
	path := pathOf(at.path)
	for _, p := range w.opts.Profiles.Engines() {
		if p.Never(path) && slices.ContainsFunc(owners, p.Owns) {
			return answer{reason: "no_text_page", cause: fmt.Errorf("the models there are of %s, on which %s must not be asked for", p.Name(), path)}
		}
	}
	return answer{}
}

// knock asks for the models only to see whether anybody answers.
func (w *worker) knock(j job) answer {
	serving := j.target.memory.serving
	at := metricsAt(j.endpoint, engine.Page{})
	if at.host != serving {
		at.scheme = "http"
	}
	return w.get(j, question{scheme: at.scheme, host: serving, path: modelsPage, status: true, slow: true})
}

// telling ranks what answers say of an engine that was not recognised. Where nobody
// answers at the serving port, that tells more than what is not there; at another
// port it tells nothing.
func telling(a answer, serving bool) int {
	switch {
	case a.reason == "status_404":
		return 1
	case isStatus(a.reason):
		return 2
	case a.status == 0 && a.reason != "no_text_page":
		return 2 * rank(serving)
	default:
		return 3
	}
}
