package console

import (
	"cmp"
	"strings"

	"github.com/berth-dev/berth/internal/engine"
)

// Failure says in words why a page was not read.
type Failure struct {
	// Meaning is what happened; Hint what to do about it, perhaps empty.
	Meaning, Hint string
}

// needs and exporterNeeds are what the built-in profiles say of what it takes that
// a page is there and says something, by the profile's name.
var needs, exporterNeeds = builtInNeeds()

func builtInNeeds() (engines, exporters map[string]string) {
	engines, exporters = map[string]string{}, map[string]string{}
	set, err := engine.Defaults()
	if err != nil {
		// Whoever reads pages with the profiles reports it.
		return engines, exporters
	}
	for _, p := range set.Profiles() {
		if p.Exporter() {
			exporters[p.Name()] = p.Metrics().Needs
		} else {
			engines[p.Name()] = p.Metrics().Needs
		}
	}
	return engines, exporters
}

// Needs is what an engine or exporter must be started with to be read; empty for
// one that is not built in.
func Needs(name string) string { return cmp.Or(needs[name], exporterNeeds[name]) }

// advice is what follows a hint, as far as it depends on the engine.
type advice uint8

const (
	noAdvice advice = iota
	// engineNeeds is what the engine needs.
	engineNeeds
	// whoGetsKeys is for an engine that is not known.
	whoGetsKeys
)

// failures are the reasons of scrapes.
var failures = map[string]struct {
	Failure
	more advice
}{
	"refused": {Failure{"nothing listens at the address and port",
		"Is the engine up, and is this the port that it serves at? One that listens on 127.0.0.1 alone refuses other hosts. " +
			"Triton's metrics page is on port 8002."}, noAdvice},
	"reset":       {Failure{"the connection was closed before an answer", "Is this the port of the engine, and does it speak HTTP without TLS?"}, noAdvice},
	"unreachable": {Failure{"there was no connection", "Is the address right, and does a network policy let this host through?"}, noAdvice},
	"timeout": {Failure{"no whole page within the time limit",
		"The engine hangs, the page is far too large, or something on the way drops packets. telemetry.timeout is the picker's limit."}, noAdvice},
	"status_401": {Failure{"the page asks for credentials",
		"Give the profile auth: {bearerTokenFile: FILE}; the file is read again when it changes."}, whoGetsKeys},
	"status_403": {Failure{"the page refuses who asks",
		"Give the profile auth: {bearerTokenFile: FILE}, or let this host in."}, whoGetsKeys},
	"status_404": {Failure{"there is no page at the path of the metrics", ""}, engineNeeds},
	"redirect":   {Failure{"the answer leads to another host or port", "Ask for the page where it is; other hosts are never followed to."}, noAdvice},
	"too_large":  {Failure{"the page is larger than the limit", "telemetry.maxPage is the picker's limit, 8MiB if it is left out and 64MiB at most; --max-page is that of berthctl observe."}, noAdvice},
	"truncated":  {Failure{"the page ends in the middle of a line", "Something on the way cuts it, or the engine ended while it answered."}, noAdvice},
	"empty":      {Failure{"the page is empty", ""}, engineNeeds},
	"not_text":   {Failure{"the page is JSON, HTML or binary", "A metrics page is text. Is the path that of the metrics page?"}, engineNeeds},
	"no_text_page": {Failure{"it is not told whose engine it is, or it is one without a text page at the usual path",
		"Name the engine: --engine here, engine: in the pool. One whose JSON is changed by reading is never asked for it."}, engineNeeds},
	"no_engine_families": {Failure{"a metrics page without one family of an engine that is known",
		"Either its statistics are switched off, or it is another program's page, or an engine without a profile: docs/engines.md says how to write one."}, engineNeeds},
	"several_engines": {Failure{"families of several engines are on the page",
		"Name the one that serves: --engine here, engine: in the pool. A page that joins several replicas is not one replica's."}, noAdvice},
	"joined": {Failure{"the page joins several replicas",
		"It is the page of a router. Ask each of the replicas behind it, which are the members of the pool."}, noAdvice},
	"profile_unknown": {Failure{"the engine that is declared has no profile", "berthctl profiles list shows those that there are; --profiles adds others."}, noAdvice},
	"tls": {Failure{"no trust in the certificate, or no TLS there",
		"Give the profile tls: {caFile: FILE, serverName: NAME}; http:// is for servers without TLS."}, noAdvice},
	"malformed": {Failure{"the answer is not what the format promises", "Is this the port of an HTTP server?"}, noAdvice},
}

// ScrapeFailure tells what a reason of a scrape means. name is the profile's, or
// empty or "unknown" if it is not known.
func ScrapeFailure(reason, name string) Failure {
	f, known := failures[reason]
	if !known {
		if status, is := strings.CutPrefix(reason, "status_"); is {
			return Failure{Meaning: "the page answers with status " + status, Hint: "The log of the engine tells why."}
		}
		return Failure{Meaning: "the page was not read"}
	}
	var hints []string
	if f.Hint != "" {
		hints = append(hints, f.Hint)
	}
	unknown := name == "" || name == "unknown"
	switch words := Needs(name); {
	case f.more == engineNeeds && words != "":
		hints = append(hints, words)
	case f.more == engineNeeds && unknown:
		hints = append(hints, flags)
	case f.more == whoGetsKeys && unknown:
		hints = append(hints, keys)
	}
	return Failure{f.Meaning, strings.Join(hints, " ")}
}

// flags sums needs up for an engine that is not known.
const flags = "SGLang needs --enable-metrics, trtllm-serve return_perf_metrics: true (its page is /prometheus/metrics), vLLM must not have " +
	"--disable-log-stats, and Triton's page is on port 8002."

// keys says who gets keys.
const keys = "Keys are sent only to an engine that is named: --engine, or engine: in the pool."
