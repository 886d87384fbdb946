package intent

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func readFlat(t testing.TB, metadata map[string]any) (*v1alpha1.RoutingIntent, error) {
	t.Helper()
	got, err := mustReader(t, Options{Metadata: true}).Read(&Input{Metadata: metadata}, noon)
	return got.Routing, err
}

func TestFlatKeysStateAnIntent(t *testing.T) {
	got, err := readFlat(t, map[string]any{
		"logicalModel": " fast ", "servedModels": "b, a,,", "priority": -2.0, "sessionKey": "s 1",
		"contextInputTokens": "1200", "contextOutputTokens": 300.0,
		"requirement.safety.berth.dev/safety":         "strict",
		"requirement.authorization.berth.dev/tenants": "b,a",
		"requirement.placement.a.b.c":                 7.0,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &v1alpha1.RoutingIntent{
		Version: "berth.dev/v1alpha1", LogicalModel: "fast", ServedModels: []string{"b", "a"}, Priority: -2, SessionKey: "s 1",
		Context: &v1alpha1.ContextNeed{InputTokens: 1200, OutputTokens: 300},
		Requirements: []v1alpha1.Requirement{
			{Class: "authorization", Key: "berth.dev/tenants", Operator: "In", Values: []string{"b", "a"}},
			{Class: "placement", Key: "a.b.c", Operator: "In", Values: []string{"7"}},
			{Class: "safety", Key: "berth.dev/safety", Operator: "In", Values: []string{"strict"}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n %+v\nwant\n %+v", got, want)
	}
}

func TestNumbersOfFlatKeys(t *testing.T) {
	const maxInt = 1<<53 - 1
	for _, c := range []struct {
		key   string
		value any
		want  int64
		ok    bool
	}{
		{"priority", 0.0, 0, true},
		{"priority", math.Copysign(0, -1), 0, true},
		{"priority", "-7", -7, true},
		{"priority", " 7 ", 7, true},
		{"priority", "007", 7, true},
		{"priority", json.Number("7"), 7, true},
		{"priority", 2147483647.0, math.MaxInt32, true},
		{"priority", "-2147483648", math.MinInt32, true},
		{"priority", 2147483648.0, 0, false},
		{"priority", "-2147483649", 0, false},
		{"priority", "9999999999999999999999", 0, false},
		{"priority", 1.5, 0, false},
		{"priority", "1.0", 0, false},
		{"priority", "1e3", 0, false},
		{"priority", "+1", 0, false},
		{"priority", "1_000", 0, false},
		{"priority", "0x10", 0, false},
		{"priority", "١", 0, false},
		{"priority", "", 0, false},
		{"priority", "-", 0, false},
		{"priority", "high", 0, false},
		{"priority", math.NaN(), 0, false},
		{"priority", math.Inf(1), 0, false},
		{"priority", json.Number("x"), 0, false},
		{"priority", true, 0, false},
		{"priority", nil, 0, false},
		{"priority", []any{1.0}, 0, false},
		{"priority", map[string]any{}, 0, false},
		{"contextInputTokens", 0.0, 0, true},
		{"contextInputTokens", float64(maxInt), maxInt, true},
		{"contextInputTokens", "9007199254740991", maxInt, true},
		{"contextInputTokens", "9007199254740992", 0, false},
		{"contextInputTokens", float64(1 << 53), 0, false},
		{"contextInputTokens", -1.0, 0, false},
		{"contextInputTokens", "-1", 0, false},
		{"contextOutputTokens", 5.0, 5, true},
		{"contextOutputTokens", "-1", 0, false},
	} {
		got, err := readFlat(t, map[string]any{c.key: c.value})
		if !c.ok {
			bounds := "-2147483648 to 2147483647"
			if c.key != "priority" {
				bounds = "0 to 9007199254740991"
			}
			want := "intent_malformed: berth.dev metadata: " + c.key + ": must be a whole number, " + bounds
			if err == nil || err.Error() != want {
				t.Errorf("%s of %#v: error %v\nwant %s", c.key, c.value, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of %#v: %v", c.key, c.value, err)
			continue
		}
		number := int64(got.Priority)
		switch c.key {
		case "contextInputTokens":
			number = got.Context.InputTokens
		case "contextOutputTokens":
			number = got.Context.OutputTokens
		}
		if number != c.want {
			t.Errorf("%s of %#v is %d, want %d", c.key, c.value, number, c.want)
		}
	}
}

func TestTextsAndListsOfFlatKeys(t *testing.T) {
	many := func(n int) string { return strings.Repeat("x,", n) }
	const noNumber = "must be a whole number, -(2^53-1) to 2^53-1, or else a string"
	for _, c := range []struct {
		name  string
		key   string
		value any
		want  []string
		fails string // the message after the key
	}{
		{"a text", "logicalModel", "org/model:1", []string{"org/model:1"}, ""},
		{"a text with commas", "sessionKey", "a,b", []string{"a,b"}, ""},
		{"blanks around a text", "sessionKey", "\t a b \r\n", []string{"a b"}, ""},
		{"a number as a text", "logicalModel", 70.0, []string{"70"}, ""},
		{"a negative number as a text", "sessionKey", -5.0, []string{"-5"}, ""},
		{"a large number as a text", "sessionKey", 1e15, []string{"1000000000000000"}, ""},
		{"a number that JSON decoding kept", "sessionKey", json.Number("1e2"), []string{"100"}, ""},
		{"one item", "servedModels", "a", []string{"a"}, ""},
		{"items with blanks around", "servedModels", " a , b\t", []string{"a", "b"}, ""},
		{"empty items", "servedModels", ",,a, ,b,", []string{"a", "b"}, ""},
		{"a number as a list", "servedModels", 3.0, []string{"3"}, ""},
		{"an item twice", "servedModels", "a,a", []string{"a", "a"}, ""},
		{"a requirement", "requirement.residency.berth.dev/residency", "eu,ch", []string{"eu", "ch"}, ""},
		{"a number in a requirement", "requirement.placement.rack", 12.0, []string{"12"}, ""},
		{"as many models as may be", "servedModels", many(64), strings.Split(strings.TrimSuffix(many(64), ","), ","), ""},
		{"as many values as may be", "requirement.safety.k", many(256), strings.Split(strings.TrimSuffix(many(256), ","), ","), ""},

		{"an empty text", "logicalModel", "", nil, "must not be empty"},
		{"a blank text", "sessionKey", " \t", nil, "must not be empty"},
		{"a fraction, of which zeros may be lost", "sessionKey", 1.1, nil, noNumber},
		{"a number that is not exact", "requirement.authorization.tenant", 12345678901234567890.0, nil, noNumber},
		{"the last number that is exact", "sessionKey", 9007199254740991.0, []string{"9007199254740991"}, ""},
		{"the first number that is not exact", "sessionKey", 9007199254740992.0, nil, noNumber},
		{"a number that is none", "logicalModel", math.NaN(), nil, noNumber},
		{"an infinite number", "logicalModel", math.Inf(-1), nil, noNumber},
		{"true", "logicalModel", true, nil, "must be a string or a number"},
		{"null", "requirement.safety.k", nil, nil, "must be a string or a number"},
		{"a list of values", "requirement.safety.k", []any{"a"}, nil, "must be a string or a number"},
		{"an object", "servedModels", map[string]any{"a": 1.0}, nil, "must be a string or a number"},
		{"no items", "servedModels", " , ,", nil, "must have an item that is not empty"},
		{"an empty list", "requirement.safety.k", "", nil, "must not be empty"},
		{"too many models", "servedModels", many(65), nil, "must have at most 64 items"},
		{"too many values", "requirement.safety.k", many(257), nil, "must have at most 256 items"},
		{"a bomb of commas", "requirement.safety.k", strings.Repeat(",", 1<<20), nil, "must have an item that is not empty"},
		{"a text of 513 bytes", "logicalModel", strings.Repeat("m", 513), nil, "has 513 bytes; allowed are 1 to 512"},
		{"a value of 513 bytes", "requirement.safety.k", "a," + strings.Repeat("m", 513), nil, "values[1]: has 513 bytes; allowed are 1 to 512"},
		{"a control character", "sessionKey", "a\x00b", nil, `"a\x00b" has a control character`},
		{"invalid UTF-8", "servedModels", "a,\xff", nil, `[1]: "\xff" is not UTF-8`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := readFlat(t, map[string]any{c.key: c.value})
			if c.fails != "" {
				if want := "intent_malformed: berth.dev metadata: " + c.key + ": " + c.fails; err == nil || err.Error() != want {
					t.Errorf("error %v\nwant  %s", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			items := got.ServedModels
			switch {
			case c.key == "logicalModel":
				items = []string{got.LogicalModel}
			case c.key == "sessionKey":
				items = []string{got.SessionKey}
			case len(got.Requirements) > 0:
				items = got.Requirements[0].Values
			}
			if !reflect.DeepEqual(items, c.want) {
				t.Errorf("%q, want %q", items, c.want)
			}
		})
	}
}

const noFlatKey = "must be logicalModel, servedModels, priority, sessionKey, contextInputTokens, contextOutputTokens" +
	" or requirement.CLASS.KEY with a class of requirements"

func TestFlatKeyTellsWhatMayBeMapped(t *testing.T) {
	for _, name := range []string{
		"logicalModel", "servedModels", "priority", "sessionKey", "contextInputTokens", "contextOutputTokens",
		"requirement.authorization.berth.dev/tenants", "requirement.safety.k", "requirement.residency.a.b", "requirement.capability.x",
		"requirement.placement." + strings.Repeat("k", 317), "requirement.safety..",
	} {
		if err := FlatKey(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"":                         noFlatKey,
		"intent":                   noFlatKey,
		"logicalmodel":             noFlatKey,
		"model":                    noFlatKey,
		"\u0020priority":           noFlatKey,
		"expiresAt":                noFlatKey,
		"requirement":              noFlatKey,
		"requirement.":             noFlatKey,
		"requirement.safety":       noFlatKey,
		"requirement.safety.":      noFlatKey,
		"requirement..k":           noFlatKey,
		"requirement.legal.k":      noFlatKey,
		"requirement.Safety.k":     noFlatKey,
		"requirements.safety.k":    noFlatKey,
		"Requirement.safety.k":     noFlatKey,
		"requirement.safety.a\nb":  `"a\nb" has a control character`,
		"requirement.safety.\xff":  `"\xff" is not UTF-8`,
		"requirement.context.size": noFlatKey,
		"requirement.safety." + strings.Repeat("k", 318): "has 318 bytes; allowed are 1 to 317",
	} {
		if err := FlatKey(name); err == nil || err.Error() != want {
			t.Errorf("%q: error %v\nwant %s", name, err, want)
		}
	}
}

func TestAsManyFlatKeysAsAnIntentHoldsAreRead(t *testing.T) {
	metadata := map[string]any{
		"logicalModel": "m", "servedModels": "m", "priority": 1.0, "sessionKey": "s", "contextInputTokens": 1.0, "contextOutputTokens": 1.0,
	}
	for i := range 64 {
		metadata[fmt.Sprintf("requirement.safety.k%d", i)] = "v"
	}
	got, err := readFlat(t, metadata)
	if err != nil || len(got.Requirements) != 64 {
		t.Fatalf("%d requirements, error %v", len(got.Requirements), err)
	}
	metadata["requirement.safety.more"] = "v"
	_, err = readFlat(t, metadata)
	if want := "intent_malformed: berth.dev metadata: 71 keys: must be at most 70"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	delete(metadata, "priority")
	_, err = readFlat(t, metadata)
	if want := "intent_malformed: berth.dev metadata: requirements: has 65 items; allowed are at most 64"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestPlainHeadersAreReadAsFlatTexts(t *testing.T) {
	r := mustReader(t, Options{PlainHeaders: map[string]string{
		"x-selected-model": "logicalModel", "x-priority": "priority", "x-tenant": "requirement.authorization.berth.dev/tenants",
	}})
	got, err := r.Read(&Input{Plain: []Header{{"x-tenant", "b, a"}, {"x-other", ""}, {"x-other", ""}, {"x-priority", "-1"}}}, noon)
	if err != nil {
		t.Fatal(err)
	}
	want := &v1alpha1.RoutingIntent{Version: "berth.dev/v1alpha1", Priority: -1, Requirements: []v1alpha1.Requirement{
		{Class: "authorization", Key: "berth.dev/tenants", Operator: "In", Values: []string{"b", "a"}}}}
	if !reflect.DeepEqual(got.Routing, want) || got.Source != SourceHeaders || got.Models != nil {
		t.Errorf("got %+v of %+v", got, got.Routing)
	}

	for _, c := range []struct {
		name    string
		headers []Header
		want    string
	}{
		{"an empty value", []Header{{"x-selected-model", ""}}, "header: x-selected-model: must not be empty"},
		{"a list without items", []Header{{"x-tenant", ","}}, "header: x-tenant: must have an item that is not empty"},
		{"a number that is none", []Header{{"x-priority", "high"}}, "header: x-priority: must be a whole number, -2147483648 to 2147483647"},
		{"two copies that say the same", []Header{{"x-priority", "1"}, {"x-priority", "1"}}, "header: x-priority: must be sent once"},
		{"two copies, apart", []Header{{"x-tenant", "a"}, {"x-priority", "1"}, {"x-tenant", "b"}}, "header: x-tenant: must be sent once"},
		{"invalid UTF-8", []Header{{"x-selected-model", "\xff"}}, `header: x-selected-model: "\xff" is not UTF-8`},
		{"a value that is long", []Header{{"x-tenant", strings.Repeat("t", 513)}}, "header: x-tenant: values[0]: has 513 bytes; allowed are 1 to 512"},
	} {
		got, err := r.Read(&Input{Plain: c.headers}, noon)
		if refused := refusal(t, got, err); refused.Token != TokenMalformed || refused.Message != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, refused, c.want)
		}
	}
}
