package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// forged is in whatever text a client of these tests makes up.
const forged = "forged-7c1f"

// A forgery is what a client says under the names that gateways, routers and the
// picker use.
type forgery struct {
	name   string
	header http.Header
}

// forgeries are all that a client can say in headers: that it wants the victim, by
// a signed intent that is none, and by everything else there is a name for.
func forgeries(t *testing.T, victim string) []forgery {
	t.Helper()
	intent := signable(forged, time.Now().Add(time.Hour), serves("theirs"))
	intent.LogicalModel = forged
	text := written(t, intent)
	b64 := base64.RawURLEncoding.EncodeToString
	tokens := []struct{ name, token string }{
		{"garbage", forged},
		{"signed by another key of that name", newSigner(t, "router", jose.EdDSA).sign(t, text)},
		{"alg none", b64([]byte(`{"alg":"none","kid":"router"}`)) + "." + b64([]byte(text)) + "."},
	}
	upper := strings.ToUpper
	same := func(name string) string { return name }
	once := func(v string) []string { return []string{v} }
	var all []forgery
	for _, token := range tokens {
		values := map[string]string{
			"x-berth-intent": token.token, modelHeader: forged, tenantHeader: "theirs",
			"x-gateway-destination-endpoint": victim, "x-gateway-destination-endpoint-subset": victim,
			"x-gateway-destination-endpoint-served": victim,
			"x-envoy-original-dst-host":             victim, "envoy.lb": victim, "envoy.lb.subset_hint": victim,
			// A client cannot write dynamic metadata; what is called like it is a header.
			"berth.dev": text, "berth.dev.intent": text, "intent": text, "logicalmodel": forged, "servedmodels": forged,
			"requirement.authorization.berth.dev": "theirs", "x-envoy-dynamic-metadata": text,
			"envoy.filters.http.ext_proc": text, "acknowledgement": text,
		}
		for _, name := range []string{"decision", "rung", "policy", "acted", "reason"} {
			values["x-berth-"+name] = forged
		}
		for _, as := range []struct {
			name    string
			spelled func(string) string
			copies  func(string) []string
		}{
			{"once", same, once},
			{"in capitals", upper, once},
			{"twice", same, func(v string) []string { return []string{v, v} }},
			{"as a list", same, func(v string) []string { return []string{v + "," + v} }},
		} {
			f := forgery{token.name + ", " + as.name, http.Header{}}
			for name, value := range values {
				f.header[as.spelled(name)] = as.copies(value)
			}
			all = append(all, f)
		}
	}
	return all
}

