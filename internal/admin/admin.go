// Package admin serves the picker's reports, its metrics and its health.
//
// The admin listener answers /v1alpha1/* with the documents of api/v1alpha1. It
// names replicas and addresses, so it listens on loopback unless told otherwise.
// The metrics listener answers /metrics, /healthz and /readyz and names neither.
package admin

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Options are what the reports are made from.
type Options struct {
	Pools  *pool.Registry
	Ledger *ledger.Ledger
	Clock  telemetry.Clock
	// Pool reports on the pool as a whole.
	Pool func() v1alpha1.PoolReport
}

// Reports is the handler of the admin listener.
func Reports(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1alpha1/replicas", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, list("ReplicaList", replicas(o)))
	})
	mux.HandleFunc("GET /v1alpha1/pool", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, o.Pool())
	})
	mux.HandleFunc("GET /v1alpha1/decisions", func(w http.ResponseWriter, r *http.Request) {
		limit, ok := limitOf(r)
		if !ok {
			fail(w, http.StatusBadRequest, "limit: must be a whole number from 1 to 100000")
			return
		}
		reply(w, http.StatusOK, list("DecisionList", o.Ledger.Newest(limit)))
	})
	mux.HandleFunc("GET /v1alpha1/decisions/{id}", func(w http.ResponseWriter, r *http.Request) {
		d, ok := o.Ledger.Find(r.PathValue("id"))
		if !ok {
			fail(w, http.StatusNotFound, "no decision with this id is in memory (ledger.ring says how many are kept)")
			return
		}
		reply(w, http.StatusOK, d)
	})
	return mux
}

// defaultLimit is how many decisions are listed unless ?limit= says otherwise.
const defaultLimit = 100

func limitOf(r *http.Request) (int, bool) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return defaultLimit, true
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 1 && n <= 100000
}

type listDocument[T any] struct {
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Items   []T    `json:"items"`
}

func list[T any](kind string, items []T) listDocument[T] {
	return listDocument[T]{Version: v1alpha1.Version, Kind: kind, Items: items}
}

func replicas(o Options) []v1alpha1.Observation {
	now := o.Clock()
	set := o.Pools.Set()
	docs := make([]v1alpha1.Observation, 0, len(set.Endpoints))
	for _, e := range set.Endpoints {
		docs = append(docs, Observe(set.Pool, e, now))
	}
	return docs
}

// Observe is the document of one endpoint of a pool as of now.
func Observe(poolName string, e *pool.Endpoint, now telemetry.Instant) v1alpha1.Observation {
	s := e.Snapshot()
	doc := s.Observation(v1alpha1.Replica{
		Pool: poolName, Name: e.Name, Pod: e.Pod, UID: e.UID, Address: e.Destination, Node: e.Node, Zone: e.Zone,
	}, now)
	doc.InFlight, doc.ScrapeError = e.InFlight(), e.ScrapeError()
	if e.OrderedLast() {
		doc.Order = "last"
	}
	switch {
	case e.Terminating:
		doc.Excluded = "terminating"
	case !e.Ready:
		doc.Excluded = "not_ready"
	case e.Live.Excluded(now):
		doc.Excluded = "asleep_or_unhealthy"
	case e.Quarantine(now).In:
		doc.Excluded = "quarantined"
	}
	if s == nil && e.Engine != "" {
		doc.Engine = e.Engine
	}
	return doc
}

// Metrics is the handler of the metrics listener. ready says why the picker is
// not ready, or nil.
func Metrics(registry *prometheus.Registry, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			fail(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		reply(w, http.StatusOK, map[string]string{"status": "ready"})
	})
	return mux
}

func reply(w http.ResponseWriter, status int, doc any) {
	text, err := json.Marshal(doc)
	if err != nil {
		status = http.StatusInternalServerError
		text = []byte(`{"error":"the report holds a value that JSON cannot say"}`)
	}
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(status)
	// The client may be gone; there is nobody else to tell.
	_, _ = w.Write(append(text, '\n'))
}

func fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, map[string]string{"error": message})
}
