package intent

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const version = `"version":"berth.dev/v1alpha1"`

// everything has all channels switched on.
func everything(t testing.TB) Options {
	return Options{
		Metadata: true, Keys: testKeys(t), Audience: "berth", Skew: 30 * time.Second,
		PlainHeaders: map[string]string{"x-selected-model": "logicalModel", "x-tenant": "requirement.authorization.berth.dev/tenants"},
		Aliases:      map[string][]string{"fast": {"llama-3.1-8b", "qwen-7b"}},
	}
}

func TestTheFirstChannelThatIsOnAndPresentIsUsed(t *testing.T) {
	metadata := map[string]any{"logicalModel": "by-metadata"}
	signed := []string{token(signEd, edHeader, strings.Replace(good, "fast", "by-signature", 1))}
	plain := []Header{{"x-selected-model", "by-header"}}
	for _, c := range []struct {
		name  string
		off   func(*Options)
		in    Input
		want  Source
		model string
	}{
		{"all", nil, Input{metadata, signed, plain}, SourceMetadata, "by-metadata"},
		{"no metadata", nil, Input{nil, signed, plain}, SourceSigned, "by-signature"},
		{"metadata of the acknowledgement alone, which is left out", nil, Input{map[string]any{}, signed, plain}, SourceSigned, "by-signature"},
		{"plain headers alone", nil, Input{nil, nil, plain}, SourceHeaders, "by-header"},
		{"an empty list of signed copies", nil, Input{nil, []string{}, plain}, SourceHeaders, "by-header"},
		{"plain headers that are not mapped", nil, Input{nil, nil, []Header{{"x-other", "m"}, {"X-Selected-Model", "m"}}}, SourceNone, ""},
		{"nothing", nil, Input{}, SourceNone, ""},
		{"metadata off", func(o *Options) { o.Metadata = false }, Input{metadata, signed, plain}, SourceSigned, "by-signature"},
		{"signed off", func(o *Options) { o.Keys = nil }, Input{nil, signed, plain}, SourceHeaders, "by-header"},
		{"headers off", func(o *Options) { o.PlainHeaders = nil }, Input{nil, nil, plain}, SourceNone, ""},
		{"headers off by an empty mapping", func(o *Options) { o.PlainHeaders = map[string]string{} }, Input{nil, nil, plain}, SourceNone, ""},
		{"all off", func(o *Options) { *o = Options{} }, Input{metadata, signed, plain}, SourceNone, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := everything(t)
			if c.off != nil {
				c.off(&o)
			}
			got, err := mustReader(t, o).Read(&c.in, noon)
			if err != nil {
				t.Fatal(err)
			}
			if got.Source != c.want {
				t.Errorf("source %s, want %s", got.Source, c.want)
			}
			if c.want == SourceNone {
				if got.Routing != nil || got.Models != nil {
					t.Errorf("no intent, and yet %+v", got)
				}
				return
			}
			if got.Routing.LogicalModel != c.model {
				t.Errorf("model %q, want %q", got.Routing.LogicalModel, c.model)
			}
			if (got.KeyID == "ed") != (c.want == SourceSigned) {
				t.Errorf("key %q of source %s", got.KeyID, got.Source)
			}
		})
	}
}

