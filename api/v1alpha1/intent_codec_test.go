package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

const wholeIntent = `{
  "version": "berth.dev/v1alpha1",
  "intentID": "rd-7f3a",
  "issuer": "router.prod",
  "audience": ["berth", "berth-canary"],
  "issuedAt": "2026-01-02T03:04:05.5Z",
  "expiresAt": "2026-01-02T04:05:05+01:00",
  "logicalModel": "fast",
  "servedModels": ["llama-3.1-8b", "llama-3.1-8b-sql"],
  "requirements": [
    {"class": "authorization", "key": "berth.dev/tenants", "operator": "In", "values": [" acme\t", "globex, inc"]},
    {"class": "safety", "key": "berth.dev/safety", "operator": "NotIn", "values": ["none"]},
    {"class": "residency", "key": "berth.dev/residency", "operator": "Exists"},
    {"class": "capability", "key": "gpu.example.com/memory", "operator": "Gt", "values": ["+40"]},
    {"class": "capability", "key": "gpu.example.com/generation", "operator": "Lt", "values": [" -9223372036854775808 "]},
    {"class": "placement", "key": "berth.dev/tier", "operator": "DoesNotExist", "values": []}
  ],
  "context": {"inputTokens": 3200, "outputTokens": 5.12e2},
  "slo": {"ttft": 0.5, "tpot": 2e-2},
  "priority": -1,
  "sessionKey": "sitzung-ä",
  "demand": {"inputTokens": 9007199254740991, "outputTokens": 0},
  "energy": "preferLow"
}`

func wholeIntentValue() *RoutingIntent {
	return &RoutingIntent{
		Version:      "berth.dev/v1alpha1",
		IntentID:     "rd-7f3a",
		Issuer:       "router.prod",
		Audience:     []string{"berth", "berth-canary"},
		IssuedAt:     time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC),
		ExpiresAt:    time.Date(2026, 1, 2, 3, 5, 5, 0, time.UTC),
		LogicalModel: "fast",
		ServedModels: []string{"llama-3.1-8b", "llama-3.1-8b-sql"},
		Requirements: []Requirement{
			{Class: Authorization, Key: "berth.dev/tenants", Operator: In, Values: []string{"acme", "globex, inc"}},
			{Class: Safety, Key: "berth.dev/safety", Operator: NotIn, Values: []string{"none"}},
			{Class: Residency, Key: "berth.dev/residency", Operator: Exists},
			{Class: Capability, Key: "gpu.example.com/memory", Operator: Gt, Values: []string{"+40"}},
			{Class: Capability, Key: "gpu.example.com/generation", Operator: Lt, Values: []string{"-9223372036854775808"}},
			{Class: Placement, Key: "berth.dev/tier", Operator: DoesNotExist},
		},
		Context:    &ContextNeed{InputTokens: 3200, OutputTokens: 512},
		SLO:        &SLO{TTFT: 0.5, TPOT: 0.02},
		Priority:   -1,
		SessionKey: "sitzung-ä",
		Demand:     &Demand{InputTokens: 9007199254740991},
		Energy:     EnergyPreferLow,
	}
}

func TestAnIntentWithEveryMemberIsRead(t *testing.T) {
	got, unknown, err := DecodeIntent([]byte(wholeIntent))
	if err != nil {
		t.Fatal(err)
	}
	if want := wholeIntentValue(); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if len(unknown) > 0 {
		t.Errorf("unknown %q, want none", unknown)
	}
}

// having is an intent with some members.
func having(members string) string { return `{"version":"berth.dev/v1alpha1",` + members + `}` }

// requiring is an intent with requirements, of which the last has some members.
func requiring(members string) string {
	return having(`"requirements":[{"class":"safety","key":"k","operator":"Exists"},{` + members + `}]`)
}

func times(n int, text string) string {
	return strings.Join(slices.Repeat([]string{text}, n), ",")
}

func long(n int) string { return `"` + strings.Repeat("a", n) + `"` }

