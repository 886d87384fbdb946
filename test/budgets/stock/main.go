// Command stock is what the picker's decisions are compared with: the stock GIE
// v1.5.0 scheduler. It has a module of its own, since that release builds only
// with dependencies older than the picker's.
//
// Each line of standard input is a number of endpoints and a number of
// decisions to make over them. The answer is one line: nanoseconds of CPU and
// allocations per decision.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	framework "sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/picker"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/profile"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/kvcacheutilization"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/queuedepth"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/runningrequests"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/scheduling"
)

func main() {
	// A stock picker logs at a level that none of the scheduler's lines reaches.
	log.SetLogger(logr.Discard())
	fleets := map[int]*fleet{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var endpoints, decisions int
		if _, err := fmt.Sscan(in.Text(), &endpoints, &decisions); err != nil || endpoints < 1 || decisions < 1 {
			fmt.Fprintf(os.Stderr, "stock: %q: want two positive numbers\n", in.Text())
			os.Exit(2)
		}
		f := fleets[endpoints]
		if f == nil {
			f = newFleet(endpoints)
			fleets[endpoints] = f
			f.decide()
		}
		fmt.Println(f.measure(decisions))
	}
}

// fleet is the pool as the stock picker keeps it, and the scheduler over it.
type fleet struct {
	pods      sync.Map
	scheduler *scheduling.Scheduler
	request   *framework.LLMRequest
}

func newFleet(endpoints int) *fleet {
	f := &fleet{request: &framework.LLMRequest{RequestId: "budgets", TargetModel: "llama-3.1-8b"}}
	for i := range endpoints {
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("replica-%d-rank-0", i)}
		metrics := datalayer.NewMetrics()
		metrics.WaitingQueueSize, metrics.RunningRequestsSize, metrics.KVCacheUsagePercent = i*7%13, i*5%31, float64(i*11%97)/97
		metrics.UpdateTime = time.Now()
		f.pods.Store(name, datalayer.NewEndpoint(&datalayer.EndpointMetadata{
			NamespacedName: name,
			PodName:        fmt.Sprintf("replica-%d", i),
			Address:        fmt.Sprintf("10.0.%d.%d", i>>8, i&255),
			Port:           "8000",
			// What a Deployment's pods carry.
			Labels: map[string]string{"app": "vllm", "pod-template-hash": "5d4f8c7b9"},
		}, metrics))
	}
	weighted := scheduling.NewWeightedScorer
	f.scheduler = scheduling.NewSchedulerWithConfig(scheduling.NewSchedulerConfig(
		profile.NewSingleProfileHandler(),
		map[string]framework.SchedulerProfile{"default": scheduling.NewSchedulerProfile().
			WithScorers(
				weighted(queuedepth.NewQueueScorer(), 2),
				weighted(kvcacheutilization.NewKVCacheUtilizationScorer(), 2),
				weighted(runningrequests.NewRunningRequestsSizeScorer(), 1),
			).
			WithPicker(picker.NewMaxScorePicker(picker.DefaultMaxNumOfEndpoints))},
	))
	return f
}

// decide does what the stock director does between parsing a request and
// answering it: list the pods, copy each of them, and schedule.
func (f *fleet) decide() {
	pods := []datalayer.Endpoint{}
	f.pods.Range(func(_, pod any) bool {
		pods = append(pods, pod.(datalayer.Endpoint))
		return true
	})
	candidates := make([]framework.Endpoint, len(pods))
	for i, pod := range pods {
		candidates[i] = framework.NewEndpoint(pod.GetMetadata(), pod.GetMetrics(), pod.GetAttributes())
	}
	if _, err := f.scheduler.Schedule(context.Background(), f.request, candidates); err != nil {
		fmt.Fprintln(os.Stderr, "stock:", err)
		os.Exit(1)
	}
}

// measure returns nanoseconds of CPU and allocations per decision.
func (f *fleet) measure(decisions int) (ns, allocs string) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := cpu()
	for range decisions {
		f.decide()
	}
	end := cpu()
	runtime.ReadMemStats(&after)
	perDecision := func(total float64) string { return strconv.FormatFloat(total/float64(decisions), 'f', 1, 64) }
	return perDecision(float64(end - start)), perDecision(float64(after.Mallocs - before.Mallocs))
}

// cpu is what this process has taken so far, in nanoseconds.
func cpu() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		fmt.Fprintln(os.Stderr, "stock:", err)
		os.Exit(1)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