// forgedIntents has clients forge everything, before gateways that let it pass and
// gateways that do not, with each channel off, and on and used by the gateway.
func forgedIntents(t *testing.T, binary string) {
	router := newSigner(t, "router", jose.EdDSA)
	ours := written(t, signable("ours", time.Now().Add(time.Hour), serves("ours")))
	token := router.sign(t, ours)
	keys := writeKeys(t, router)
	var address string // of the replica that is right
	f := start(t, spec{
		engines: append(engines(2, fast), engines(1, fast)...),
		binary:  binary,
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			for i, tenant := range []string{"theirs", "ours", "theirs"} {
				m[i].Annotations = map[string]string{v1alpha1.AttributeTenants: tenant}
			}
			address = fmt.Sprintf("%s:%d", m[1].Address, m[1].Port)
			return m
		},
		berth: tree{
			"intent": tree{"metadata": false},
			"trust":  tree{"headers": tree{modelHeader: "logicalModel", tenantHeader: "requirement.authorization.berth.dev/tenants"}},
			"models": tree{"aliases": tree{"quick": []any{"sim-model"}}},
		},
		envoy: func(bootstrap tree) {
			addClusters(t, bootstrap)
			says := map[string]func(tree){
				"subset": func(l tree) {
					setMetadata(l, "says", "envoy.lb.subset_hint", tree{"x-gateway-destination-endpoint-subset": []any{address}})
				},
				"metadata": func(l tree) {
					setMetadata(l, "says", "berth.dev", tree{"intent": ours})
				},
				"signed":  func(l tree) { setHeaders(l, "says", [2]string{"x-berth-intent", token}) },
				"headers": func(l tree) { setHeaders(l, "says", [2]string{modelHeader, "quick"}, [2]string{tenantHeader, "ours"}) },
			}
			for channel, say := range says {
				addRoutes(t, bootstrap,
					route{name: channel + " " + strips, edit: say},
					route{name: channel + " " + passes, edit: func(l tree) { stripNothing(l); say(l) }},
					route{name: channel + " " + passes + " to original-dst", cluster: originalDst, edit: func(l tree) { stripNothing(l); say(l) }})
			}
		},
	})
	all := forgeries(t, f.engines[0].Addr())

	channel := func(name, source string, counted ...string) {
		t.Run(name+" in use", func(t *testing.T) {
			for _, suffix := range []string{strips, passes, passes + " to original-dst"} {
				t.Run("a gateway that "+suffix, func(t *testing.T) {
					f.through(t, name+" "+suffix).withstands(f, all, standing{
						source: source, right: "e2", address: address, passes: suffix != strips, counted: counted,
					})
				})
			}
		})
	}
	channel("subset", "none", "x-berth-intent", modelHeader, tenantHeader)
	t.Run("metadata of the gateway's own counts for nothing while it is off", func(t *testing.T) {
		const off = `berth_untrusted_headers_total{name="berth.dev"}`
		before := f.metric(off)
		seen := map[string]bool{}
		asked := 0.0
		eventually(t, "replicas of every tenant have served", func() bool {
			asked++
			seen[way{route: "metadata " + strips, body: true}.ask(f, f.h1, "sim-model", "", nil).engine()] = true
			return len(seen) == 3
		})
		if n := f.metric(off) - before; n != asked {
			t.Errorf("counted %v times, want %v", n, asked)
		}
	})

	f.adopt(tree{"intent": tree{"metadata": true}})
	channel("metadata", "metadata", "x-berth-intent", modelHeader, tenantHeader)

	f.adopt(tree{"intent": tree{"metadata": false, "signedHeader": tree{"keySet": keys, "audience": "berth"}}})
	channel("signed", "signed", modelHeader, tenantHeader)
	t.Run("a forged signature is refused where the gateway says nothing", func(t *testing.T) {
		f := f.through(t, "subset "+passes)
		before := f.total()
		for _, forgery := range all {
			for version, c := range f.clients() {
				for _, method := range []string{http.MethodPost, http.MethodGet} {
					a := f.do(c, forgery.request(f, method))
					status, reason := 400, "intent_malformed"
					if strings.HasPrefix(forgery.name, "signed") || strings.HasPrefix(forgery.name, "alg none") {
						status, reason = 403, "intent_untrusted"
					}
					if strings.HasSuffix(forgery.name, "twice") || strings.HasSuffix(forgery.name, "list") {
						status, reason = 400, "intent_malformed"
					}
					t.Run(forgery.name+" "+method+" over "+version, func(t *testing.T) {
						expectRefusal(t, a, status, reason)
						if strings.Contains(a.body+fmt.Sprint(a.header), forged) {
							t.Errorf("the refusal repeats what the client made up: %v %s", a.header, a.body)
						}
					})
				}
			}
		}
		if n := f.total() - before; n != 0 {
			t.Errorf("%d requests with forged signatures reached a replica", n)
		}
	})

	f.adopt(tree{"intent": tree{"metadata": false}, "trust": tree{"plainHeaders": true}})
	channel("headers", "headers", "x-berth-intent")
	f.awaitInFlight(map[string]int{})
}

// Gateways that strip, as package gateway writes them, and gateways that do not.
const strips, passes = "strips", "lets all pass"

// request is a request with all that is forged.
func (forgery forgery) request(f *fleet, method string) *http.Request {
	path, body := completions, asks(1)
	if method == http.MethodGet {
		path, body = bodiless, ""
	}
	req := f.request(f.t.Context(), method, path, body)
	for name, values := range forgery.header {
		req.Header[name] = slices.Clone(values)
	}
	return req
}

