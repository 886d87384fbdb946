package channel

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/filters/internal/filtertest"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/scorers/parameters"
)

func reader(t testing.TB, params string) *Reader {
	t.Helper()
	var aliases map[string][]string
	s, err := Decode(json.RawMessage(params), Aliases(&aliases))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Alias(aliases); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(filtertest.KeySet)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAnIntentIsReadFromTheChannelsThatAreTrusted(t *testing.T) {
	const (
		off     = `{}`
		signed  = `{` + filtertest.Trusting + `}`
		plain   = `{"plainHeaders": true}`
		mapped  = `{"plainHeaders": true, "headers": {"x-model": "servedModels", "x-tenant": "requirement.authorization.berth.dev/tenants"}}`
		both    = `{` + filtertest.Trusting + `, "plainHeaders": true}`
		must    = `{` + filtertest.Trusting + `, "required": true}`
		aliased = `{"plainHeaders": true, "aliases": {"fast": ["llama-a", "llama-b"]}}`
	)
	named := filtertest.Sign(t, filtertest.Intent(v1alpha1.RoutingIntent{LogicalModel: "signed"}))
	late := filtertest.Intent(v1alpha1.RoutingIntent{LogicalModel: "signed"})
	late.ExpiresAt = filtertest.Now.Add(-31e9)
	late.IssuedAt = late.ExpiresAt.Add(-1e9)
	other := filtertest.Intent(v1alpha1.RoutingIntent{})
	other.Audience = []string{"another"}

	for _, c := range []struct {
		name, params string
		headers      map[string]string
		source       intent.Source
		models       []string
		reason       string
	}{
		{"no headers", both, nil, "none", nil, ""},
		{"no headers, and one is required", must, nil, "", nil, "intent_required"},
		{"every channel is off", off, map[string]string{"x-berth-intent": "x", "x-selected-model": "m"}, "none", nil, ""},
		{"a signed one", signed, map[string]string{"x-berth-intent": named}, "signed", []string{"signed"}, ""},
		{"a signed one in capitals", signed, map[string]string{"X-Berth-Intent": named}, "signed", []string{"signed"}, ""},
		{"a signed one in two spellings", signed, map[string]string{"x-berth-intent": named, "X-Berth-Intent": named}, "", nil, "intent_malformed"},
		{"a signed one before a plain one", both, map[string]string{"x-berth-intent": named, "x-selected-model": "m"}, "signed", []string{"signed"}, ""},
		{"a bad signed one does not fall through", both, map[string]string{"x-berth-intent": "x", "x-selected-model": "m"}, "", nil, "intent_malformed"},
		{"another signature", signed, map[string]string{"x-berth-intent": named[:len(named)-4] + "AAAA"}, "", nil, "intent_untrusted"},
		{"another audience", signed, map[string]string{"x-berth-intent": filtertest.Sign(t, other)}, "", nil, "intent_untrusted"},
		{"an expired one", signed, map[string]string{"x-berth-intent": filtertest.Sign(t, late)}, "", nil, "intent_expired"},
		{"the default plain header", plain, map[string]string{"x-selected-model": "m"}, "headers", []string{"m"}, ""},
		{"an empty plain header", plain, map[string]string{"x-selected-model": ""}, "", nil, "intent_malformed"},
		{"a plain header in two spellings", plain, map[string]string{"x-selected-model": "m", "X-Selected-Model": "m"}, "", nil, "intent_malformed"},
		{"mapped headers replace the default one", mapped, map[string]string{"x-selected-model": "m", "x-model": "a, b", "x-tenant": "t"}, "headers", []string{"a", "b"}, ""},
		{"an alias", aliased, map[string]string{"x-selected-model": "fast"}, "headers", []string{"llama-a", "llama-b"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := reader(t, c.params).Read(&scheduling.LLMRequest{Headers: c.headers}, filtertest.Now)
			if c.reason != "" {
				if err == nil || Reason(err) != c.reason {
					t.Fatalf("the error is %v, want %s", err, c.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Source != c.source || !slices.Equal(got.Models, c.models) {
				t.Errorf("the intent is by %s and names %q, want %s and %q", got.Source, got.Models, c.source, c.models)
			}
		})
	}
	if got, err := reader(t, signed).Read(nil, filtertest.Now); err != nil || got.Source != intent.SourceNone {
		t.Errorf("no request has the intent %v, %v, want none", got, err)
	}
}

func TestSettingsThatWouldLeaveAChannelShutAreRefused(t *testing.T) {
	for _, c := range []struct{ params, want string }{
		{`{"keySet": "k"}`, "audience: missing: the name of this picker, since a signed intent is meant for one"},
		{`{"audience": "berth"}`, `audience: "berth": left out without keySet: only signed intents have one here`},
		{`{"skew": "1s"}`, "skew: 1s: left out without keySet: only signed intents have times here"},
		{`{"headers": {"x-a": "logicalModel"}}`, "headers: an object: left out unless plainHeaders is true"},
		{`{"required": true}`, "required: true: false without keySet and plainHeaders: no intent could ever be trusted"},
		{`{"plainHeaders": true, "headers": {"X-A": "logicalModel"}}`,
			`headers.X-A: "logicalModel": the key of a header whose name is in lower case`},
		{`{"plainHeaders": true, "headers": {"x-berth-intent": "logicalModel"}}`,
			`headers.x-berth-intent: "logicalModel": the key of a header that does not begin with x-berth- or x-gateway-: those have a meaning of their own`},
		{`{"plainHeaders": true, "headers": {"x-a": "model"}}`,
			`headers.x-a: "model": logicalModel, servedModels, priority, sessionKey, contextInputTokens, contextOutputTokens or requirement.CLASS.KEY with a class of requirements`},
		{`{"plainHeaders": true, "headers": {"x-a": "logicalModel", "x-b": "logicalModel"}}`,
			`headers.x-b: "logicalModel": a key of its own: x-a has this one`},
		{`{"audiense": "berth"}`, `audiense: "berth": unknown parameter; known here: keySet, audience, skew, plainHeaders, headers, required`},
		{`{"keySet": "k", "audience": "berth", "skew": "6m"}`, `skew: "6m": a duration from 0s to 5m0s`},
	} {
		_, err := Decode(json.RawMessage(c.params))
		var refused *parameters.Error
		if !errors.As(err, &refused) || err.Error() != c.want {
			t.Errorf("%s gives %v, want %s", c.params, err, c.want)
		}
	}
}

func TestAliasesAreNamesOfModels(t *testing.T) {
	long := make([]byte, 513)
	for i := range long {
		long[i] = 'a'
	}
	for _, aliases := range []map[string][]string{
		{"fast": {string(long)}}, {string(long): {"m"}}, {"fast": {}}, {"fast": make([]string, 65)},
	} {
		var s Settings
		var refused *parameters.Error
		if err := s.Alias(aliases); !errors.As(err, &refused) || refused.Field != "aliases" {
			t.Errorf("the error is %v, want one of aliases", err)
		}
	}
}

func TestAKeySetThatCannotBeUsedIsNamedAndNotShown(t *testing.T) {
	s, err := Decode(json.RawMessage(`{` + filtertest.Trusting + `}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		read       func(string) ([]byte, error)
	}{
		{"a file that is not there", `keySet: "keys.json": the path of a JSON Web Key Set: gone`,
			func(string) ([]byte, error) { return nil, errors.New("gone") }},
		{"no keys", `keySet: "keys.json": the path of a JSON Web Key Set: keys: 0 keys: must be 1 to 64`,
			func(string) ([]byte, error) { return []byte(`{"keys": []}`), nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := s.Open(c.read)
			var refused *parameters.Error
			if r != nil || !errors.As(err, &refused) || err.Error() != c.want {
				t.Errorf("the error is %v, want %s", err, c.want)
			}
		})
	}
}

func TestAKeySetIsReadOnceFromItsPath(t *testing.T) {
	s, err := Decode(json.RawMessage(`{` + filtertest.Trusting + `}`))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	r, err := s.Open(func(path string) ([]byte, error) {
		paths = append(paths, path)
		return filtertest.KeySet(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	request := filtertest.Request(t, "m", v1alpha1.RoutingIntent{})
	for range 2 {
		if _, err := r.Read(request, filtertest.Now); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(paths, []string{"keys.json"}) {
		t.Errorf("%q were read, want keys.json once", paths)
	}
}

// Whatever the parameters, they are refused by name or make settings that open.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{` + filtertest.Trusting + `, "skew": "0s", "required": true}`, `{"plainHeaders": true}`,
		`{"plainHeaders": true, "headers": {"x-a": "priority", "x-b": "requirement.safety.berth.dev/safety"}}`,
		`{"plainHeaders": true, "headers": {"x-a": "requirement.safety."}}`, `{"aliases": {"a": ["b"]}}`, `{"required": null}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		var aliases map[string][]string
		s, err := Decode(json.RawMessage(raw), Aliases(&aliases))
		if err == nil {
			err = s.Alias(aliases)
		}
		if err != nil {
			if refused := (*parameters.Error)(nil); !errors.As(err, &refused) {
				t.Fatalf("%q gives %v, want a *parameters.Error", raw, err)
			}
			return
		}
		if _, err := s.Open(filtertest.KeySet); err != nil {
			t.Fatalf("%q was accepted, and does not open: %v", raw, err)
		}
	})
}
