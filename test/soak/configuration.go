package main

import (
	"fmt"
	"strings"
)

// configuration is what differs between the pickers of the checks.
type configuration struct {
	endpoints, fallbacks int
	// telemetry is none, or auto: nobody answers at the endpoints.
	telemetry string
	// limits are in YAML, in flow style.
	limits string
}

// model is served by every endpoint, and so is any other.
const model = "llama-3.1-8b"

// ring is how many decisions the pickers keep. It is full before anything is
// measured.
const ring = 200

func (c configuration) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: kv-cache-utilization}
- {type: active-requests}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth, weight: 2}
  - {pluginRef: kv-cache-utilization, weight: 2}
  - {pluginRef: active-requests, weight: 1}
  - {pluginRef: berth-picker}
---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
telemetry: {mode: %s}
ledger: {ring: %d}
gateway: {fallbacks: %d, requestTrailers: pass}
limits: %s
---
apiVersion: berth.dev/v1alpha1
kind: StaticPool
metadata: {name: soak}
endpoints:
`, c.telemetry, ring, c.fallbacks, c.limits)
	for i := range c.endpoints {
		fmt.Fprintf(&b, "- {name: r%d, address: %s, port: %d, engine: vllm}\n", i, endpointHost(i), endpointPort)
	}
	return b.String()
}

// endpointPort is the discard port: nothing listens there.
const endpointPort = 9

// endpointHost is an address of the loopback, up to 250 of them.
func endpointHost(i int) string { return fmt.Sprintf("127.0.1.%d", i+1) }

// unhurried are limits that no request of a slow machine meets.
const unhurried = "decisionDeadline: 1m, uploadIdle: 5m, uploadTime: 10m, drain: 0s"

func limited(limits string) configuration {
	return configuration{endpoints: 8, fallbacks: 2, telemetry: "none", limits: "{" + limits + "}"}
}

func standard(size) configuration { return limited(unhurried) }

// hasty gives up soon on those who do not go on.
func hasty(size) configuration {
	return limited("decisionDeadline: 1m, uploadIdle: 2s, uploadTime: 4s, drain: 0s, keepalive: {interval: 1s, timeout: 1s}")
}

// holding may hold a few of the largest bodies.
func holding(n size) configuration {
	return limited(fmt.Sprintf("%s, body: %d, buffered: %d, message: 64MiB", unhurried, n.buffered/8, n.buffered))
}

// roomy lets long names come to where they could be kept.
func roomy(size) configuration {
	return limited(unhurried + ", headerCount: 10000, headerBytes: 16MiB")
}
