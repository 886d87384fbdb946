package host

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// mineText is a profile of an engine whose queue is in the given family.
func mineText(family string) string {
	return fmt.Sprintf(`apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: mine
aliases: [my-engine]
detect: {prefixes: [mine_]}
pages:
- {path: /metrics, format: prometheus}
fields:
  queueDepth: {unit: requests, sources: [{metric: %s}]}
`, family)
}

// mine serves the page of such an engine; the result is its port.
func mine(t *testing.T) string {
	t.Helper()
	return page(t, "# TYPE mine_waiting gauge\nmine_waiting 4\n# TYPE mine_queue gauge\nmine_queue 7\n")
}

// page serves a page at every path; the result is its port.
func page(t *testing.T, text string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "text/plain; version=0.0.4")
		_, _ = fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func minePool(port, engine string) string {
	return strings.ReplaceAll(poolDocument(port), "engine: vllm", "engine: "+engine)
}

// replica is the report of the only replica.
func (r *running) replica() v1alpha1.Observation {
	r.t.Helper()
	_, text := r.get(r.AdminAddr(), "/v1alpha1/replicas")
	var list struct{ Items []v1alpha1.Observation }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		r.t.Fatal(err)
	}
	if len(list.Items) != 1 {
		return v1alpha1.Observation{}
	}
	return list.Items[0]
}

func (r *running) queueIs(want float64) func() bool { return r.fieldIs("queueDepth", want) }

func (r *running) fieldIs(field string, want float64) func() bool {
	return func() bool { return r.replica().Fields[field].Value == want }
}

func (r *running) reloads(result string) int {
	r.t.Helper()
	n := 0
	_, rest, _ := strings.Cut(r.metricsPage(), `berth_config_reloads_total{result="`+result+`"} `)
	if _, err := fmt.Sscan(rest, &n); err != nil {
		return 0
	}
	return n
}

const oftenRead = "hot: 50ms, warm: 50ms, idle: 50ms"

func TestAProfileIsTakenOverWhenItsFileAloneChangesAndTheLastGoodOneStays(t *testing.T) {
	port, profiles := mine(t), t.TempDir()
	file := filepath.Join(profiles, "mine.yaml")
	write(t, file, mineText("mine_waiting"))
	r := run(t, "telemetry: {profiles: "+profiles+", "+oftenRead+"}\n", minePool(port, "my-engine"))
	eventually(t, "the engine is read by its profile", r.queueIs(4))
	if now := r.replica(); now.Engine != "mine" || now.Declared != "" || now.Replica.Pod != "local/r1" {
		t.Errorf("engine %q, declared %q, pod %q; want mine by its alias, and local/r1", now.Engine, now.Declared, now.Replica.Pod)
	}
	first := r.replica().Profile

	write(t, file, mineText("mine_queue"))
	eventually(t, "the changed profile is in force", r.queueIs(7))
	second, ok := r.replica().Profile, r.reloads("ok")
	if second == first || ok == 0 {
		t.Errorf("profile %s, was %s, %d reloads", second, first, ok)
	}

	write(t, file, mineText("[mine_waiting"))
	eventually(t, "the broken profile is counted", func() bool { return r.reloads("failed") == 1 })
	logged := r.log.FilterMessageSnippet("last good one").All()
	if len(logged) != 1 || !strings.Contains(fmt.Sprint(logged[0].ContextMap()["error"]), file) {
		t.Errorf("the broken profile was logged as %v, want once with its file", logged)
	}
	if now := r.replica(); now.Profile != second || now.ScrapeError != "" {
		t.Errorf("profile %s, scrape error %q after the broken one, want %s still", now.Profile, now.ScrapeError, second)
	}

	write(t, file, mineText("mine_waiting"))
	eventually(t, "the mended profile is in force", r.queueIs(4))
}