func TestWhatIsWithinBoundsIsRead(t *testing.T) {
	empty := RoutingIntent{Version: Version}
	of := func(change func(*RoutingIntent)) RoutingIntent {
		i := empty
		change(&i)
		return i
	}
	requirement := Requirement{Class: Safety, Key: "k", Operator: Exists}
	for _, tc := range []struct {
		name, text string
		want       RoutingIntent
	}{
		{"the version alone", `{"version":"berth.dev/v1alpha1"}`, empty},
		{"blanks around", " \t\r\n{ \"version\" : \"berth.dev/v1alpha1\" } \n", empty},
		{"escapes", `{"\u0076ersion":"berth.dev\/v1alpha1"}`, empty},
		{"a text with a surrogate pair", having(`"issuer":"\ud83d\ude80 \"\\é\u00e9"`), of(func(i *RoutingIntent) { i.Issuer = "🚀 \"\\éé" })},
		{"no served models", having(`"servedModels":[]`), empty},
		{"no requirements", having(`"requirements":[]`), empty},
		{"no values with Exists", requiring(`"class":"safety","key":"k","operator":"Exists","values":[]`),
			of(func(i *RoutingIntent) { i.Requirements = []Requirement{requirement, requirement} })},
		{"an empty context", having(`"context":{}`), of(func(i *RoutingIntent) { i.Context = &ContextNeed{} })},
		{"no expectation", having(`"slo":{"ttft":0,"tpot":-0}`), of(func(i *RoutingIntent) { i.SLO = &SLO{} })},
		{"the default energy", having(`"energy":"neutral"`), of(func(i *RoutingIntent) { i.Energy = EnergyNeutral })},
		{"the lowest priority", having(`"priority":-2147483648`), of(func(i *RoutingIntent) { i.Priority = math.MinInt32 })},
		{"the highest priority", having(`"priority":2147483647`), of(func(i *RoutingIntent) { i.Priority = math.MaxInt32 })},
		{"a whole number with a fraction of zeros", having(`"priority":7.00`), of(func(i *RoutingIntent) { i.Priority = 7 })},
		{"a whole number with an exponent", having(`"priority":-0.012e+4`), of(func(i *RoutingIntent) { i.Priority = -120 })},
		{"a whole number with a negative exponent", having(`"priority":1200E-2`), of(func(i *RoutingIntent) { i.Priority = 12 })},
		{"minus zero", having(`"priority":-0.0e1`), empty},
		{"the longest names", having(`"intentID":` + long(253) + `,"sessionKey":` + long(512)), of(func(i *RoutingIntent) {
			i.IntentID, i.SessionKey = strings.Repeat("a", 253), strings.Repeat("a", 512)
		})},
		{"the most audiences", having(`"audience":[` + times(16, `"a"`) + `]`), of(func(i *RoutingIntent) { i.Audience = slices.Repeat([]string{"a"}, 16) })},
		{"the most served models", having(`"servedModels":[` + times(64, `"a"`) + `]`), of(func(i *RoutingIntent) { i.ServedModels = slices.Repeat([]string{"a"}, 64) })},
		{"the most requirements", having(`"requirements":[` + times(64, `{"class":"safety","key":"k","operator":"Exists"}`) + `]`),
			of(func(i *RoutingIntent) { i.Requirements = slices.Repeat([]Requirement{requirement}, 64) })},
		{"the most values", having(`"requirements":[{"class":"safety","key":"k","operator":"In","values":[` + times(256, `"a"`) + `]}]`),
			of(func(i *RoutingIntent) {
				i.Requirements = []Requirement{{Class: Safety, Key: "k", Operator: In, Values: slices.Repeat([]string{"a"}, 256)}}
			})},
		{"the longest key and value", having(`"requirements":[{"class":"safety","key":` + long(317) + `,"operator":"In","values":[" ` + strings.Repeat("a", 512) + ` "]}]`),
			of(func(i *RoutingIntent) {
				i.Requirements = []Requirement{{Class: Safety, Key: strings.Repeat("a", 317), Operator: In, Values: []string{strings.Repeat("a", 512)}}}
			})},
		{"the last time", having(`"expiresAt":"9999-12-31T23:59:59Z"`), of(func(i *RoutingIntent) { i.ExpiresAt = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, unknown, err := DecodeIntent([]byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, tc.want) || len(unknown) > 0 {
				t.Errorf("got\n%+v, unknown %q\nwant\n%+v", *got, unknown, tc.want)
			}
		})
	}
}

func TestWhatIsNotAnIntentOfThisVersionIsRefused(t *testing.T) {
	const bad, version = "intent_malformed", "intent_version"
	for _, tc := range []struct {
		name, text   string
		token, field string
		problem      string // a part of it
	}{
		{"no version", `{}`, version, "version", "is missing"},
		{"a version that is null", `{"version":null}`, version, "version", "is missing"},
		{"a version that is a number", `{"version":1}`, version, "version", "is a number"},
		{"an empty version", `{"version":""}`, version, "version", `"" is unknown`},
		{"a later version", `{"version":"berth.dev/v1","requirements":7}`, version, "version", `"berth.dev/v1" is unknown; allowed is "berth.dev/v1alpha1"`},
		{"a version in upper case", `{"version":"BERTH.DEV/V1ALPHA1"}`, version, "version", "is unknown"},
		{"a version with blanks", `{"version":"berth.dev/v1alpha1 "}`, version, "version", "is unknown"},

		{"nothing", ``, bad, "", "byte 0 is where an object should be"},
		{"a list", `[]`, bad, "", "an object should be"},
		{"null", `null`, bad, "", "an object should be"},
		{"a byte order mark", "\uFEFF" + having(`"issuer":"a"`), bad, "", "an object should be"},
		{"trailing text", having(`"issuer":"a"`) + `x`, bad, "", "the end should be"},
		{"a second intent", having(`"issuer":"a"`) + having(`"issuer":"a"`), bad, "", "the end should be"},
		{"an end too early", `{"version":"berth.dev/v1alpha1"`, bad, "", "a comma or a brace should be"},
		{"a trailing comma", having(``), bad, "", "a name in quotes should be"},
		{"a comma after the last item", having(`"audience":["a",]`), bad, "audience[1]", "a value should be"},
		{"a comment", having(`/* */"issuer":"a"`), bad, "", "a name in quotes should be"},
		{"single quotes", having(`'issuer':'a'`), bad, "", "a name in quotes should be"},
		{"no colon", having(`"issuer" "a"`), bad, "issuer", "a colon should be"},
		{"a word that is none", having(`"issuer":nul`), bad, "issuer", "a value should be"},
		{"a NaN", having(`"priority":NaN`), bad, "priority", "a value should be"},
		{"an infinity", having(`"slo":{"ttft":-Infinity}`), bad, "slo.ttft", "a number should be"},
		{"a leading zero", having(`"priority":01`), bad, "", "a comma or a brace should be"},
		{"a leading plus", having(`"priority":+1`), bad, "priority", "a value should be"},
		{"a point without digits", having(`"priority":1.`), bad, "priority", "a number should be"},
		{"an exponent without digits", having(`"priority":1e+`), bad, "priority", "a number should be"},
		{"a hexadecimal number", having(`"priority":0x1`), bad, "", "a comma or a brace should be"},
		{"an unknown escape", having(`"issuer":"\x41"`), bad, "issuer", "an escape should be"},
		{"a short escape", having(`"issuer":"\u00e"`), bad, "issuer", "four hexadecimal digits should be"},
		{"a text without an end", having(`"issuer":"a`), bad, "issuer", "a quote should be"},
		{"a line break in a text", having("\"issuer\":\"a\nb\""), bad, "issuer", "a control character that is not escaped"},
		{"a line break after an escape", having("\"issuer\":\"\\t\nb\""), bad, "issuer", "a control character that is not escaped"},
		{"bytes that are not UTF-8", having("\"issuer\":\"\xff\""), bad, "", "is not UTF-8"},
		{"an overlong slash", having("\"issuer\":\"\xc0\xaf\""), bad, "", "is not UTF-8"},
		{"a surrogate in UTF-8", having("\"issuer\":\"\xed\xa0\x80\""), bad, "", "is not UTF-8"},
		{"a high surrogate alone", having(`"issuer":"\ud800"`), bad, "issuer", `half a surrogate pair, \ud800`},
		{"a low surrogate alone", having(`"issuer":"\udc00\ud800"`), bad, "issuer", "half a surrogate pair"},
		{"two high surrogates", having(`"issuer":"\ud800\ud800"`), bad, "issuer", "half a surrogate pair"},
		{"a high surrogate before another escape", having(`"issuer":"\ud800\n"`), bad, "issuer", "half a surrogate pair"},
		{"half a surrogate pair in a name", having(`"\ud800":1`), bad, "", "half a surrogate pair"},
		{"half a surrogate pair where nobody looks", having(`"later":{"a":["\udfff"]}`), bad, "later.a[0]", "half a surrogate pair"},
		{"an intent that is too long", having(`"later":` + long(64<<10)), bad, "", "bytes as JSON; allowed are at most 65536"},
		{"nesting that is too deep", having(`"later":` + strings.Repeat("[", 8) + strings.Repeat("]", 8)), bad, "later[0][0][0][0][0][0][0]", "at most 8"},
		{"nesting without an end", strings.Repeat(`{"a":`, 10000), bad, "a.a.a.a.a.a.a.a", "at most 8"},

		{"a version twice", having(`"version":"berth.dev/v1alpha1"`), bad, "version", "occurs twice"},
		{"requirements twice", having(`"requirements":[{"class":"safety","key":"k","operator":"Exists"}],"requirements":[]`), bad, "requirements", "occurs twice"},
		{"requirements twice, once with escapes", having(`"requirements":[],"re\u0071uirements":[]`), bad, "requirements", "occurs twice"},
		{"values twice", requiring(`"class":"safety","key":"k","operator":"In","values":["a"],"values":["b"]`), bad, "requirements[1].values", "occurs twice"},
		{"tokens twice", having(`"context":{"inputTokens":1,"inputTokens":1}`), bad, "context.inputTokens", "occurs twice"},
		{"an unknown member twice", having(`"later":1,"later":1`), bad, "later", "occurs twice"},
		{"a member of an unknown member twice", having(`"later":[{"a b":1,"a b":1}]`), bad, `later[0]["a b"]`, "occurs twice"},

		{"a known member in another case", having(`"Requirements":[]`), bad, "Requirements", "is unknown; requirements is written like this"},
		{"the singular of a list", having(`"requirement":[]`), bad, "requirement", "is unknown; requirements is written like this"},
		{"the plural of an object", having(`"contexts":{}`), bad, "contexts", "is unknown; context is written like this"},
		{"a known member in lower case", having(`"servedmodels":["a"]`), bad, "servedmodels", "servedModels is written like this"},
		{"a known member beside one in another case", having(`"slo":{},"SLO":{}`), bad, "SLO", "slo is written like this"},
		{"a version in another case", having(`"Version":"x"`), bad, "Version", "version is written like this"},
		{"a known member with a letter that folds", having(`"ſlo":{}`), bad, `["ſlo"]`, "slo is written like this"},
		{"an unknown member of a requirement", requiring(`"class":"safety","key":"k","operator":"Exists","weight":1`), bad, "requirements[1].weight", "allowed are class, key, operator, values"},
		{"a misspelt member of a requirement", requiring(`"class":"safety","key":"k","operator":"Exists","Values":["a"]`), bad, "requirements[1].Values", "is unknown"},
		{"an unknown member of the context", having(`"context":{"input_tokens":1,"max":2}`), bad, "context.input_tokens", "allowed are inputTokens, outputTokens"},
		{"an unknown member of the SLO", having(`"slo":{"itl":1}`), bad, "slo.itl", "allowed are ttft, tpot"},
		{"an unknown member of the demand", having(`"demand":{"tokens":1}`), bad, "demand.tokens", "is unknown"},
		{"an empty name in the demand", having(`"demand":{"":1}`), bad, `demand[""]`, "is unknown"},

		{"no class", requiring(`"key":"k","operator":"Exists"`), bad, "requirements[1].class", "is missing; allowed are authorization, safety, residency, capability and placement"},
		{"an unknown class", requiring(`"class":"Safety","key":"k","operator":"Exists"`), bad, "requirements[1].class", `"Safety" is unknown; allowed are authorization`},
		{"an empty class", requiring(`"class":"","key":"k","operator":"Exists"`), bad, "requirements[1].class", "is empty"},
		{"no key", requiring(`"class":"safety","operator":"Exists"`), bad, "requirements[1].key", "is missing"},
		{"an empty key", requiring(`"class":"safety","key":"","operator":"Exists"`), bad, "requirements[1].key", "is empty"},
		{"a key that is too long", requiring(`"class":"safety","key":` + long(318) + `,"operator":"Exists"`), bad, "requirements[1].key", "has 318 bytes; allowed are 1 to 317"},
		{"no operator", requiring(`"class":"safety","key":"k"`), bad, "requirements[1].operator", "is missing; allowed are In, NotIn, Exists, DoesNotExist, Gt and Lt"},
		{"an unknown operator", requiring(`"class":"safety","key":"k","operator":"in","values":["a"]`), bad, "requirements[1].operator", `"in" is unknown; allowed are In`},
		{"an operator that is a list", requiring(`"class":"safety","key":"k","operator":["In"],"values":["a"]`), bad, "requirements[1].operator", "is a list; allowed is a text"},
		{"In without values", requiring(`"class":"safety","key":"k","operator":"In"`), bad, "requirements[1].values", "has 0 items; In takes 1 to 256 texts"},
		{"NotIn with no values", requiring(`"class":"safety","key":"k","operator":"NotIn","values":[]`), bad, "requirements[1].values", "NotIn takes 1 to 256 texts"},
		{"Exists with a value", requiring(`"class":"safety","key":"k","operator":"Exists","values":["a"]`), bad, "requirements[1].values", "has 1 items; Exists takes none"},
		{"DoesNotExist with a value", requiring(`"class":"safety","key":"k","operator":"DoesNotExist","values":["a"]`), bad, "requirements[1].values", "DoesNotExist takes none"},
		{"Gt without a value", requiring(`"class":"safety","key":"k","operator":"Gt"`), bad, "requirements[1].values", "has 0 items; Gt takes one whole number"},
		{"Lt with two values", requiring(`"class":"safety","key":"k","operator":"Lt","values":["1","2"]`), bad, "requirements[1].values", "has 2 items"},
		{"Gt with a number", requiring(`"class":"safety","key":"k","operator":"Gt","values":[1]`), bad, "requirements[1].values[0]", "is a number; allowed is a text"},
		{"Gt with a fraction", requiring(`"class":"safety","key":"k","operator":"Gt","values":["1.0"]`), bad, "requirements[1].values[0]", `"1.0" is not allowed`},
		{"Gt with blanks", requiring(`"class":"safety","key":"k","operator":"Gt","values":[" "]`), bad, "requirements[1].values[0]", "is not allowed"},
		{"Lt with too large a number", requiring(`"class":"safety","key":"k","operator":"Lt","values":["9223372036854775808"]`), bad, "requirements[1].values[0]", "at most 64 bits"},
		{"values that are a text", requiring(`"class":"safety","key":"k","operator":"In","values":"a"`), bad, "requirements[1].values", "is a text; allowed is a list"},
		{"values that are null", requiring(`"class":"safety","key":"k","operator":"Exists","values":null`), bad, "requirements[1].values", "is null; allowed is a list"},
		{"a value that is null", requiring(`"class":"safety","key":"k","operator":"In","values":["a",null]`), bad, "requirements[1].values[1]", "is null"},
		{"an empty value", requiring(`"class":"safety","key":"k","operator":"In","values":["a",""]`), bad, "requirements[1].values[1]", "is empty"},
		{"a value of blanks", requiring(`"class":"safety","key":"k","operator":"NotIn","values":[" \t\r\n"]`), bad, "requirements[1].values[0]", "is empty"},
		{"a value that is too long", requiring(`"class":"safety","key":"k","operator":"In","values":[` + long(513) + `]`), bad, "requirements[1].values[0]", "has 513 bytes"},
		{"a value with a control character", requiring(`"class":"safety","key":"k","operator":"In","values":["a\tb"]`), bad, "requirements[1].values[0]", `"a\tb" has a control character`},
		{"too many values", requiring(`"class":"safety","key":"k","operator":"In","values":[` + times(257, `"a"`) + `]`), bad, "requirements[1].values", "has 257 items; allowed are at most 256"},
		{"a requirement that is a text", having(`"requirements":["safety"]`), bad, "requirements[0]", "is a text; allowed is an object"},
		{"a requirement that is null", having(`"requirements":[null]`), bad, "requirements[0]", "is null"},
		{"requirements that are null", having(`"requirements":null`), bad, "requirements", "is null; allowed is a list"},
		{"requirements that are an object", having(`"requirements":{}`), bad, "requirements", "is an object; allowed is a list"},
		{"too many requirements", having(`"requirements":[` + times(65, `{"class":"safety","key":"k","operator":"Exists"}`) + `]`), bad, "requirements", "has 65 items"},

		{"an id that is null", having(`"intentID":null`), bad, "intentID", "is null; allowed is a text"},
		{"an empty id", having(`"intentID":""`), bad, "intentID", "is empty"},
		{"an id that is too long", having(`"intentID":` + long(254)), bad, "intentID", "has 254 bytes; allowed are 1 to 253"},
		{"an id of too many bytes", having(`"intentID":"` + strings.Repeat("é", 127) + `"`), bad, "intentID", "has 254 bytes"},
		{"an id with a 0", having(`"intentID":"a\u0000b"`), bad, "intentID", `"a\x00b" has a control character`},
		{"an issuer that is a list", having(`"issuer":["a"]`), bad, "issuer", "is a list"},
		{"an issuer with a DEL", having(`"issuer":"\u007f"`), bad, "issuer", "has a control character"},
		{"an issuer with a C1 control", having(`"issuer":"\u0085"`), bad, "issuer", "has a control character"},
		{"an audience that is a text", having(`"audience":"berth"`), bad, "audience", "is a text; allowed is a list"},
		{"an empty audience", having(`"audience":[]`), bad, "audience", "is empty; allowed are 1 to 16 names"},
		{"an audience with an empty name", having(`"audience":["a",""]`), bad, "audience[1]", "is empty"},
		{"an audience of too many", having(`"audience":[` + times(17, `"a"`) + `]`), bad, "audience", "has 17 items"},
		{"an audience that is too long", having(`"audience":[` + long(254) + `]`), bad, "audience[0]", "has 254 bytes"},
		{"a model that is too long", having(`"logicalModel":` + long(513)), bad, "logicalModel", "has 513 bytes"},
		{"a model that is true", having(`"logicalModel":true`), bad, "logicalModel", "is true or false"},
		{"a served model that is a number", having(`"servedModels":["a",7]`), bad, "servedModels[1]", "is a number"},
		{"an empty served model", having(`"servedModels":[""]`), bad, "servedModels[0]", "is empty"},
		{"too many served models", having(`"servedModels":[` + times(65, `"a"`) + `]`), bad, "servedModels", "has 65 items"},
		{"served models that are null", having(`"servedModels":null`), bad, "servedModels", "is null"},
		{"an empty session key", having(`"sessionKey":""`), bad, "sessionKey", "is empty"},
		{"a session key with a line break", having(`"sessionKey":"a\nb"`), bad, "sessionKey", "has a control character"},

		{"a time in seconds", having(`"issuedAt":1767323045`), bad, "issuedAt", "is a number; allowed is a text"},
		{"a time without a zone", having(`"issuedAt":"2026-01-02T03:04:05"`), bad, "issuedAt", "allowed is RFC 3339"},
		{"a time with a blank", having(`"expiresAt":"2026-01-02 03:04:05Z"`), bad, "expiresAt", "is no time"},
		{"an hour of one digit", having(`"expiresAt":"2026-01-02T3:04:05Z"`), bad, "expiresAt", "is no time"},
		{"a comma before the fraction", having(`"expiresAt":"2026-01-02T03:04:05,5Z"`), bad, "expiresAt", "is no time"},
		{"a day that there is not", having(`"expiresAt":"2026-02-30T03:04:05Z"`), bad, "expiresAt", "is no time"},
		{"a zone that there is not", having(`"expiresAt":"2026-01-02T03:04:05+24:00"`), bad, "expiresAt", "is no time"},
		{"a time that stands for none", having(`"expiresAt":"0001-01-01T01:00:00+01:00"`), bad, "expiresAt", "stands for no time at all"},
		{"a time that ends up after all years", having(`"expiresAt":"9999-12-31T23:59:59-01:00"`), bad, "expiresAt", "is in the year 10000"},
		{"an empty time", having(`"expiresAt":""`), bad, "expiresAt", "is empty"},
		{"a time that is null", having(`"expiresAt":null`), bad, "expiresAt", "is null"},

		{"a context that is null", having(`"context":null`), bad, "context", "is null; allowed is an object"},
		{"a context that is a number", having(`"context":8192`), bad, "context", "is a number; allowed is an object"},
		{"tokens that are a text", having(`"context":{"inputTokens":"1"}`), bad, "context.inputTokens", "is a text; allowed is a whole number"},
		{"tokens that are null", having(`"context":{"inputTokens":null}`), bad, "context.inputTokens", "is null"},
		{"tokens below 0", having(`"context":{"outputTokens":-1}`), bad, "context.outputTokens", "-1 is not allowed; allowed are whole numbers, 0 to 9007199254740991"},
		{"half a token", having(`"context":{"outputTokens":0.5}`), bad, "context.outputTokens", "0.5 is not allowed"},
		{"not quite a token", having(`"context":{"outputTokens":0.99999999999999999999}`), bad, "context.outputTokens", "is not allowed"},
		{"a token by an exponent that is not whole", having(`"context":{"outputTokens":15e-1}`), bad, "context.outputTokens", "15e-1 is not allowed"},
		{"too many tokens", having(`"demand":{"inputTokens":9007199254740992}`), bad, "demand.inputTokens", "9007199254740992 is not allowed"},
		{"far too many tokens", having(`"demand":{"outputTokens":1e999}`), bad, "demand.outputTokens", "1e999 is not allowed"},
		{"tokens with an exponent without bounds", having(`"demand":{"outputTokens":1e99999999999999999999}`), bad, "demand.outputTokens", "is not allowed"},
		{"tokens of many digits", having(`"demand":{"outputTokens":` + strings.Repeat("9", 400) + `}`), bad, "demand.outputTokens", strings.Repeat("9", 64) + " is not"},
		{"a priority that is too high", having(`"priority":2147483648`), bad, "priority", "2147483648 is not allowed; allowed are whole numbers, -2147483648 to 2147483647"},
		{"a priority that is too low", having(`"priority":-2147483649`), bad, "priority", "is not allowed"},
		{"a priority that is a text", having(`"priority":"1"`), bad, "priority", "is a text"},
		{"a priority that is null", having(`"priority":null`), bad, "priority", "is null"},
		{"a latency below 0", having(`"slo":{"ttft":-0.1}`), bad, "slo.ttft", "-0.1 is not allowed; allowed are seconds, 0 or more"},
		{"a latency without end", having(`"slo":{"tpot":1e400}`), bad, "slo.tpot", "1e400 is not allowed"},
		{"a latency that is a text", having(`"slo":{"tpot":"50ms"}`), bad, "slo.tpot", "is a text; allowed is a number"},
		{"an SLO that is a list", having(`"slo":[]`), bad, "slo", "is a list"},
		{"a demand that is false", having(`"demand":false`), bad, "demand", "is true or false"},
		{"an unknown energy", having(`"energy":"preferlow"`), bad, "energy", `"preferlow" is unknown; allowed are neutral and preferLow`},
		{"an empty energy", having(`"energy":""`), bad, "energy", "is empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i, unknown, err := DecodeIntent([]byte(tc.text))
			var got *IntentError
			if !errors.As(err, &got) {
				t.Fatalf("%v, want an *IntentError", err)
			}
			if i != nil || unknown != nil {
				t.Errorf("beside an error: %+v, %q", i, unknown)
			}
			if got.Token != tc.token || got.Field != tc.field || !strings.Contains(got.Problem, tc.problem) {
				t.Errorf("got  %s %s: %s\nwant %s %s: %s", got.Token, got.Field, got.Problem, tc.token, tc.field, tc.problem)
			}
			if len(got.Error()) > 512 {
				t.Errorf("the error has %d bytes", len(got.Error()))
			}
		})
	}
}

