package policy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
)

// Severity orders findings.
type Severity string

const (
	// SeverityWarning: probably not what was meant.
	SeverityWarning Severity = "warning"
	// SeverityNote: right in some places, to be known in all.
	SeverityNote Severity = "note"
)

// Finding is one thing that is valid and questionable.
type Finding struct {
	// Code is stable: "BERTH001".
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Where is a field of the configuration, a place in an intent, or an endpoint,
	// plugin or engine profile by its name.
	Where       string `json:"where"`
	Explanation string `json:"explanation"`
	// Fix is never empty in a finding of Lint.
	Fix string `json:"fix,omitempty"`
}

// Rule is one kind of finding.
type Rule struct {
	Code        string
	Severity    Severity
	Title       string
	Explanation string
	Fix         string

	// find returns the places; nil if the rule holds. The policy is nil where a
	// pool is checked by itself, and the pool where there is none. A rule about
	// intents has findIntents instead, for which there is a pool. One about the text of
	// intents has none of them: see LintIgnored.
	find        func(*Policy, *Pool) []string
	findIntents func(*demands) []string
}

// Rules are all rules in the order of their codes. A code is never used again
// for something else.
func Rules() []Rule {
	return []Rule{
		{
			Code: "BERTH001", Severity: SeverityWarning, Title: "no scorer has weight",
			Explanation: "No scorer of the profile has a weight above 0, so that nothing tells the replicas apart: requests spread uniformly.",
			Fix:         "Give at least one scorer a weight above 0.",
			find: policyRule(func(p *Policy) []string {
				return at(!slices.ContainsFunc(p.Profile.Scorers, weighted), "schedulingProfiles[0].plugins")
			}),
		},
		{
			Code: "BERTH002", Severity: SeverityWarning, Title: "no load scorer has weight",
			Explanation: "None of queue-depth, kv-cache-utilization and active-requests has a weight above 0, so that no decision is ever at the full or partial rung.",
			Fix:         "Give a load scorer a weight above 0.",
			find: policyRule(func(p *Policy) []string {
				return at(slices.ContainsFunc(p.Profile.Scorers, weighted) && !slices.ContainsFunc(p.Profile.Scorers, weightedLoad), "schedulingProfiles[0].plugins")
			}),
		},
		{
			Code: "BERTH003", Severity: SeverityWarning, Title: "load scorers without telemetry",
			Explanation: "telemetry.mode is none, so that load scorers never have an engine's reading: decisions stay at the local rung at best.",
			Fix:         "Set telemetry.mode to auto, or leave the load scorers out.",
			find: policyRule(func(p *Policy) []string {
				return at(p.Telemetry.Mode == v1alpha1.TelemetryNone && slices.ContainsFunc(p.Profile.Scorers, weightedLoad), "telemetry.mode")
			}),
		},
		{
			Code: "BERTH004", Severity: SeverityNote, Title: "fallbacks need a gateway that takes a list",
			Explanation: "With gateway.fallbacks above 0 the destination is a list of addresses. Envoy's override_host walks it on retries; an ORIGINAL_DST cluster takes one address and answers 503 to a list.",
			Fix:         "Nothing, if the gateway is what berthctl gateway writes with --kind override-host, its default. A gateway with an ORIGINAL_DST cluster (--kind original-dst) needs gateway.fallbacks 0.",
			find:        policyRule(func(p *Policy) []string { return at(p.Gateway.Fallbacks > 0, "gateway.fallbacks") }),
		},
		{
			Code: "BERTH005", Severity: SeverityWarning, Title: "fallbacks with request trailers",
			Explanation: "Envoy sends the body twice to the replica when it retries a request that ends with trailers, and fallbacks are reached by retries.",
			Fix:         "Set gateway.requestTrailers to refuse, or gateway.fallbacks to 0.",
			find: policyRule(func(p *Policy) []string {
				return at(p.Gateway.Fallbacks > 0 && p.Gateway.RequestTrailers == v1alpha1.TrailersPass, "gateway.requestTrailers")
			}),
		},
		{
			Code: "BERTH006", Severity: SeverityWarning, Title: "scrape timeout is long for the hot interval",
			Explanation: "A reading of a hot replica stays fresh for three hot intervals and one timeout. With a timeout above ten hot intervals a replica that stopped answering is believed for far longer than hot suggests.",
			Fix:         "Lower telemetry.timeout or raise telemetry.hot.",
			find: policyRule(func(p *Policy) []string {
				return at(p.Telemetry.Mode != v1alpha1.TelemetryNone && p.Telemetry.Timeout > 10*p.Telemetry.Hot, "telemetry.timeout")
			}),
		},
		{
			Code: "BERTH007", Severity: SeverityWarning, Title: "two scorers of one type",
			Explanation: "Two scorers with weight have the same type, so that their weights add up: the same evidence counts twice.",
			Fix:         "Keep one of them, with the sum of the weights.",
			find:        policyRule(repeatedScorers),
		},
		{
			Code: "BERTH008", Severity: SeverityWarning, Title: "the decision deadline is longer than the drain",
			Explanation: "A picker that shuts down waits for limits.drain only, so that requests that still had time to be decided are refused.",
			Fix:         "Raise limits.drain above limits.decisionDeadline.",
			find: policyRule(func(p *Policy) []string {
				return at(p.Limits.DecisionDeadline > p.Limits.Drain, "limits.drain")
			}),
		},
		{
			Code: "BERTH009", Severity: SeverityWarning, Title: "no pool",
			Explanation: "The configuration names no pool file and holds no StaticPool, so that the picker has no endpoint.",
			Fix:         "Set discovery.file, or add a StaticPool document.",
			find: func(p *Policy, static *Pool) []string {
				return at(p != nil && static == nil && p.Discovery.File == "", "discovery")
			},
		},
		{
			Code: "BERTH010", Severity: SeverityWarning, Title: "a pool without endpoints",
			Explanation: "The pool lists no endpoint: every request is refused with pool_empty.",
			Fix:         "List at least one endpoint.",
			find:        poolRule(func(p *Pool) []string { return at(len(p.Endpoints) == 0, "endpoints") }),
		},
		{
			Code: "BERTH011", Severity: SeverityWarning, Title: "no endpoint may serve",
			Explanation: "Each endpoint is declared not ready or terminating, which excludes it from every pick.",
			Fix:         "Set ready to true and terminating to false where that holds.",
			find: poolRule(func(p *Pool) []string {
				return at(len(p.Endpoints) > 0 && !slices.ContainsFunc(p.Endpoints, func(s pool.Spec) bool { return s.Ready && !s.Terminating }), "endpoints")
			}),
		},
		{
			Code: "BERTH012", Severity: SeverityWarning, Title: "the pool asks to fail open",
			Explanation: "failureMode FailOpen has no effect: the picker does not act on it, and the gateway that berthctl gateway writes fails closed whatever it says, so that requests are refused while the picker is away.",
			Fix:         "Set failureMode to FailClose, which is what happens.",
			find:        poolRule(func(p *Pool) []string { return at(p.FailureMode == v1alpha1.FailOpen, "failureMode") }),
		},
		{
			Code: "BERTH013", Severity: SeverityNote, Title: "an engine is left to detection",
			Explanation: "The endpoint declares no engine: which one it is shows with its first page, and nothing is known of it until then. An engine that no profile is for serves without telemetry.",
			Fix:         "Set engine, or the label berth.dev/engine, to the name of the engine's profile; leave it out for an engine that none is for.",
			find: poolRule(func(p *Pool) []string {
				return places(p, func(s *pool.Spec) bool { return s.Engine == "" })
			}),
		},
		{
			Code: "BERTH014", Severity: SeverityWarning, Title: "endpoints that share a telemetry page",
			Explanation: "Several endpoints of one address declare the same metrics port and path, so that the load of all is read as the load of each.",
			Fix:         "Give each endpoint the metrics port of its own engine.",
			find:        poolRule(sharedPages),
		},
		{
			Code: "BERTH015", Severity: SeverityWarning, Title: "messages are smaller than bodies may be",
			Explanation: "limits.message is less than limits.body and 64KiB more. A gateway that buffers sends a body in one message, so that bodies over limits.message fail at the gateway, with its own status, before limits.body refuses them.",
			Fix:         "Raise limits.message, leave it out, or lower limits.body. Nothing, if no gateway buffers (request_body_mode BUFFERED).",
			find: policyRule(func(p *Policy) []string {
				return at(p.Limits.Listener.Message < p.Limits.Body+64<<10, "limits.message")
			}),
		},
		{
			Code: "BERTH016", Severity: SeverityNote, Title: "a profile's ttl is shorter than the readings of idle replicas live",
			Explanation: "A reading lives for three intervals and a timeout at least, so that replicas that are read rarely are not stale all the time. The ttl of the profile's metrics page is shorter than three times telemetry.idle and one telemetry.timeout: at idle replicas it has no effect.",
			Fix:         "Nothing, if the ttl is meant for replicas that are read more often. Raise it, or lower telemetry.idle, where it is meant for all.",
			find:        policyRule(shortLived),
		},
		{
			Code: "BERTH017", Severity: SeverityWarning, Title: "the pool asks to fail open past hard constraints",
			Explanation: "With failureMode FailOpen a gateway that acts on it serves requests by any endpoint while the picker is away. What the configuration and the pool say of who may serve what (models.aliases, intent.signedHeader, trust.plainHeaders, tenants, safety, residency) is not checked then.",
			Fix:         "Set failureMode to FailClose.",
			find:        failsOpen,
		},
		{
			Code: "BERTH018", Severity: SeverityWarning, Title: "an alias that no endpoint serves",
			Explanation: "Each endpoint declares servedModels, and none declares one of the served models of the alias: a request whose intent names it is refused with model_unserved.",
			Fix:         "List the names by which endpoints serve the model, or add them to the servedModels of an endpoint that serves it.",
			find:        unservedAliases,
		},
		{
			Code: "BERTH019", Severity: SeverityNote, Title: "plain headers are trusted",
			Explanation: "With trust.plainHeaders true the headers of trust.headers are an intent, whoever sent them. Where the gateway lets copies of clients pass, a client states its own model, tenant and residency.",
			Fix:         "Nothing, if the gateway removes these headers from what clients send, before the router sets them: lint the gateway's Envoy configuration too. Otherwise set it to false, and let the router write dynamic metadata or sign its intents.",
			find:        policyRule(func(p *Policy) []string { return at(p.Trust.PlainHeaders, "trust.plainHeaders") }),
		},
		{
			Code: "BERTH020", Severity: SeverityNote, Title: "headers are mapped and not trusted",
			Explanation: "trust.headers maps headers to parts of an intent, and trust.plainHeaders is false: the headers are counted as untrusted, and mean nothing.",
			Fix:         "Nothing, if they are to be counted only. Otherwise set trust.plainHeaders to true, where the gateway removes the copies that clients send, or leave trust.headers out.",
			find:        policyRule(func(p *Policy) []string { return at(mappedInVain(p.Trust), "trust.headers") }),
		},
		{
			Code: "BERTH021", Severity: SeverityWarning, Title: "an alias hides a served model",
			Explanation: "The alias has the name of a served model, which an endpoint declares or another alias lists, and does not list that name itself. An intent that names it as its logicalModel does not mean that model. Aliases are followed once: where another alias lists the name, it means the served model.",
			Fix:         "Give the alias another name, add its own name to what it lists, or list served models in place of aliases.",
			find:        hidingAliases,
		},
		{
			Code: "BERTH022", Severity: SeverityWarning, Title: "a label and an annotation contradict each other",
			Explanation: "The endpoint has a label and an annotation of one key that state different sets. The attribute is invalid, and meets no requirement, not even DoesNotExist.",
			Fix:         "Keep one of the two, or make them the same.",
			find:        poolRule(contradictions),
		},
		{
			Code: "BERTH023", Severity: SeverityNote, Title: "plugins that never act",
			Explanation: "A filter of the profile changes nothing, since screening always runs, and in full; a scorer of weight 0 is kept out of the score; a plugin that no profile refers to does not run.",
			Fix:         "Nothing, if the file is shared with a picker that runs them. Otherwise leave them out, or give the scorer a weight above 0.",
			find:        policyRule(idlePlugins),
		},
		// BERTH024 was what is an error now: an intent that is required and cannot arrive.
		{
			Code: "BERTH025", Severity: SeverityNote, Title: "quarantine never acts",
			Explanation: "With screening.quarantine.maxShare 0 no replica may be in quarantine: one that fails every request keeps getting them.",
			Fix:         "Nothing, if that is meant. Otherwise set it to the share of replicas that the pool can do without for a while.",
			find: policyRule(func(p *Policy) []string {
				return at(p.Screening.Quarantine.MaxShare == 0, "screening.quarantine.maxShare")
			}),
		},
		{
			Code: "BERTH026", Severity: SeverityNote, Title: "signed intents outlive their expiry by long",
			Explanation: "intent.signedHeader.skew is added to the expiry of a signed intent. Above 1m, one that was overheard can be used again for that much longer.",
			Fix:         "Nothing, if clocks differ by that much. Otherwise lower it: clocks that are kept in step differ by less than a second.",
			find: policyRule(func(p *Policy) []string {
				return at(p.Intent.Skew > time.Minute, "intent.signedHeader.skew")
			}),
		},
		{
			Code: "BERTH027", Severity: SeverityWarning, Title: "a context limit that nobody states",
			Explanation: "telemetry.mode is none, so that no engine is asked for its context limit, the endpoint declares none, and with screening.contextUnknown fail it is out for each request whose intent says how much context must fit. Where all endpoints are like that, each such request is refused with context_exceeded.",
			Fix:         "Set contextLimit, or the annotation berth.dev/context-limit; or set screening.contextUnknown to pass.",
			find:        unknownContexts,
		},
		{
			Code: "BERTH028", Severity: SeverityWarning, Title: "an intent's model that no endpoint serves",
			Explanation: "Each endpoint declares servedModels, and none declares a model that the intent allows: its requests are refused with model_unserved.",
			Fix:         "Add the alias to models.aliases, list the served models in the intent, or declare the model at an endpoint that serves it.",
			findIntents: (*demands).unservedModels,
		},
		{
			Code: "BERTH029", Severity: SeverityWarning, Title: "a requirement that no endpoint meets",
			Explanation: "By what is declared, no endpoint meets the requirement: requests with this intent are refused. An attribute that an endpoint does not state meets DoesNotExist only, and a contradicted one meets nothing. What engines state themselves is not judged.",
			Fix:         "Correct the key, the operator or the values, or label the endpoints that are meant.",
			findIntents: (*demands).unmet,
		},
		{
			Code: "BERTH030", Severity: SeverityWarning, Title: "an intent that no endpoint meets as a whole",
			Explanation: "Some endpoint serves the model, and some endpoint meets each requirement, but by what is declared none does all of it with the context that the intent needs: requests with this intent are refused.",
			Fix:         "Relax a requirement, or label an endpoint so that it meets all of them.",
			findIntents: (*demands).unmetTogether,
		},
		{
			Code: "BERTH031", Severity: SeverityNote, Title: "exporters that are not read",
			Explanation: "telemetry.mode is none, so that no page is read: telemetry.exporters does nothing.",
			Fix:         "Nothing, if telemetry is to be switched on again. Otherwise leave telemetry.exporters out, or set telemetry.mode to auto.",
			find: policyRule(func(p *Policy) []string {
				return at(p.Telemetry.Mode == v1alpha1.TelemetryNone && len(p.Exporters) > 0, "telemetry.exporters")
			}),
		},
		{
			Code: codeIgnored, Severity: SeverityNote, Title: "a member of an intent that is ignored",
			Explanation: "An intent of this version has no such member. Pickers pass it over, so that later versions can add hints, and the record of the decision names it: what it says has no effect.",
			Fix:         "Nothing, if the router writes it for others, or for a later version. Otherwise correct its name, or leave it out: what must hold of a replica is one of requirements.",
		},
		{
			Code: "BERTH033", Severity: SeverityWarning, Title: "a requirement on a key of berth.dev that means nothing",
			Explanation: "Keys that begin with berth.dev/ are Berth's, and a pool that states another one than those that mean something is refused. No endpoint has the attribute: DoesNotExist is met by all, and every other operator by none.",
			Fix:         "Correct the key. Attributes of one's own have a prefix of one's own, or none.",
			findIntents: (*demands).unknownAttributes,
		},
		{
			Code: codeAccess, Severity: SeverityWarning, Title: "a file that engines are asked with is of no use",
			Explanation: "An engine profile names a file with a bearer token or with certificate authorities that cannot be read here, or does not hold what it should. A picker starts without it, and reads it as soon as it comes: until then the pages of these engines stay unread.",
			Fix:         "Mend the file or its path. Where the picker runs elsewhere, with files of its own, there is nothing to do.",
		},
		{
			Code: "BERTH035", Severity: SeverityNote, Title: "an engine profile that stands instead of a built-in one",
			Explanation: "A profile of telemetry.profiles has the name of one that is built in, and all replicas of this engine are read by it: what later versions of Berth learn about the engine does not reach them.",
			Fix:         "Nothing, if this is meant. Otherwise give the profile a name of its own.",
			find: policyRule(func(p *Policy) (places []string) {
				for _, name := range p.ReplacedProfiles() {
					places = append(places, "telemetry.profiles: "+name)
				}
				return places
			}),
		},
		{
			Code: "BERTH036", Severity: SeverityNote, Title: "settings of intents where none can arrive",
			Explanation: "intent.metadata is false, intent.signedHeader is left out, and trust.plainHeaders is false: no request brings an intent, and what acts on intents alone never acts.",
			Fix:         "Nothing, if a channel is to be switched on again. Otherwise leave the setting out.",
			find:        policyRule(idleIntents),
		},
	}
}