func TestAPoolMayNameAnEngineAsLongAsThereIsAProfileForIt(t *testing.T) {
	port, profiles := mine(t), t.TempDir()
	file := filepath.Join(profiles, "mine.yaml")
	r := run(t, "telemetry: {profiles: "+profiles+", "+oftenRead+"}\n", poolDocument(port))
	engine := func() string { return r.pools.Set().Endpoints[0].Engine }

	r.pool(minePool(port, "mine"))
	eventually(t, "the pool with an unknown engine is counted", func() bool { return r.reloads("failed") == 1 })
	if got := engine(); got != "vllm" {
		t.Errorf("the engine is %q, want the last good pool's", got)
	}
	write(t, file, mineText("mine_waiting"))
	eventually(t, "the engine is read", r.queueIs(4))

	// The profile goes while the pool needs it: what is in force stays.
	failed := r.reloads("failed")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing profile is counted", func() bool { return r.reloads("failed") > failed })
	if got := engine(); got != "mine" {
		t.Errorf("the engine is %q, want mine as before", got)
	}
	r.pool(poolDocument(port))
	eventually(t, "the pool that needs it no more is in force", func() bool { return engine() == "vllm" })
	eventually(t, "so is the policy without it", func() bool {
		return r.decider.active.Load().policy.Engines.Profile("mine") == nil
	})
}

func TestExportersAreReadAndTakenOver(t *testing.T) {
	port, profiles := mine(t), t.TempDir()
	write(t, filepath.Join(profiles, "mine.yaml"), mineText("mine_waiting"))
	gpus := func(watts int) string {
		return page(t, fmt.Sprintf("# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"+
			"DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",namespace=\"local\",pod=\"r1\"} %d\nDCGM_FI_DEV_POWER_USAGE{gpu=\"1\",namespace=\"local\",pod=\"r2\"} 9\n", watts))
	}
	members := func(gpuPort string) string {
		return "telemetry: {profiles: " + profiles + ", " + oftenRead + ", exporters: [{profile: dcgm, address: 127.0.0.1, port: " + gpuPort + "}]}\n"
	}
	r := run(t, members(gpus(300)), minePool(port, "mine"))
	eventually(t, "the power of the pod's GPU is known", r.fieldIs("power", 300))
	r.configure(members(gpus(400)))
	eventually(t, "another exporter is read instead", r.fieldIs("power", 400))
}

func TestABadProfileStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	config, profiles := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "profiles")
	if err := os.Mkdir(profiles, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(profiles, "mine.yaml"), strings.Replace(mineText("mine_waiting"), "unit: requests", "unit: jobs", 1))
	write(t, config, pickerDocument+berthDocument("telemetry: {profiles: profiles}\n---\n"+poolDocument("19101")))
	h, err := Start(t.Context(), optionsFor(config))
	if err == nil {
		h.Stop()
		t.Fatal("it started")
	}
	want := config + ":18: telemetry.profiles: profiles: cannot be used: " +
		filepath.Join(profiles, "mine.yaml") + `:9: fields.queueDepth: unit "jobs", want "requests"`
	if err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestAProfileInsteadOfABuiltInOneIsTold(t *testing.T) {
	const told = "stand instead of built-in ones"
	port, profiles := mine(t), t.TempDir()
	file := filepath.Join(profiles, "mine.yaml")
	instead := func(rest string) string {
		return strings.Replace(mineText("mine_waiting"), "name: mine\n", "name: sglang\n", 1) + rest
	}
	write(t, file, instead(""))
	r := run(t, "telemetry: {profiles: "+profiles+", "+oftenRead+"}\n", poolDocument(port))
	lines := func() int { return r.log.FilterMessageSnippet(told).Len() }
	eventually(t, "it is told at the start", func() bool { return lines() == 1 })
	if got := fmt.Sprint(r.log.FilterMessageSnippet(told).All()[0].ContextMap()["engines"]); got != "[sglang]" {
		t.Errorf("told of %s, want sglang alone", got)
	}
	write(t, file, instead("stillAfter: 20s\n"))
	eventually(t, "it is told of each that is loaded", func() bool { return lines() == 2 })
	ok := r.reloads("ok")
	write(t, file, mineText("mine_waiting"))
	eventually(t, "a profile with a name of its own is in force", func() bool { return r.reloads("ok") > ok })
	if got := lines(); got != 2 {
		t.Errorf("told %d times, want no more than 2", got)
	}
}