// What no JSON text can say, a tree can.
func TestTreesThatAreNoIntentAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name  string
		tree  map[string]any
		token string
		field string
	}{
		{"none", nil, "intent_version", "version"},
		{"NaN", map[string]any{"priority": math.NaN()}, "intent_malformed", "priority"},
		{"an infinity", map[string]any{"priority": math.Inf(1)}, "intent_malformed", "priority"},
		{"a latency of NaN", map[string]any{"slo": map[string]any{"ttft": math.NaN()}}, "intent_malformed", "slo.ttft"},
		{"a latency without end", map[string]any{"slo": map[string]any{"ttft": math.Inf(1)}}, "intent_malformed", "slo.ttft"},
		{"a fraction", map[string]any{"priority": 1.5}, "intent_malformed", "priority"},
		{"a float beyond exact whole numbers", map[string]any{"context": map[string]any{"inputTokens": float64(1 << 53)}}, "intent_malformed", "context.inputTokens"},
		{"a float beyond all integers", map[string]any{"priority": 1e300}, "intent_malformed", "priority"},
		{"a number that is no text of one", map[string]any{"priority": json.Number("0x1")}, "intent_malformed", "priority"},
		{"a number that is empty", map[string]any{"priority": json.Number("")}, "intent_malformed", "priority"},
		{"a number that is the text of none", map[string]any{"slo": map[string]any{"tpot": json.Number("inf")}}, "intent_malformed", "slo.tpot"},
		{"an int", map[string]any{"priority": 1}, "intent_malformed", "priority"},
		{"a list of strings", map[string]any{"audience": []string{"a"}}, "intent_malformed", "audience"},
		{"a text that is not UTF-8", map[string]any{"issuer": "a\xff"}, "intent_malformed", "issuer"},
		{"a name that is not UTF-8", map[string]any{"a\xff": 1.0}, "intent_malformed", `["a\xff"]`},
		{"an object that is nil", map[string]any{"context": nil}, "intent_malformed", "context"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.tree != nil {
				tc.tree["version"] = Version
			}
			i, _, err := IntentFromValue(tc.tree)
			var got *IntentError
			if !errors.As(err, &got) {
				t.Fatalf("%+v, %v, want an *IntentError", i, err)
			}
			if got.Token != tc.token || got.Field != tc.field {
				t.Errorf("got %s of %s, want %s of %s", got.Token, got.Field, tc.token, tc.field)
			}
		})
	}
}

