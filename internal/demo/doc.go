// Package demo runs a small fleet on one machine, behind a real Envoy that asks
// a real picker, and shows what becomes of the requests.
//
// Three parts are the real thing: Envoy is the binary that the caller names,
// its configuration is the one that package gateway writes, and the picker is
// package host on a configuration file. Only the engines are simulated: four
// servers of package enginesim, each with a batch, a queue and a KV cache. All
// of them listen on 127.0.0.1, on ports that were free.
//
// # Course
//
//	live      an impaired fleet under load, with a table of it; meanwhile one
//	          replica's telemetry stops, and another replica dies and comes back
//	compare   the same requests at the same times through the picker and
//	          through round robin, on an impaired fleet and on an equal one
//	explain   one decision of the live part, told at length
//
// Each run of a comparison has engines, a picker and an Envoy of its own, so
// that nothing is cached and nothing is known when it begins. Round robin is
// Envoy's own, through the same binary and without a picker; what the picker
// costs is therefore in its numbers.
//
// # Numbers
//
// Requests are sent when they are due, whether or not earlier ones were
// answered, and are timed from when they were due. Time to first token is that
// of streamed requests: of the others the client sees nothing before the end.
// Everything that is said of the numbers follows from them.
//
// Run leaves nothing behind, however it ends: no process, no listener, no
// goroutine and no file.
package demo
