package engine

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

func readPodsOf(t *testing.T, name, page string) map[Pod]*Readings {
	t.Helper()
	pods, err := profileOf(t, name).ReadPods([]byte(page), "", noon, time.Minute, map[Pod]*History{})
	if err != nil {
		t.Fatalf("the page is refused: %v", err)
	}
	return pods
}

func wantReading(t *testing.T, pods map[Pod]*Readings, pod Pod, f telemetry.Field, want float64) {
	t.Helper()
	readings := pods[pod]
	if readings == nil {
		t.Fatalf("%s is not on the page, want %s", pod, f)
	}
	if r := &readings[f]; r.State(noon) != telemetry.Fresh || math.Abs(r.Value-want) > 1e-9*max(1, want) {
		t.Errorf("%s of %s is %v, %s (%v), want %v", f, pod, r.Value, r.State(noon), r.Detail, want)
	}
}

func TestDCGMsPodsAreNotMixed(t *testing.T) {
	pods := readPodsOf(t, "dcgm", `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",namespace="llm",pod="a"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-1",namespace="llm",pod="b"} 3
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-2",namespace="test",pod="a"} 55
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-0",namespace="llm",pod="a"} 75000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-0",namespace="llm",pod="a"} 5000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-1",namespace="llm",pod="b"} 10000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-1",namespace="llm",pod="b"} 70000
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",namespace="llm",pod="a"} 500.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-1",namespace="llm",pod="b"} 100
DCGM_FI_DEV_POWER_USAGE{gpu="2",UUID="GPU-2",namespace="test",pod="a"} 250
`)
	if len(pods) != 3 {
		t.Errorf("%d pods, want 3: one name in two namespaces is two pods", len(pods))
	}
	wantReading(t, pods, "llm/a", telemetry.GPUUtilization, 0.97)
	wantReading(t, pods, "llm/a", telemetry.MemoryPressure, 0.9375)
	wantReading(t, pods, "llm/a", telemetry.Power, 500.5)
	wantReading(t, pods, "llm/b", telemetry.GPUUtilization, 0.03)
	wantReading(t, pods, "llm/b", telemetry.MemoryPressure, 0.125)
	wantReading(t, pods, "llm/b", telemetry.Power, 100)
	wantReading(t, pods, "test/a", telemetry.GPUUtilization, 0.55)
	wantReading(t, pods, "test/a", telemetry.Power, 250)
}

func TestANodesTotalIsNeverTaken(t *testing.T) {
	for name, page := range map[string]string{
		"no labels of pods": `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0"} 500
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-1"} 400
`,
		"a pod without its namespace": `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",pod="a"} 500
`,
		"a namespace without a pod": `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",namespace="llm",pod=""} 500
`,
	} {
		if pods := readPodsOf(t, "dcgm", page); len(pods) != 0 {
			t.Errorf("%s: %d pods, want nobody's", name, len(pods))
		}
	}
	pods := readPodsOf(t, "dcgm", `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0"} 500
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-1",namespace="llm",pod="a"} 400
`)
	wantReading(t, pods, "llm/a", telemetry.Power, 400)
}

func TestMIGInstancesAreNotCreditedWithTheWholeGPU(t *testing.T) {
	pods := readPodsOf(t, "dcgm", `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1",namespace="llm",pod="a"} 500
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="2",namespace="llm",pod="b"} 500
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-1",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1",namespace="llm",pod="c"} 300
DCGM_FI_DEV_POWER_USAGE{gpu="2",UUID="GPU-2",namespace="llm",pod="c"} 450
`)
	for _, pod := range []Pod{"llm/a", "llm/b"} {
		if readings := pods[pod]; readings != nil && readings[telemetry.Power].State(noon) == telemetry.Fresh {
			t.Errorf("power of %s is %v, want none", pod, readings[telemetry.Power].Value)
		}
	}
	wantReading(t, pods, "llm/c", telemetry.Power, 450)
}

