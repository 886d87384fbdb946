package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/gateway-api-inference-extension/test/integration"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginemodel"
	"github.com/berth-dev/berth/internal/enginesim"
)

// Sections of the protocol's text.
const (
	introduction        = "Proposal"
	endpointSubset      = "Endpoint Subset"
	destinationEndpoint = "Destination Endpoint"
	endpointServed      = "Destination Endpoint Served"
)

// TestTheEndpointPickerProtocol has one case per demand, in the order of the
// protocol's text. The words are ours; the section says where the demand stands.
func TestTheEndpointPickerProtocol(t *testing.T) {
	for _, tc := range []struct {
		section, demand string
		holds           func(t *testing.T)
	}{
		{introduction, "the picker answers Envoy's external processing service", everyModeIsAnswered},

		{endpointSubset, "where the gateway names a subset, only its members are picked", onlyTheSubsetIsPicked},
		{endpointSubset, "also as fallbacks", fallbacksAreOfTheSubset},
		{endpointSubset, "however much better others are", theSubsetOutweighsLoad},
		{endpointSubset, "of a subset, addresses outside the pool are not picked", noStrangerIsPicked},
		{endpointSubset, "a subset without an eligible endpoint is answered 503", noEligibleMember},
		{endpointSubset, "an empty subset is answered 503", emptySubset},
		{endpointSubset, "without the subset's key, the whole pool is picked from", noKeyIsNoSubset},

		{destinationEndpoint, "a request gets its destination as a header and as metadata, with the same value", bothWaysAgree},
		{destinationEndpoint, "a destination is an address with a port, IPv6 in brackets", destinationsHavePorts},
		{destinationEndpoint, "several are separated by commas, each once, the best first", fallbacksAreOrdered},
		{destinationEndpoint, "as many as the gateway is configured for", asManyAsConfigured},
		{destinationEndpoint, "without a ready endpoint the answer is 503", noReadyEndpoint},
		{destinationEndpoint, "an answer of the picker's own has no destination", refusalsHaveNoDestination},

		{endpointServed, "who served is read from the response's metadata", servedIsRead},
	} {
		t.Run(tc.section+": "+tc.demand, tc.holds)
	}
}

// modes are the body modes that a gateway may announce.
var modes = []extprocfilterv3.ProcessingMode_BodySendMode{
	extprocfilterv3.ProcessingMode_NONE,
	extprocfilterv3.ProcessingMode_STREAMED,
	extprocfilterv3.ProcessingMode_BUFFERED,
	extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL,
	extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
}

// announce has a gateway say its body modes, as it does on the first message.
func announce(messages []asked, request, response extprocfilterv3.ProcessingMode_BodySendMode) []asked {
	messages[0].ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return messages
}

func everyModeIsAnswered(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	const to = " to 192.168.1.1:8000"
	for mode, want := range map[extprocfilterv3.ProcessingMode_BodySendMode][]string{
		extprocfilterv3.ProcessingMode_STREAMED:             {"request_headers" + to, "request_body"},
		extprocfilterv3.ProcessingMode_BUFFERED:             {"request_headers", "request_body" + to},
		extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL:     {"request_headers" + to, "request_body"},
		extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED: {"request_headers" + to, fmt.Sprintf("request_body %q, end", promptBody)},
	} {
		p.expect(announce(prompt(), mode, mode), want...)
	}
	// Without a body to see.
	p.expect(announce(prompt()[:1], extprocfilterv3.ProcessingMode_NONE, extprocfilterv3.ProcessingMode_NONE), "request_headers"+to)
	for _, mode := range modes {
		p.expect(announce(bodiless(), mode, mode), "request_headers"+to)
	}
}

// onlyIn demands that picks went to all the wanted addresses and to no other.
func onlyIn(t *testing.T, picks map[string]int, want ...string) {
	t.Helper()
	for address := range picks {
		if !slices.Contains(want, address) {
			t.Errorf("%s was picked, want %v alone", address, want)
		}
	}
	for _, address := range want {
		if picks[address] == 0 {
			t.Errorf("%s was never picked: %v", address, picks)
		}
	}
}

// enough requests that each of three equal endpoints is picked at least once,
// but for one run in a thousand million.
const enough = 60