func TestARefusedChannelMakesNoRoomForTheNextOne(t *testing.T) {
	signed := []string{token(signEd, edHeader, good)}
	plain := []Header{{"x-selected-model", "m"}}
	for _, c := range []struct {
		name, token string
		in          Input
	}{
		{"malformed metadata", TokenMalformed, Input{map[string]any{"logicalmodel": "m"}, signed, plain}},
		{"metadata that is nil", TokenMalformed, Input{map[string]any{"intent": nil}, signed, plain}},
		{"expired metadata", TokenExpired, Input{map[string]any{"intent": `{` + version + `,"expiresAt":"2026-03-01T12:00:00Z"}`}, signed, plain}},
		{"metadata for another picker", TokenUntrusted, Input{map[string]any{"intent": `{` + version + `,"audience":["x"]}`}, signed, plain}},
		{"an empty signed header", TokenMalformed, Input{nil, []string{""}, plain}},
		{"a signature by nobody", TokenUntrusted, Input{nil, []string{token(signOther, edHeader, good)}, plain}},
		{"a plain header that is empty", TokenMalformed, Input{nil, nil, []Header{{"x-selected-model", ""}}}},
		{"a plain header twice", TokenMalformed, Input{nil, nil, []Header{{"x-selected-model", "m"}, {"x-selected-model", "m"}}}},
		{"a good header beside a bad one", TokenMalformed, Input{nil, nil, []Header{{"x-selected-model", "m"}, {"x-tenant", " , "}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := mustReader(t, everything(t)).Read(&c.in, noon)
			if refused := refusal(t, got, err); refused.Token != c.token {
				t.Errorf("refused with %v, want %s", refused, c.token)
			}
		})
	}
}

func TestARequiredIntentMustComeByATrustedChannel(t *testing.T) {
	o := everything(t)
	o.Required = true
	o.Metadata = false
	r := mustReader(t, o)
	for name, in := range map[string]Input{
		"nothing":                       {},
		"a channel that is off":         {Metadata: map[string]any{"logicalModel": "m"}},
		"a header that is not mapped":   {Plain: []Header{{"x-model", "m"}}},
		"an empty list of signatures":   {Signed: []string{}},
		"nothing but an empty metadata": {Metadata: map[string]any{}},
	} {
		got, err := r.Read(&in, noon)
		if refused := refusal(t, got, err); refused.Token != TokenRequired {
			t.Errorf("%s: refused with %v", name, refused)
		}
	}
	got, err := r.Read(&Input{Plain: []Header{{"x-tenant", "a"}}}, noon)
	if err != nil || got.Source != SourceHeaders {
		t.Errorf("an intent without a model: %+v, error %v", got, err)
	}
}

func TestUntrustedNamesTheChannelsThatAreOff(t *testing.T) {
	in := Input{
		Metadata: map[string]any{"logicalModel": 1.0},
		Signed:   []string{"x", "y"},
		Plain:    []Header{{"x-selected-model", "a"}, {"x-tenant", ""}, {"x-selected-model", "b"}},
	}
	for _, c := range []struct {
		name string
		off  func(*Options)
		in   Input
		want []string
	}{
		{"all on", func(*Options) {}, in, nil},
		{"all off", func(o *Options) { *o = Options{} }, in, []string{"berth.dev", "x-berth-intent", "x-selected-model", "x-tenant"}},
		{"all off and nothing there", func(o *Options) { *o = Options{} }, Input{}, nil},
		{"metadata off", func(o *Options) { o.Metadata = false }, in, []string{"berth.dev"}},
		{"signed off", func(o *Options) { o.Keys = nil }, in, []string{"x-berth-intent"}},
		{"headers off", func(o *Options) { o.PlainHeaders = nil }, in, []string{"x-selected-model", "x-tenant"}},
	} {
		o := everything(t)
		c.off(&o)
		if got := mustReader(t, o).Untrusted(&c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestModelsAreTheServedNamesOrTheAliasOrTheNameItself(t *testing.T) {
	r := mustReader(t, everything(t))
	for _, c := range []struct {
		name, members string
		want          []string
	}{
		{"served models", `,"servedModels":["b","a"]`, []string{"b", "a"}},
		{"served models before the alias", `,"logicalModel":"fast","servedModels":["x"]`, []string{"x"}},
		{"an alias", `,"logicalModel":"fast"`, []string{"llama-3.1-8b", "qwen-7b"}},
		{"an alias with an empty list of served models", `,"logicalModel":"fast","servedModels":[]`, []string{"llama-3.1-8b", "qwen-7b"}},
		{"no alias", `,"logicalModel":"Fast"`, []string{"Fast"}},
		{"the name of a served model of an alias", `,"logicalModel":"qwen-7b"`, []string{"qwen-7b"}},
		{"no model", `,"priority":1`, nil},
	} {
		got, err := r.Read(&Input{Metadata: map[string]any{"intent": `{` + version + c.members + `}`}}, noon)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if !slices.Equal(got.Models, c.want) || (got.Models == nil) != (c.want == nil) {
			t.Errorf("%s: %#v, want %#v", c.name, got.Models, c.want)
		}
	}
}

// tree is an intent as structpb's AsMap gives it.
func tree(members ...any) map[string]any {
	m := map[string]any{"version": "berth.dev/v1alpha1"}
	for i := 0; i < len(members); i += 2 {
		m[members[i].(string)] = members[i+1]
	}
	return m
}

func TestMetadataHasTheIntentAsAnObjectOrAsJSON(t *testing.T) {
	r := mustReader(t, everything(t))
	want := &v1alpha1.RoutingIntent{
		Version: "berth.dev/v1alpha1", LogicalModel: "m", Priority: -1,
		Requirements: []v1alpha1.Requirement{{Class: "safety", Key: "k", Operator: "NotIn", Values: []string{"a"}}},
	}
	for name, whole := range map[string]any{
		"an object": tree("logicalModel", "m", "priority", -1.0, "hint", true,
			"requirements", []any{map[string]any{"class": "safety", "key": "k", "operator": "NotIn", "values": []any{"a"}}}),
		"a JSON text": `{` + version + `,"hint":true,"logicalModel":"m","priority":-1,"requirements":[{"class":"safety","key":"k","operator":"NotIn","values":["a"]}]}`,
	} {
		got, err := r.Read(&Input{Metadata: map[string]any{"intent": whole}}, noon)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Source != SourceMetadata || !reflect.DeepEqual(got.Routing, want) || !slices.Equal(got.Unknown, []string{"hint"}) {
			t.Errorf("%s: %+v of %+v", name, got, got.Routing)
		}
	}
}

func TestMetadataIsRefused(t *testing.T) {
	r := mustReader(t, everything(t))
	long := strings.Repeat("k", 100)
	for _, c := range []struct {
		name     string
		metadata map[string]any
		token    string
		message  string // its beginning
	}{
		{"a key that is unknown", map[string]any{"foo": "x"}, TokenMalformed, "berth.dev metadata: foo: must be logicalModel, servedModels, priority, "},
		{"a key in other letters", map[string]any{"Logicalmodel": "x"}, TokenMalformed, "berth.dev metadata: Logicalmodel: must be logicalModel"},
		{"a key that is empty", map[string]any{"": "x"}, TokenMalformed, `berth.dev metadata: "": must be logicalModel`},
		{"a key that could forge a line", map[string]any{"a\nb": "x"}, TokenMalformed, `berth.dev metadata: "a\nb": must be logicalModel`},
		{"a key that is long", map[string]any{long: "x"}, TokenMalformed, "berth.dev metadata: " + long[:64] + ": must be logicalModel"},
		{"a long key outside ASCII", map[string]any{"k" + strings.Repeat("é", 60): "x"}, TokenMalformed,
			"berth.dev metadata: k" + strings.Repeat("é", 31) + ": must be logicalModel"},
		{"a long key that is no text", map[string]any{strings.Repeat("\x80", 100): "x"}, TokenMalformed,
			`berth.dev metadata: "` + strings.Repeat(`\x80`, 60) + `": must be logicalModel`},
		{"a key of the intent itself", map[string]any{"requirements": []any{}}, TokenMalformed, "berth.dev metadata: requirements: must be logicalModel"},
		{"both forms", map[string]any{"intent": tree(), "priority": 1.0}, TokenMalformed, "berth.dev metadata: priority: must not be there together with intent"},
		{"both forms with a requirement", map[string]any{"intent": tree(), "requirement.safety.k": "a"}, TokenMalformed,
			"berth.dev metadata: requirement.safety.k: must not be there together with intent"},
		{"an unknown key beside the intent", map[string]any{"intent": tree(), "foo": "x"}, TokenMalformed, "berth.dev metadata: foo: is not a key of an intent"},
		{"a long unknown key beside the intent", map[string]any{"intent": tree(), long: "x"}, TokenMalformed, "berth.dev metadata: " + long[:64] + ": is not a key"},
		{"a number as the intent", map[string]any{"intent": 1.0}, TokenMalformed, "berth.dev metadata: intent: must be an object or a JSON text"},
		{"null as the intent", map[string]any{"intent": nil}, TokenMalformed, "berth.dev metadata: intent: must be an object or a JSON text"},
		{"a list as the intent", map[string]any{"intent": []any{tree()}}, TokenMalformed, "berth.dev metadata: intent: must be an object or a JSON text"},
		{"an empty text as the intent", map[string]any{"intent": ""}, TokenMalformed, "berth.dev metadata: "},
		{"an empty object as the intent", map[string]any{"intent": map[string]any{}}, TokenVersion, "berth.dev metadata: version: "},
		{"another version", map[string]any{"intent": map[string]any{"version": "v2"}}, TokenVersion, "berth.dev metadata: version: "},
		{"a key in other letters in the intent", map[string]any{"intent": tree("logicalmodel", "m")}, TokenMalformed, "berth.dev metadata: logicalmodel: "},
		{"an unknown operator", map[string]any{"intent": tree("requirements", []any{map[string]any{"class": "safety", "key": "k", "operator": "Is"}})},
			TokenMalformed, "berth.dev metadata: requirements[0].operator: "},
		{"a member twice in the JSON text", map[string]any{"intent": `{` + version + `,"logicalModel":"a","logicalModel":"b"}`}, TokenMalformed, "berth.dev metadata: logicalModel: "},
		{"a whole intent as the text of a text", map[string]any{"intent": `"{}"`}, TokenMalformed, "berth.dev metadata: "},
		{"another audience", map[string]any{"intent": tree("audience", []any{"x"})}, TokenUntrusted, "berth.dev metadata: audience: must contain berth"},
		{"expired at this very time", map[string]any{"intent": tree("expiresAt", "2026-03-01T12:00:00Z")}, TokenExpired, "berth.dev metadata: expiresAt: must be in the future"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := r.Read(&Input{Metadata: c.metadata}, noon)
			refused := refusal(t, got, err)
			if refused.Token != c.token || !strings.HasPrefix(refused.Message, c.message) {
				t.Errorf("refused with %v\nwant %s: %s...", refused, c.token, c.message)
			}
		})
	}
}

func TestMetadataNeedsNeitherTimesNorAnAudience(t *testing.T) {
	r := mustReader(t, everything(t))
	for name, members := range map[string][]any{
		"none":                           {},
		"this audience":                  {"audience", []any{"a", "berth"}},
		"expires a nanosecond from now":  {"expiresAt", "2026-03-01T12:00:00.000000001Z"},
		"issued by a clock that is fast": {"issuedAt", "2026-03-01T13:00:00Z"},
	} {
		if _, err := r.Read(&Input{Metadata: map[string]any{"intent": tree(members...)}}, noon); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	nameless := mustReader(t, Options{Metadata: true})
	if _, err := nameless.Read(&Input{Metadata: map[string]any{"intent": tree("audience", []any{"x"})}}, noon); err != nil {
		t.Errorf("a picker without a name: %v", err)
	}
}

func TestOptionsAreRefusedByTheirNames(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = "m"
	}
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"a key set that nobody parsed", func(o *Options) { o.Keys = &KeySet{} }, "Options.Keys: must come from ParseKeySet"},
		{"keys and no audience", func(o *Options) { o.Audience = "" }, `Options.Audience: "": must be the name of this picker, by which it knows that a signed intent is meant for it`},
		{"a negative skew", func(o *Options) { o.Skew = -1 }, "Options.Skew: -1ns: must be 0s to 5m0s"},
		{"a skew of more than 5 minutes", func(o *Options) { o.Skew = 5*time.Minute + 1 }, "Options.Skew: 5m0.000000001s: must be 0s to 5m0s"},
		{"a header in capitals", func(o *Options) { o.PlainHeaders["X-Model"] = "priority" },
			`Options.PlainHeaders["X-Model"]: must be the name of a header in lower case, other than x-berth-intent`},
		{"a header without a name", func(o *Options) { o.PlainHeaders[""] = "priority" },
			`Options.PlainHeaders[""]: must be the name of a header in lower case, other than x-berth-intent`},
		{"a pseudo-header", func(o *Options) { o.PlainHeaders[":path"] = "priority" },
			`Options.PlainHeaders[":path"]: must be the name of a header in lower case, other than x-berth-intent`},
		{"the header of signed intents", func(o *Options) { o.PlainHeaders["x-berth-intent"] = "priority" },
			`Options.PlainHeaders["x-berth-intent"]: must be the name of a header in lower case, other than x-berth-intent`},
		{"a key that is unknown", func(o *Options) { o.PlainHeaders["x-a"] = "model" },
			`Options.PlainHeaders["x-a"]: model: must be logicalModel, servedModels, priority, sessionKey, contextInputTokens, contextOutputTokens or requirement.CLASS.KEY with a class of requirements`},
		{"two headers for one key", func(o *Options) { o.PlainHeaders["x-zzz"] = "logicalModel" },
			`Options.PlainHeaders["x-zzz"]: logicalModel: must not be the key of x-selected-model, too`},
		{"an alias without a name", func(o *Options) { o.Aliases[""] = []string{"m"} }, `Options.Aliases[""]: must be a name of 1 to 512 bytes`},
		{"an alias for nothing", func(o *Options) { o.Aliases["a"] = nil }, `Options.Aliases["a"]: 0 names: must be 1 to 64`},
		{"an alias for 65 names", func(o *Options) { o.Aliases["a"] = many }, `Options.Aliases["a"]: 65 names: must be 1 to 64`},
		{"an alias for an empty name", func(o *Options) { o.Aliases["a"] = []string{"m", ""} }, `Options.Aliases["a"][1]: "": must be a name of 1 to 512 bytes`},
	} {
		o := everything(t)
		o.PlainHeaders, o.Aliases = maps.Clone(o.PlainHeaders), maps.Clone(o.Aliases)
		c.change(&o)
		if r, err := NewReader(o); err == nil || err.Error() != c.want || r != nil {
			t.Errorf("%s: error\n %v\nwant\n %s", c.name, err, c.want)
		}
	}
}

func TestAReaderKeepsNothingThatItsOptionsMayChange(t *testing.T) {
	o := everything(t)
	r := mustReader(t, o)
	o.Aliases["fast"][0] = "changed"
	delete(o.Aliases, "fast")
	o.PlainHeaders["x-selected-model"] = "sessionKey"
	got, err := r.Read(&Input{Plain: []Header{{"x-selected-model", "fast"}}}, noon)
	if err != nil || !slices.Equal(got.Models, []string{"llama-3.1-8b", "qwen-7b"}) {
		t.Errorf("%+v, error %v", got, err)
	}
}

func TestAReaderServesManyRequestsAtOnce(t *testing.T) {
	r := mustReader(t, everything(t))
	inputs := []Input{
		{Metadata: map[string]any{"logicalModel": "fast", "requirement.safety.k": "a,b"}},
		{Metadata: map[string]any{"intent": tree("logicalModel", "fast")}},
		{Signed: []string{token(signEd, edHeader, good)}},
		{Signed: []string{token(signEC, `{"alg":"ES256","kid":"ec"}`, good)}},
		{Signed: []string{token(signHMAC(hmacSecret), `{"alg":"HS256","kid":"hs"}`, good)}},
		{Plain: []Header{{"x-selected-model", "fast"}}},
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				for i := range inputs {
					got, err := r.Read(&inputs[i], noon)
					if err != nil || !slices.Equal(got.Models, []string{"llama-3.1-8b", "qwen-7b"}) {
						t.Errorf("input %d: %+v, error %v", i, got, err)
					}
				}
			}
		})
	}
	all.Wait()
}
