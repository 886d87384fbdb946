// Package filtertest holds what every filter must do, whatever it asks for, and
// what its tests are made of: endpoints, signed requests, a log that is read.
package filtertest

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Now is when the tests' requests arrive.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const secret = "0123456789abcdef0123456789abcdef"

// KeySet reads the key set of Sign, whatever the path.
func KeySet(string) ([]byte, error) {
	k := base64.RawURLEncoding.EncodeToString([]byte(secret))
	return fmt.Appendf(nil, `{"keys": [{"kty": "oct", "kid": "router", "alg": "HS256", "k": %q}]}`, k), nil
}

// Trusting are the parameters of a filter that believes the signer.
const Trusting = `"keySet": "keys.json", "audience": "berth"`

// Intent completes an intent: made a second before Now, for a minute.
func Intent(i v1alpha1.RoutingIntent) v1alpha1.RoutingIntent {
	i.Version, i.Audience = v1alpha1.Version, []string{"berth"}
	i.IssuedAt, i.ExpiresAt = Now.Add(-time.Second), Now.Add(time.Minute)
	return i
}

// Sign is the value of x-berth-intent.
func Sign(t testing.TB, i v1alpha1.RoutingIntent) string {
	t.Helper()
	payload, err := v1alpha1.EncodeIntent(&i)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"HS256","kid":"router"}`)) + "." + encode(payload)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil))
}

// Request is a request for a model with a signed intent.
func Request(t testing.TB, model string, i v1alpha1.RoutingIntent) *scheduling.LLMRequest {
	t.Helper()
	return &scheduling.LLMRequest{TargetModel: model, Headers: map[string]string{"x-berth-intent": Sign(t, Intent(i))}}
}

// Endpoint is an endpoint as a stock EPP would hand it to a plugin.
func Endpoint(name string, labels map[string]string, m *datalayer.Metrics) scheduling.Endpoint {
	id := types.NamespacedName{Namespace: "default", Name: name}
	return scheduling.NewEndpoint(&datalayer.EndpointMetadata{NamespacedName: id, Labels: labels}, m, nil)
}

// Names are those of endpoints, in their order.
func Names(endpoints []scheduling.Endpoint) []string {
	var names []string
	for _, e := range endpoints {
		name := "?"
		if m := e.GetMetadata(); m != nil {
			name = m.NamespacedName.Name
		}
		names = append(names, name)
	}
	return names
}

// Context has a logger that collects lines.
func Context(lines *[]string) context.Context {
	log := funcr.New(func(_, args string) { *lines = append(*lines, args) }, funcr.Options{})
	return logr.NewContext(context.Background(), log)
}

// Conform checks what every filter must do, with these requests, over endpoints
// whose labels have these values. Where narrowing is true, an endpoint of which less
// is known must not be kept for it.
func Conform(t *testing.T, f scheduling.Filter, requests []*scheduling.LLMRequest, values map[string][]string, narrowing bool) {
	t.Run("it returns some of the endpoints in their order and leaves the slice alone", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			request := rapid.SampledFrom(requests).Draw(t, "request")
			endpoints := drawEndpoints(t, values)
			before := slices.Clone(endpoints)
			kept := f.Filter(context.Background(), nil, request, endpoints)
			if !slices.Equal(endpoints, before) {
				t.Fatal("the slice of the caller was changed")
			}
			rest := endpoints
			for _, e := range kept {
				i := slices.Index(rest, e)
				if i < 0 {
					t.Fatal("an endpoint is not one of those that are left, in their order")
				}
				rest = rest[i+1:]
			}
			if again := f.Filter(context.Background(), nil, request, endpoints); !slices.Equal(kept, again) {
				t.Fatal("the same request keeps other endpoints")
			}
			for i, e := range endpoints {
				alone := f.Filter(context.Background(), nil, request, endpoints[i:i+1])
				if slices.Contains(alone, e) != slices.Contains(kept, e) {
					t.Fatal("an endpoint is judged by its neighbours")
				}
			}
		})
	})
	if !narrowing {
		return
	}
	t.Run("a label that is removed never brings an endpoint back", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			request := rapid.SampledFrom(requests).Draw(t, "request")
			labels := drawLabels(t, values)
			if len(labels) == 0 {
				t.Skip("no label")
			}
			fewer := maps.Clone(labels)
			delete(fewer, rapid.SampledFrom(slices.Sorted(maps.Keys(labels))).Draw(t, "removed"))
			keeps := func(labels map[string]string) bool {
				e := Endpoint("e", labels, nil)
				return len(f.Filter(context.Background(), nil, request, []scheduling.Endpoint{e})) == 1
			}
			if keeps(fewer) && !keeps(labels) {
				t.Fatalf("labels %v are kept, %v are not", fewer, labels)
			}
		})
	})
}

func drawEndpoints(t *rapid.T, values map[string][]string) []scheduling.Endpoint {
	endpoints := make([]scheduling.Endpoint, rapid.IntRange(0, 8).Draw(t, "endpoints"))
	for i := range endpoints {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			endpoints[i] = scheduling.NewEndpoint(nil, nil, nil)
		default:
			m := &datalayer.Metrics{}
			if rapid.Bool().Draw(t, "scraped") {
				m.UpdateTime = Now
				m.ActiveModels = map[string]int{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "adapter"): 1}
			}
			endpoints[i] = Endpoint(fmt.Sprint(i), drawLabels(t, values), m)
		}
	}
	return endpoints
}

func drawLabels(t *rapid.T, values map[string][]string) map[string]string {
	labels := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if rapid.Bool().Draw(t, "labelled") {
			labels[key] = rapid.SampledFrom(values[key]).Draw(t, key)
		}
	}
	return labels
}