func onlyTheSubsetIsPicked(t *testing.T) {
	p := start(t, silent, three()...)
	onlyIn(t, p.picks(enough, func() []asked { return promptIn("192.168.1.1:8000", "192.168.1.3:8000") }), "192.168.1.1:8000", "192.168.1.3:8000")
	onlyIn(t, p.picks(enough, func() []asked { return promptIn("192.168.1.2:8000") }), "192.168.1.2:8000")
	onlyIn(t, p.picks(enough, func() []asked {
		return overGRPC(integration.GenerateStreamedGRPCRequestSet(logr.Discard(), "test1", "", []string{"192.168.1.3:8000"}, integration.GenerateGRPCMethodName))
	}), "192.168.1.3:8000")
	onlyIn(t, p.picks(enough, func() []asked {
		messages := bodiless()
		restrict(messages[0], list("192.168.1.2:8000"))
		return messages
	}), "192.168.1.2:8000")
}

func list(entries ...any) *structpb.Value {
	values := make([]*structpb.Value, len(entries))
	for i, e := range entries {
		v, err := structpb.NewValue(e)
		if err != nil {
			v = structpb.NewNullValue()
		}
		values[i] = v
	}
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

func fallbacksAreOfTheSubset(t *testing.T) {
	p := start(t, silent+"gateway: {fallbacks: 4}\n", three()...)
	for range 20 {
		got, _ := destinations(p.place(promptIn("192.168.1.1:8000", "192.168.1.3:8000")))
		addresses := strings.Split(got, ",")
		slices.Sort(addresses)
		if want := []string{"192.168.1.1:8000", "192.168.1.3:8000"}; !slices.Equal(addresses, want) {
			t.Fatalf("picked %q, want %v in any order", got, want)
		}
	}
}

// loaded starts a picker for three engines: one with a queue, an idle one, and
// one with a longer queue. It returns their addresses when all queues are known.
func loaded(t *testing.T, berth string) (p *picker, queued, idle, crowded string) {
	t.Helper()
	const batch = 4
	var addresses []string
	var members []v1alpha1.StaticEndpoint
	empty := map[string]bool{}
	for _, load := range []enginesim.Load{{Running: batch, Waiting: 3}, {}, {Running: batch, Waiting: 10}} {
		e, err := enginesim.New(enginesim.Config{Models: []string{"my-model"}, Background: load, Engine: enginemodel.Config{MaxRunning: batch}})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		addresses = append(addresses, e.Addr())
		members = append(members, at(e.Addr()))
		empty[e.Addr()] = load.Waiting == 0
	}
	// The readings of a machine that is busy with other tests stay fresh.
	p = start(t, berth+unhurried+"telemetry: {hot: 1s, warm: 1s, idle: 1s, timeout: 10s}\n", members...)
	p.awaitQueues(empty)
	return p, addresses[0], addresses[1], addresses[2]
}

func theSubsetOutweighsLoad(t *testing.T) {
	p, _, idle, crowded := loaded(t, "")
	p.expect(prompt(), "request_headers to "+idle, fmt.Sprintf("request_body %q, end", promptBody))
	p.expect(promptIn(crowded), "request_headers to "+crowded, fmt.Sprintf("request_body %q, end", promptBody))
}

func noStrangerIsPicked(t *testing.T) {
	p := start(t, silent, three()...)
	onlyIn(t, p.picks(enough, func() []asked { return promptIn("192.168.1.99:8000", "192.168.1.2:8000") }), "192.168.1.2:8000")
}

func noEligibleMember(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"), at("192.168.1.2:8000", notReady))
	p.expect(promptIn("192.168.1.99:8000"), "503 subset_empty")
	p.expect(promptIn("192.168.1.2:8000"), "503 unhealthy")
	p = start(t, silent, at("192.168.1.1:8000", serving("other-model")), at("192.168.1.2:8000", serving("my-model")))
	p.expect(promptIn("192.168.1.1:8000"), "404 model_unserved")
}

func emptySubset(t *testing.T) {
	p := start(t, silent, three()...)
	p.expect(promptIn([]string{}...), "503 subset_empty")
	messages := bodiless()
	restrict(messages[0], list())
	p.expect(messages, "503 subset_empty")
}

func noKeyIsNoSubset(t *testing.T) {
	p := start(t, silent, three()...)
	all := []string{"192.168.1.1:8000", "192.168.1.2:8000", "192.168.1.3:8000"}
	onlyIn(t, p.picks(enough, prompt), all...)
	onlyIn(t, p.picks(enough, func() []asked {
		messages := prompt()
		messages[0].MetadataContext = filterMetadata(subsetNamespace, "another-key", list("192.168.1.1:8000"))
		return messages
	}), all...)
	onlyIn(t, p.picks(enough, func() []asked {
		messages := prompt()
		messages[0].MetadataContext = filterMetadata("another.namespace", subsetKey, list("192.168.1.1:8000"))
		return messages
	}), all...)
}

func bothWaysAgree(t *testing.T) {
	for _, fallbacks := range []int{0, 2} {
		p := start(t, fmt.Sprintf("%sgateway: {fallbacks: %d}\n", silent, fallbacks), three()...)
		for name, messages := range map[string]func() []asked{
			"prompt": prompt, "bodiless": bodiless, "gRPC": generate,
			"pieces":  func() []asked { return raw(completions, `{"model":"m",`, `"prompt":"p"}`) },
			"opaque":  func() []asked { return raw("/other", "bytes") },
			"subset":  func() []asked { return promptIn("192.168.1.1:8000", "192.168.1.2:8000", "192.168.1.3:8000") },
			"headers": func() []asked { return announce(prompt(), extprocfilterv3.ProcessingMode_STREAMED, 0) },
		} {
			header, metadata := destinations(p.place(messages()))
			if header == "" || header != metadata {
				t.Errorf("%s: the header says %q and the metadata %q, want the same destination", name, header, metadata)
			}
			if n := len(strings.Split(header, ",")); n != fallbacks+1 {
				t.Errorf("%s: %q has %d endpoints, want %d", name, header, n, fallbacks+1)
			}
		}
	}
}

func destinationsHavePorts(t *testing.T) {
	for _, address := range []string{"192.168.1.1:8000", "[2001:db8::1]:8000"} {
		p := start(t, silent, at(address))
		p.expect(prompt(), "request_headers to "+address, fmt.Sprintf("request_body %q, end", promptBody))
		p.expect(promptIn(address), "request_headers to "+address, fmt.Sprintf("request_body %q, end", promptBody))
		p.expect(bodiless(), "request_headers to "+address)
	}
}

func fallbacksAreOrdered(t *testing.T) {
	p, queued, idle, crowded := loaded(t, "gateway: {fallbacks: 2}\n")
	want := strings.Join([]string{idle, queued, crowded}, ",")
	p.expect(prompt(), "request_headers to "+want, fmt.Sprintf("request_body %q, end", promptBody))
	p.expect(bodiless(), "request_headers to "+want)
}

func asManyAsConfigured(t *testing.T) {
	for fallbacks, want := range []int{1, 2, 3, 3, 3} {
		p := start(t, fmt.Sprintf("%sgateway: {fallbacks: %d}\n", silent, fallbacks), three()...)
		got, _ := destinations(p.place(prompt()))
		addresses := strings.Split(got, ",")
		slices.Sort(addresses)
		if len(slices.Compact(addresses)) != want {
			t.Errorf("with %d fallbacks %q, want %d different endpoints", fallbacks, got, want)
		}
	}
}

func noReadyEndpoint(t *testing.T) {
	terminating := func(e *v1alpha1.StaticEndpoint) { e.Terminating = true }
	for _, tc := range []struct {
		members []v1alpha1.StaticEndpoint
		want    string
	}{
		{nil, "503 pool_empty"},
		{[]v1alpha1.StaticEndpoint{at("192.168.1.1:8000", notReady), at("192.168.1.2:8000", terminating)}, "503 unhealthy"},
	} {
		p := start(t, silent, tc.members...)
		p.expect(prompt(), tc.want)
		p.expect(generate(), tc.want)
		p.expect(bodiless(), tc.want)
	}
}

func refusalsHaveNoDestination(t *testing.T) {
	p := start(t, silent, three()...)
	for want, messages := range map[string][]asked{
		"503 subset_empty":   promptIn("192.168.1.99:8000"),
		"400 body_malformed": raw(completions, "no healthy upstream"),
	} {
		answers, err := p.talk(messages, 1)
		if err != nil || len(answers) != 1 || tell(answers[0]) != want {
			t.Fatalf("answered %v and ended with %v, want %s", answers, err, want)
		}
		if m := answers[0].GetDynamicMetadata(); len(m.GetFields()[lbNamespace].GetStructValue().GetFields()) != 0 {
			t.Errorf("%s comes with the metadata %v, want no destination", want, m)
		}
	}
}

func servedIsRead(t *testing.T) {
	p, queued, idle, crowded := loaded(t, "gateway: {fallbacks: 1}\n")
	for _, tc := range []struct {
		served, want string
	}{
		{idle, "confirmed"},
		{queued, "overridden"},
		{crowded, "violated"}, // of the pool, and not of the subset
		{"192.168.1.99:8000", "violated"},
		{"", "unreported"},
	} {
		answers, _ := p.talk(append(promptIn(idle, queued), responseHeaders(tc.served, "application/json"), responsePart("", true)), 4)
		if len(answers) != 4 {
			t.Fatalf("served by %q: %d answers, want 4", tc.served, len(answers))
		}
		if got := setHeaders(mutation(answers[2]))["x-berth-acted"]; got != tc.want {
			t.Errorf("served by %q: acted %q, want %q", tc.served, got, tc.want)
		}
	}
}