func TestUnknownMembersOfAnIntentAreToldAndPassedOver(t *testing.T) {
	many := make([]string, 17)
	for n := range many {
		many[n] = fmt.Sprintf(`"x%02d":{"deep":[null]}`, 16-n)
	}
	for _, tc := range []struct {
		name, members string
		want          []string
	}{
		{"in order", `"zeta":null,"alpha":[],"priority":1`, []string{"alpha", "zeta"}},
		{"the first 16", strings.Join(many, ","), []string{
			"x00", "x01", "x02", "x03", "x04", "x05", "x06", "x07", "x08", "x09", "x10", "x11", "x12", "x13", "x14", "x15",
		}},
		{"64 bytes of each", `"` + strings.Repeat("a", 65) + `":1`, []string{strings.Repeat("a", 64)}},
		{"64 bytes at most, of whole characters", `"` + strings.Repeat("a", 62) + `€":1`, []string{strings.Repeat("a", 62)}},
		{"close to a known one", `"require ments":1`, []string{"require ments"}},
		{"an empty one", `"":1`, []string{""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i, unknown, err := DecodeIntent([]byte(having(tc.members)))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(unknown, tc.want) {
				t.Errorf("unknown\n%q\nwant\n%q", unknown, tc.want)
			}
			i.Priority = 0
			if !reflect.DeepEqual(*i, RoutingIntent{Version: Version}) {
				t.Errorf("they left something: %+v", *i)
			}
		})
	}
}