func TestAMDsPowerIsTheFirstNameThatACardHas(t *testing.T) {
	const pod = `{gpu_id="0",gpu_partition_id="0",namespace="llm",pod="a"}`
	for name, c := range map[string]struct {
		page string
		want float64
	}{
		"MI3xx":               {"gpu_package_power" + pod + " 748\ngpu_power_usage" + pod + " 747\n", 748},
		"MI2xx":               {"gpu_average_package_power" + pod + " 520\n", 520},
		"others":              {"gpu_used_vram" + pod + " 1\ngpu_power_usage" + pod + " 210\n", 210},
		"MI3xx with a prefix": {"amd_gpu_package_power" + pod + " 748\namd_gpu_power_usage" + pod + " 747\n", 748},
		"MI2xx with a prefix": {"amd_gpu_average_package_power" + pod + " 520\n", 520},
	} {
		t.Run(name, func(t *testing.T) {
			wantReading(t, readPodsOf(t, "amd-gpu", c.page), "llm/a", telemetry.Power, c.want)
		})
	}
}

func TestAMDsPodsAreNotMixed(t *testing.T) {
	pods := readPodsOf(t, "amd-gpu", `gpu_gfx_activity{gpu_id="0",namespace="llm",pod="a"} 97
gpu_gfx_activity{gpu_id="1",namespace="llm",pod="b"} 40
gpu_used_vram{gpu_id="0",namespace="llm",pod="a"} 150
gpu_total_vram{gpu_id="0",namespace="llm",pod="a"} 200
gpu_used_vram{gpu_id="1",namespace="llm",pod="b"} 20
gpu_total_vram{gpu_id="1",namespace="llm",pod="b"} 200
gpu_package_power{gpu_id="0",namespace="llm",pod="a"} 748
gpu_average_package_power{gpu_id="1",namespace="llm",pod="b"} 520
gpu_package_power{gpu_id="2"} 700
`)
	wantReading(t, pods, "llm/a", telemetry.GPUUtilization, 0.97)
	wantReading(t, pods, "llm/a", telemetry.MemoryPressure, 0.75)
	wantReading(t, pods, "llm/a", telemetry.Power, 748)
	wantReading(t, pods, "llm/b", telemetry.GPUUtilization, 0.4)
	wantReading(t, pods, "llm/b", telemetry.MemoryPressure, 0.1)
	wantReading(t, pods, "llm/b", telemetry.Power, 520)
}

// Percent that are none spoil the field of that pod, and nothing else.
func TestAnImpossibleUtilizationSpoilsOnePodsField(t *testing.T) {
	pods := readPodsOf(t, "dcgm", `DCGM_FI_DEV_GPU_UTIL{gpu="0",namespace="llm",pod="a"} 250
DCGM_FI_DEV_GPU_UTIL{gpu="1",namespace="llm",pod="b"} 40
DCGM_FI_DEV_POWER_USAGE{gpu="0",namespace="llm",pod="a"} 500
`)
	r := &pods["llm/a"][telemetry.GPUUtilization]
	if r.State(noon) != telemetry.Invalid || !strings.Contains(strings.Join(r.Detail.Reasons, ""), "2.5") {
		t.Errorf("gpuUtilization of llm/a is %v, %s (%v), want it invalid for 2.5", r.Value, r.State(noon), r.Detail.Reasons)
	}
	wantReading(t, pods, "llm/a", telemetry.Power, 500)
	wantReading(t, pods, "llm/b", telemetry.GPUUtilization, 0.4)
}

func TestExportersPagesAreNoEngines(t *testing.T) {
	set, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"dcgm.prom", "amd-gpu.prom"} {
		if p, err := set.Detect(load(t, page)); p != nil || err == nil {
			t.Errorf("%s is detected as an engine's, want none", page)
		}
	}
	for name, port := range map[string]uint16{"dcgm": 9400, "amd-gpu": 5000} {
		if p := set.Profile(name); !p.Exporter() || p.Metrics().Port != port {
			t.Errorf("%s is on port %d, exporter %v, want an exporter on %d", name, p.Metrics().Port, p.Exporter(), port)
		}
	}
}