// A standing is what holds however a client lies.
type standing struct {
	source         string
	right, address string // the replica that serves
	passes         bool
	// counted are the headers that are ignored and counted once for each request,
	// where they get to the picker.
	counted []string
}

// withstands sends every forgery through a route. The route's fleet is f; whole is
// that of the test.
func (f *fleet) withstands(whole *fleet, all []forgery, s standing) {
	t := f.t
	counter := func(name string) float64 {
		return f.metric(`berth_untrusted_headers_total{name="` + name + `"}`)
	}
	names := []string{"x-berth-intent", modelHeader, tenantHeader, "berth.dev"}
	before := map[string]float64{}
	for _, name := range names {
		before[name] = counter(name)
	}
	index := int(s.right[1] - '1')
	asked, reached, others := 0, served(f.engines[index]), f.total()
	var decisions []string
	for _, forgery := range all {
		for version, c := range f.clients() {
			for _, method := range []string{http.MethodPost, http.MethodGet} {
				name := fmt.Sprintf("%s, %s over %s", forgery.name, method, version)
				asked++
				a := f.do(c, forgery.request(f, method))
				if a.status != http.StatusOK || a.engine() != s.right || a.header.Get("X-Berth-Acted") != "confirmed" {
					t.Errorf("%s: status %d from %q, acted %q, %s; want 200 from %s", name, a.status, a.engine(), a.header.Get("X-Berth-Acted"), a.body, s.right)
					continue
				}
				if len(a.header["X-Berth-Decision"]) != 1 || strings.Contains(fmt.Sprint(a.header), forged) {
					t.Errorf("%s: the client gets %v", name, a.header)
				}
				decisions = append(decisions, a.decision())
				if method == http.MethodPost {
					s.arrived(t, name, a.decision(), f.engines[index].Arrivals().Last.Headers)
				}
			}
		}
	}
	if n, m := served(f.engines[index])-reached, f.total()-others; n != asked || m != asked {
		t.Errorf("%d of %d requests reached the right replica, %d any", n, asked, m)
	}
	for _, name := range names {
		want := 0
		// The gateways that strip know nothing of a header of the test's own.
		if slices.Contains(s.counted, name) && (s.passes || name == tenantHeader) {
			want = asked
		}
		if n := counter(name) - before[name]; int(n) != want {
			t.Errorf("%s was counted as untrusted %v times, want %d", name, n, want)
		}
	}
	whole.awaitInFlight(map[string]int{})
	for _, id := range decisions {
		d := whole.record(id)
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if d.Pick != s.right || d.Intent.Source != s.source || d.Acknowledgement.Acted != "confirmed" || strings.Contains(string(text), forged) {
			t.Errorf("the record has pick %s, source %s, acted %s: %s", d.Pick, d.Intent.Source, d.Acknowledgement.Acted, text)
		}
	}
}

// arrived checks what a replica got to see.
func (s standing) arrived(t *testing.T, name, decision string, headers map[string]string) {
	t.Helper()
	for header, want := range map[string]string{"x-berth-decision": decision, "x-gateway-destination-endpoint": s.address} {
		if headers[header] != want {
			t.Errorf("%s: the replica got %s: %q, want %q", name, header, headers[header], want)
		}
	}
	// Neither the gateway's own, which it could use again, nor a client's.
	if token, there := headers["x-berth-intent"]; there {
		t.Errorf("%s: the replica got the signed intent %.40q", name, token)
	}
	if s.passes {
		return
	}
	for header, value := range headers {
		own := header == "x-berth-decision" || header == "x-gateway-destination-endpoint"
		if (strings.HasPrefix(header, "x-berth-") || strings.HasPrefix(header, "x-gateway-")) && !own {
			t.Errorf("%s: the replica got %s: %s of the client's", name, header, value)
		}
		if header == modelHeader && strings.Contains(value, forged) {
			t.Errorf("%s: the replica got the client's %s: %s", name, header, value)
		}
	}
}