func TestEncodeIntentRefusesWhatCouldNotBeReadBack(t *testing.T) {
	of := func(i RoutingIntent) *RoutingIntent {
		i.Version = Version
		return &i
	}
	requirement := func(r Requirement) *RoutingIntent { return of(RoutingIntent{Requirements: []Requirement{r}}) }
	values := slices.Repeat([]string{strings.Repeat("a", 512)}, 256)
	for _, tc := range []struct {
		name         string
		intent       *RoutingIntent
		token, field string
	}{
		{"none", nil, "intent_malformed", ""},
		{"no version", &RoutingIntent{}, "intent_version", "version"},
		{"another version", &RoutingIntent{Version: "v1"}, "intent_version", "version"},
		{"a long id", of(RoutingIntent{IntentID: strings.Repeat("a", 254)}), "intent_malformed", "intentID"},
		{"an issuer that is not UTF-8", of(RoutingIntent{Issuer: "a\xffb"}), "intent_malformed", "issuer"},
		{"an empty audience", of(RoutingIntent{Audience: []string{""}}), "intent_malformed", "audience[0]"},
		{"a time after all years", of(RoutingIntent{ExpiresAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}), "intent_malformed", "expiresAt"},
		{"a time before all years", of(RoutingIntent{IssuedAt: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)}), "intent_malformed", "issuedAt"},
		{"an empty model", of(RoutingIntent{ServedModels: []string{"a", ""}}), "intent_malformed", "servedModels[1]"},
		{"an empty requirement", requirement(Requirement{}), "intent_malformed", "requirements[0].class"},
		{"a requirement without a key", requirement(Requirement{Class: Safety, Operator: Exists}), "intent_malformed", "requirements[0].key"},
		{"a requirement without an operator", requirement(Requirement{Class: Safety, Key: "k"}), "intent_malformed", "requirements[0].operator"},
		{"a value of blanks", requirement(Requirement{Class: Safety, Key: "k", Operator: In, Values: []string{" "}}), "intent_malformed", "requirements[0].values[0]"},
		{"too many values", requirement(Requirement{Class: Safety, Key: "k", Operator: NotIn, Values: slices.Repeat([]string{"a"}, 257)}), "intent_malformed", "requirements[0].values"},
		{"too many served models", of(RoutingIntent{ServedModels: slices.Repeat([]string{"a"}, 65)}), "intent_malformed", "servedModels"},
		{"too many requirements", of(RoutingIntent{Requirements: slices.Repeat([]Requirement{{Class: Safety, Key: "k", Operator: Exists}}, 65)}), "intent_malformed", "requirements"},
		{"a bound that is no number", requirement(Requirement{Class: Safety, Key: "k", Operator: Gt, Values: []string{"1e3"}}), "intent_malformed", "requirements[0].values[0]"},
		{"tokens below 0", of(RoutingIntent{Context: &ContextNeed{InputTokens: -1}}), "intent_malformed", "context.inputTokens"},
		{"too many tokens", of(RoutingIntent{Demand: &Demand{OutputTokens: 1 << 53}}), "intent_malformed", "demand.outputTokens"},
		{"a latency of NaN", of(RoutingIntent{SLO: &SLO{TPOT: math.NaN()}}), "intent_malformed", "slo.tpot"},
		{"an unknown energy", of(RoutingIntent{Energy: "low"}), "intent_malformed", "energy"},
		{"more than 64 KiB", requirement(Requirement{Class: Safety, Key: "k", Operator: In, Values: values}), "intent_malformed", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text, err := EncodeIntent(tc.intent)
			var got *IntentError
			if !errors.As(err, &got) {
				t.Fatalf("%q, %v, want an *IntentError", text, err)
			}
			if got.Token != tc.token || got.Field != tc.field || text != nil {
				t.Errorf("got %q, %s of %s, want %s of %s", text, got.Token, got.Field, tc.token, tc.field)
			}
		})
	}
}

