package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/test/finding"
)

const replicas = 100

// endpointMemory bounds what one endpoint takes, in KiB.
const endpointMemory = 64

// fleetReads are what is measured: a page, the cadence that it asks for, for how
// long it is read, and the budget.
var fleetReads = []struct {
	name, page    string
	every, window time.Duration
	cores         float64
}{
	{"idle", "vllm-idle.prom", 5 * time.Second, 10 * time.Second, 0.02},
	{"hot", "vllm.prom", 200 * time.Millisecond, 6 * time.Second, 0.25},
}

func telemetrySubject() (subject, error) {
	var reads []string
	for _, c := range fleetReads {
		reads = append(reads, fmt.Sprintf("%s (%s) every %s for %s", c.name, c.page, c.every, c.window))
	}
	about, err := pageSubject(fmt.Sprintf("no requests; scrapes of %d replicas over HTTP on the loopback: %s", replicas, strings.Join(reads, ", ")))
	about.served += "; " + model + " in their lists of models"
	return about, err
}

// measureTelemetry reads replicas that another process stands for, so that
// their own cost is apart.
func measureTelemetry(s *session) error {
	for _, c := range fleetReads {
		page, err := s.golden(c.page)
		if err != nil {
			return err
		}
		engines, err := s.play("engines", strconv.Itoa(replicas), fmt.Sprintf("%s/internal/engine/testdata/%s", s.root, c.page))
		if err != nil {
			return err
		}
		r, err := readFleet(s, strings.Fields(engines.address), c.window)
		engines.stop()
		if err != nil {
			return err
		}
		// A machine that is too busy to scrape in time must not look thrifty: what
		// a scrape costs is multiplied by the scrapes that are due. Cadences are
		// shortened by a twentieth on average.
		due := replicas / (c.every.Seconds() * 0.95)
		rate := float64(r.scrapes) / r.wall.Seconds()
		perScrape := r.cpu.Seconds() / float64(r.scrapes)
		s.report(finding.Finding{
			Name: "telemetry/" + c.name, Value: perScrape * max(due, rate), Unit: "core", Limit: finding.AtMost(c.cores),
			About: fmt.Sprintf("CPU of reading %d replicas with pages of %d KB over %s, engines apart; %s us per scrape, %s scrapes/s made, %s due",
				replicas, len(page)/1000, c.window, finding.Number(perScrape*1e6), finding.Number(rate), finding.Number(due)),
		})
		s.report(finding.Finding{
			Name: "telemetry/" + c.name + "/memory", Value: r.memory / replicas / 1024, Unit: "KiB", Limit: finding.AtMost(endpointMemory),
			About: fmt.Sprintf("live heap and stacks per replica while %d are read: snapshot, connection, goroutines", replicas),
		})
	}
	return nil
}

// reading is what a window of telemetry has cost this process.
type reading struct {
	cpu, wall time.Duration
	scrapes   int64
	// memory is live heap and stacks in bytes.
	memory float64
}

func readFleet(s *session, addresses []string, window time.Duration) (reading, error) {
	var r reading
	profiles, err := engine.Defaults()
	if err != nil {
		return r, err
	}
	heap, stacks := liveMemory()
	list := specs(len(addresses))
	for i, a := range addresses {
		if list[i].Address, err = netip.ParseAddrPort(a); err != nil {
			return r, err
		}
	}
	registry := pool.NewRegistry("default/pool", false)
	if err := registry.Update("default/pool", list); err != nil {
		return r, err
	}
	var scrapes, failed atomic.Int64
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		collect.New(collect.Options{
			Profiles: profiles,
			Observe: func(_, result string, _ time.Duration) {
				scrapes.Add(1)
				if result != "ok" {
					failed.Add(1)
				}
			},
		}).Run(ctx, registry)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	for read := false; !read; {
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return r, err
		}
		read = true
		for _, e := range registry.Set().Endpoints {
			read = read && e.Snapshot() != nil
		}
	}
	// The first scrapes also open connections and ask for more pages.
	if err := wait(ctx, time.Second); err != nil {
		return r, err
	}
	scrapes.Store(0)
	failed.Store(0)
	start := time.Now()
	before, err := processCPU(os.Getpid())
	if err != nil {
		return r, err
	}
	if err := wait(ctx, window); err != nil {
		return r, err
	}
	after, err := processCPU(os.Getpid())
	if err != nil {
		return r, err
	}
	r.cpu, r.wall, r.scrapes = after-before, time.Since(start), scrapes.Load()
	if n := failed.Load(); n > r.scrapes/100 || r.scrapes == 0 {
		return r, fmt.Errorf("%d of %d scrapes failed", n, r.scrapes)
	}
	heapNow, stacksNow := liveMemory()
	r.memory = heapNow + stacksNow - heap - stacks
	return r, nil
}

// playEngines serves one page as so many engines, on addresses of their own. Its
// arguments are the number and the page's file.
func playEngines(_ context.Context, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	page, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	serve := func(path, contentType string, body []byte) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write(body)
		})
	}
	serve("/metrics", "text/plain; version=0.0.4", page)
	serve("/v1/models", "application/json", []byte(`{"object":"list","data":[{"id":"`+model+`","object":"model","owned_by":"vllm","max_model_len":8192}]}`))
	serve("/health", "text/plain", nil)
	serve("/version", "application/json", []byte(`{"version":"0.11.0"}`))
	addresses := make([]string, n)
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addresses[i] = l.Addr().String()
		// It serves until the process ends.
		go func() { _ = http.Serve(l, mux) }()
	}
	fmt.Println(strings.Join(addresses, " "))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