// codeAccess is the rule of LintAccess.
const codeAccess = "BERTH034"

// LintAccess tells of the files that a profile names and that are of no use, one place
// for each: whoever asks engines for pages knows what they must be like.
func LintAccess(places []string) []Finding {
	var findings []Finding
	for _, r := range Rules() {
		if r.Code == codeAccess {
			findings = r.findings(places)
		}
	}
	return findings
}

// codeIgnored is the rule of LintIgnored.
const codeIgnored = "BERTH032"

// Lint finds what is questionable in a policy and a pool. Either may be nil; a
// nil pool stands for the policy's inline pool, if it has one.
func Lint(p *Policy, static *Pool) []Finding {
	if static == nil && p != nil {
		static = p.Pool
	}
	var findings []Finding
	for _, r := range Rules() {
		if r.find != nil {
			findings = append(findings, r.findings(r.find(p, static))...)
		}
	}
	return findings
}

func (r *Rule) findings(places []string) []Finding {
	var findings []Finding
	for _, where := range places {
		findings = append(findings, Finding{r.Code, r.Severity, where, r.Explanation, r.Fix})
	}
	return findings
}

func policyRule(find func(*Policy) []string) func(*Policy, *Pool) []string {
	return func(p *Policy, _ *Pool) []string {
		if p == nil {
			return nil
		}
		return find(p)
	}
}