func TestEncodeIntentLeavesTheIntentAsItIs(t *testing.T) {
	was := func() *RoutingIntent {
		return &RoutingIntent{
			Version: Version, ExpiresAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("LMT", 19*60+32)),
			Requirements: []Requirement{{Class: Safety, Key: "k", Operator: In, Values: []string{" a "}}},
		}
	}
	i := was()
	text, err := EncodeIntent(i)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":"berth.dev/v1alpha1","expiresAt":"2026-01-02T02:44:33Z",` +
		`"requirements":[{"class":"safety","key":"k","operator":"In","values":["a"]}]}`
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if !i.ExpiresAt.Equal(was().ExpiresAt) || !reflect.DeepEqual(i.Requirements, was().Requirements) {
		t.Errorf("it became %+v", i)
	}
}

// drawIntent draws an intent that is valid in nearly all cases.
func drawIntent(t *rapid.T) *RoutingIntent {
	name := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[ -~]{1,12}`), rapid.StringN(1, 12, 48))
	names := rapid.SliceOfN(rapid.StringMatching(`[ -~äß€]{1,8}`), 0, 4)
	at := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "absent") {
			return time.Time{}
		}
		zone := time.FixedZone("", rapid.IntRange(-50000, 50000).Draw(t, "offset"))
		return time.Unix(rapid.Int64Range(-62135596799, 253402300799).Draw(t, "seconds"), rapid.Int64Range(0, 999999999).Draw(t, "nanos")).In(zone)
	})
	tokens := rapid.Int64Range(0, 1<<53-1)
	seconds := rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, math.MaxFloat64), rapid.Float64Range(0, 10))
	requirement := rapid.Custom(func(t *rapid.T) Requirement {
		r := Requirement{
			Class:    rapid.SampledFrom([]RequirementClass{Authorization, Safety, Residency, Capability, Placement}).Draw(t, "class"),
			Key:      rapid.StringMatching(`[a-z./-]{1,20}`).Draw(t, "key"),
			Operator: rapid.SampledFrom([]Operator{In, NotIn, Exists, DoesNotExist, Gt, Lt}).Draw(t, "operator"),
		}
		switch r.Operator {
		case In, NotIn:
			r.Values = rapid.SliceOfN(rapid.StringMatching(`[ \t\r\n]{0,2}[!-~äß€]{1,8}[ \t\r\n]{0,2}`), 1, 4).Draw(t, "values")
		case Gt, Lt:
			r.Values = []string{fmt.Sprint(rapid.Int64().Draw(t, "bound"))}
		}
		return r
	})
	i := &RoutingIntent{
		Version: Version, IntentID: name.Draw(t, "intentID"), Issuer: name.Draw(t, "issuer"),
		Audience: names.Draw(t, "audience"), IssuedAt: at.Draw(t, "issuedAt"), ExpiresAt: at.Draw(t, "expiresAt"),
		LogicalModel: name.Draw(t, "logicalModel"), ServedModels: names.Draw(t, "servedModels"),
		Requirements: rapid.SliceOfN(requirement, 0, 4).Draw(t, "requirements"),
		Priority:     rapid.Int32().Draw(t, "priority"), SessionKey: name.Draw(t, "sessionKey"),
		Energy: rapid.SampledFrom([]EnergyPreference{"", EnergyNeutral, EnergyPreferLow}).Draw(t, "energy"),
	}
	if rapid.Bool().Draw(t, "context") {
		i.Context = &ContextNeed{tokens.Draw(t, "input"), tokens.Draw(t, "output")}
	}
	if rapid.Bool().Draw(t, "slo") {
		i.SLO = &SLO{seconds.Draw(t, "ttft"), seconds.Draw(t, "tpot")}
	}
	if rapid.Bool().Draw(t, "demand") {
		i.Demand = &Demand{tokens.Draw(t, "input"), tokens.Draw(t, "output")}
	}
	return i
}

// asRead is an intent as it is read back.
func asRead(i *RoutingIntent) *RoutingIntent {
	read := *i
	read.IssuedAt, read.ExpiresAt = i.IssuedAt.UTC(), i.ExpiresAt.UTC()
	if len(i.Audience) == 0 {
		read.Audience = nil
	}
	if len(i.ServedModels) == 0 {
		read.ServedModels = nil
	}
	read.Requirements = nil
	for _, r := range i.Requirements {
		var values []string
		for _, v := range r.Values {
			values = append(values, strings.Trim(v, " \t\r\n"))
		}
		r.Values = values
		read.Requirements = append(read.Requirements, r)
	}
	return &read
}

func TestWhatEncodeIntentWritesIsReadBackInEveryForm(t *testing.T) {
	written := 0
	rapid.Check(t, func(t *rapid.T) {
		i := drawIntent(t)
		text, err := EncodeIntent(i)
		if err != nil {
			var bad *IntentError
			if !errors.As(err, &bad) || i.Validate() == nil {
				t.Fatalf("%v, Validate says %v", err, i.Validate())
			}
			return
		}
		written++
		want := asRead(i)
		got, unknown, err := DecodeIntent(text)
		if err != nil || len(unknown) > 0 || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngot\n%+v, %q, %v\nwant\n%+v", text, got, unknown, err, want)
		}
		s := &structpb.Struct{}
		if err := s.UnmarshalJSON(text); err != nil {
			t.Fatal(err)
		}
		got, unknown, err = IntentFromValue(s.AsMap())
		if err != nil || len(unknown) > 0 || !reflect.DeepEqual(got, want) {
			t.Fatalf("by a struct: %s\ngot\n%+v, %q, %v\nwant\n%+v", text, got, unknown, err, want)
		}
	})
	if written < 20 {
		t.Errorf("%d of the intents were written: too few to show anything", written)
	}
}

func TestTheOrderOfMembersMeansNothing(t *testing.T) {
	var whole map[string]json.RawMessage
	if err := json.Unmarshal([]byte(wholeIntent), &whole); err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(whole))
	for name := range whole {
		names = append(names, name)
	}
	slices.Sort(names)
	rapid.Check(t, func(t *rapid.T) {
		var members []string
		for _, name := range rapid.Permutation(names).Draw(t, "order") {
			members = append(members, fmt.Sprintf("%q:%s", name, whole[name]))
		}
		got, _, err := DecodeIntent([]byte("{" + strings.Join(members, ",") + "}"))
		if err != nil || !reflect.DeepEqual(got, wholeIntentValue()) {
			t.Fatalf("got\n%+v, %v", got, err)
		}
	})
}

// Of two things that are wrong, always the same is told.
func TestTheErrorDoesNotDependOnTheOrderOfAMap(t *testing.T) {
	text := having(`"b":1,"a":1,"Priority":1,"SLO":1,"context":{"z":1,"y":1,"x":1,"w":1},"requirements":[{"v":1,"u":1,"t":1}]`)
	_, _, first := DecodeIntent([]byte(text))
	if first == nil {
		t.Fatal("accepted")
	}
	for range 50 {
		if _, _, err := DecodeIntent([]byte(text)); err.Error() != first.Error() {
			t.Fatalf("%v, and %v", first, err)
		}
	}
}

// However many members an object has, a name that comes twice is found.
func TestANameThatComesTwiceIsFoundAmongMany(t *testing.T) {
	for _, n := range []int{1, fewMembers - 1, fewMembers, fewMembers + 1, 5000} {
		members := make([]string, n)
		for i := range members {
			members[i] = fmt.Sprintf(`"m%d":%d`, i, i)
		}
		text := `{"version":"berth.dev/v1alpha1",` + strings.Join(members, ",")
		if _, unknown, err := DecodeIntent([]byte(text + "}")); err != nil || len(unknown) != min(n, 16) {
			t.Errorf("%d members: %d unknown, error %v", n, len(unknown), err)
		}
		for _, again := range []string{"m0", fmt.Sprintf("m%d", n-1), `\u006d0`} {
			_, _, err := DecodeIntent([]byte(text + `,"` + again + `":0}`))
			if err == nil || !strings.Contains(err.Error(), "occurs twice") {
				t.Errorf("%d members and %s again: error %v", n, again, err)
			}
		}
	}
}