func poolRule(find func(*Pool) []string) func(*Policy, *Pool) []string {
	return func(_ *Policy, p *Pool) []string {
		if p == nil {
			return nil
		}
		return find(p)
	}
}

func at(found bool, where string) []string {
	if !found {
		return nil
	}
	return []string{where}
}

func places(p *Pool, found func(*pool.Spec) bool) []string {
	var where []string
	for i := range p.Endpoints {
		if found(&p.Endpoints[i]) {
			where = append(where, "endpoint "+p.Endpoints[i].Name)
		}
	}
	return where
}

func weighted(s ScorerRef) bool { return s.Weight > 0 }

// weightedLoad says whether the scorer reads one of the fields that decide the
// rung.
func weightedLoad(s ScorerRef) bool {
	return weighted(s) && (s.Type == "queue-depth" || s.Type == "kv-cache-utilization" || s.Type == "active-requests")
}

func repeatedScorers(p *Policy) []string {
	byType := map[string][]string{}
	var order []string
	for _, s := range p.Profile.Scorers {
		if weighted(s) {
			// Parameters make a scorer another one.
			key := s.Type + " " + string(s.Parameters)
			if len(byType[key]) == 1 {
				order = append(order, key)
			}
			byType[key] = append(byType[key], s.Name)
		}
	}
	var where []string
	for _, key := range order {
		where = append(where, "plugins "+strings.Join(byType[key], ", "))
	}
	return where
}

// unsetTTL is the ttl of a page that sets none, and the shortest that one can set.
const unsetTTL = 100 * time.Millisecond

func shortLived(p *Policy) []string {
	if p.Telemetry.Mode == v1alpha1.TelemetryNone {
		return nil
	}
	var where []string
	for _, own := range p.ownEngines {
		ttl := own.Metrics().TTL
		if !own.Exporter() && ttl > unsetTTL && ttl < 3*p.Telemetry.Idle+p.Telemetry.Timeout {
			where = append(where, "profile "+own.Name())
		}
	}
	return where
}

func sharedPages(p *Pool) []string {
	type page struct {
		address netip.Addr
		port    uint16
		path    string
	}
	users := map[page]int{}
	key := func(s *pool.Spec) page { return page{s.Address.Addr(), s.Metrics.Port, s.Metrics.Path} }
	for i := range p.Endpoints {
		users[key(&p.Endpoints[i])]++
	}
	return places(p, func(s *pool.Spec) bool { return s.Metrics.Port != 0 && users[key(s)] > 1 })
}
