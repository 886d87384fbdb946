package intent

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Inputs that are known to break endpoint pickers, where intents can carry them.

// A number that a router or a client writes is what it says or a refusal: it never
// wraps, never saturates, and never becomes 0, which is the default and so could be
// better than what was meant.
func TestHD4_NumbersAreWhatTheySayOrARefusal(t *testing.T) {
	const refused = -1 << 63
	nines, zeros := strings.Repeat("9", 400), strings.Repeat("0", 399)
	for _, c := range []struct {
		text string
		// What the priority, and what a number of tokens, of that text is.
		priority, tokens int64
	}{
		{"0", 0, 0},
		{"-0", 0, 0},
		{"5", 5, 5},
		{" 5 ", 5, 5},
		{zeros + "5", 5, 5},
		{"-1", -1, refused},
		{"-2147483648", -2147483648, refused},
		{"-2147483649", refused, refused},
		{"2147483647", 2147483647, 2147483647},
		{"2147483648", refused, 2147483648},
		{"4294967296", refused, 4294967296},
		{"9300000000000", refused, 9300000000000},
		{"9007199254740991", refused, 9007199254740991},
		{"9007199254740992", refused, refused},
		{"9223372036854775807", refused, refused},
		{"9223372036854775808", refused, refused},
		{"18446744073709551616", refused, refused},
		{"-9223372036854775809", refused, refused},
		{nines, refused, refused},
		{"-" + nines, refused, refused},
		{"1e3", refused, refused},
		{"1e-400", refused, refused},
		{"0x5", refused, refused},
		{"5.0", refused, refused},
		{"NaN", refused, refused},
		{"Inf", refused, refused},
		{"-Infinity", refused, refused},
		{"+5", refused, refused},
		{"--5", refused, refused},
		{"- 5", refused, refused},
		{"5 5", refused, refused},
		{"5,", refused, refused},
		{"5;", refused, refused},
		{"", refused, refused},
		{" \t", refused, refused},
		{"５", refused, refused},
		{"null", refused, refused},
	} {
		for key, want := range map[string]int64{"priority": c.priority, "contextInputTokens": c.tokens, "contextOutputTokens": c.tokens} {
			for channel, in := range map[string]Input{
				"berth.dev metadata": {Metadata: map[string]any{key: c.text}},
				"header":             {Plain: []Header{{"x-" + strings.ToLower(key), c.text}}},
			} {
				got, err := numbered(t).Read(&in, noon)
				if want == refused {
					if e := refusal(t, got, err); e.Token != TokenMalformed || len(e.Message) > 200 {
						t.Errorf("%s: %s of %.40q: %v; want it malformed, in a message of at most 200 bytes", channel, key, c.text, e)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %s of %.40q: %v", channel, key, c.text, err)
					continue
				}
				number := int64(got.Routing.Priority)
				switch key {
				case "contextInputTokens":
					number = got.Routing.Context.InputTokens
				case "contextOutputTokens":
					number = got.Routing.Context.OutputTokens
				}
				if number != want {
					t.Errorf("%s: %s of %.40q is %d, want %d", channel, key, c.text, number, want)
				}
			}
		}
	}
}

// numbered maps a plain header to each flat key that is a number.
func numbered(t testing.TB) *Reader {
	return mustReader(t, Options{Metadata: true, PlainHeaders: map[string]string{
		"x-priority": "priority", "x-contextinputtokens": "contextInputTokens", "x-contextoutputtokens": "contextOutputTokens",
	}})
}

// Of two copies neither the first nor the last counts, whichever is the better one.
func TestHD4_ARepeatedNumberIsRefused(t *testing.T) {
	for _, name := range []string{"x-priority", "x-contextinputtokens", "x-contextoutputtokens"} {
		for _, copies := range [][]string{{"1", "2"}, {"2", "1"}, {"1", "1"}, {"1", ""}, {"", "1"}, {"1", "NaN"}, {"1", "1", "1"}} {
			var in Input
			for _, value := range copies {
				in.Plain = append(in.Plain, Header{name, value})
			}
			got, err := numbered(t).Read(&in, noon)
			if e := refusal(t, got, err); e.Token != TokenMalformed || !strings.HasPrefix(e.Message, "header: "+name+": must be ") {
				t.Errorf("%s with %q: %v", name, copies, e)
			}
		}
	}
}

// The latencies and the demand of a whole intent are hints, and yet one that makes no
// sense is refused rather than taken for none, or for an urgent one.
func TestHD4_NumbersOfAWholeIntentAreWhatTheySayOrARefusal(t *testing.T) {
	nines := strings.Repeat("9", 400)
	for _, c := range []struct {
		number string
		// Whether it is a latency, a number of tokens and a priority.
		seconds, tokens, priority bool
	}{
		{"0", true, true, true},
		{"5", true, true, true},
		{"1e3", true, true, true},
		{"0.25", true, false, false},
		{"-1", false, false, true},
		{"-0.25", false, false, false},
		{"9300000000000", true, true, false},
		{"9007199254740992", true, false, false},
		{nines, false, false, false},
		{"-" + nines, false, false, false},
		{"1e400", false, false, false},
		{"NaN", false, false, false},
		{"Infinity", false, false, false},
		{"+5", false, false, false},
		{`"5"`, false, false, false},
		{`""`, false, false, false},
		{"null", false, false, false},
		{"[5]", false, false, false},
		{"", false, false, false},
	} {
		for _, at := range []struct {
			format string
			ok     bool
		}{
			{`"slo":{"ttft":%}`, c.seconds},
			{`"slo":{"tpot":%}`, c.seconds},
			{`"context":{"inputTokens":%}`, c.tokens},
			{`"context":{"outputTokens":%}`, c.tokens},
			{`"demand":{"inputTokens":%}`, c.tokens},
			{`"demand":{"outputTokens":%}`, c.tokens},
			{`"priority":%`, c.priority},
		} {
			text := `{` + version + `,` + strings.ReplaceAll(at.format, "%", c.number) + `}`
			inputs := map[string]Input{"a JSON text": {Metadata: map[string]any{"intent": text}}}
			var value map[string]any
			if json.Unmarshal([]byte(text), &value) == nil {
				inputs["an object"] = Input{Metadata: map[string]any{"intent": value}}
			}
			for form, in := range inputs {
				got, err := numbered(t).Read(&in, noon)
				if !at.ok {
					if e := refusal(t, got, err); e.Token != TokenMalformed {
						t.Errorf("%s: %.60s: %v, want it malformed", form, text, e)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %.60s: %v", form, text, err)
				}
			}
		}
	}
}

// sessionKeys are what a client may send in the hope that it names a replica.
var sessionKeys = []string{
	"10.0.0.2:8000", "10.0.0.2", "[2001:db8::2]:8000", "http://10.0.0.2:8000", "replica-1", "other-namespace/replica-1", "berth.dev/replica=replica-1",
	"replica-that-is-gone", "MTAuMC4wLjI6ODAwMA==", "%%%not base64%%%", "m", "*", "-1", "{}", "null", "../../replica-1", strings.Repeat("k", 512),
}

// A session key has no part in what is demanded: with it, an intent says the same of
// who may serve as without.
func TestHD8_ASessionKeyDemandsNothing(t *testing.T) {
	o := everything(t)
	o.PlainHeaders = map[string]string{"x-session": "sessionKey", "x-selected-model": "logicalModel", "x-tenant": "requirement.authorization.berth.dev/tenants"}
	r := mustReader(t, o)
	// inputs are one intent by each channel, without a session key if it is empty.
	inputs := func(key string) map[string]Input {
		flat := map[string]any{"logicalModel": "fast", "requirement.authorization.berth.dev/tenants": "a"}
		plain := []Header{{"x-selected-model", "fast"}, {"x-tenant", "a"}}
		whole := strings.TrimSuffix(good, "}") +
			`,"requirements":[{"class":"authorization","key":"berth.dev/tenants","operator":"In","values":["a"]}]`
		if key != "" {
			flat["sessionKey"] = key
			plain = append(plain, Header{"x-session", key})
			whole += `,"sessionKey":"` + key + `"`
		}
		whole += "}"
		return map[string]Input{
			"flat metadata":  {Metadata: flat},
			"whole metadata": {Metadata: map[string]any{"intent": whole}},
			"signed":         {Signed: []string{token(signEd, edHeader, whole)}},
			"plain headers":  {Plain: plain},
		}
	}
	without := map[string]Intent{}
	for channel, in := range inputs("") {
		got, err := r.Read(&in, noon)
		if err != nil {
			t.Fatalf("%s: %v", channel, err)
		}
		without[channel] = got
	}
	for _, key := range sessionKeys {
		for channel, in := range inputs(key) {
			got, err := r.Read(&in, noon)
			if err != nil {
				t.Errorf("%s, %.40q: %v", channel, key, err)
				continue
			}
			if got.Routing.SessionKey != key {
				t.Errorf("%s: the session key is %.40q, want %.40q", channel, got.Routing.SessionKey, key)
			}
			got.Routing.SessionKey = ""
			if want := without[channel]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %.40q: %+v of %+v\nwant %+v of %+v", channel, key, got, got.Routing, want, want.Routing)
			}
		}
	}
}

func TestHD8_ASessionKeyIsBounded(t *testing.T) {
	for name, key := range map[string]string{
		"513 bytes": strings.Repeat("k", 513), "a megabyte": strings.Repeat("k", 1<<20), "a line break": "a\nb", "no text": "\xff", "nothing": "",
	} {
		for channel, in := range map[string]Input{
			"flat metadata":  {Metadata: map[string]any{"sessionKey": key}},
			"whole metadata": {Metadata: map[string]any{"intent": tree("sessionKey", key)}},
			"plain headers":  {Plain: []Header{{"x-session", key}}},
		} {
			r := mustReader(t, Options{Metadata: true, PlainHeaders: map[string]string{"x-session": "sessionKey"}})
			got, err := r.Read(&in, noon)
			if e := refusal(t, got, err); e.Token != TokenMalformed || len(e.Message) > 200 {
				t.Errorf("%s, %s: %v; want it malformed, in a message of at most 200 bytes", channel, name, e)
			}
		}
	}
}

// What requirements say is between the router and the picker: of a refused intent,
// an error has at most a piece that is too short to be a prompt, in one line.
func TestZ3_ErrorsQuoteNoMoreThanAPieceOfAValue(t *testing.T) {
	canary := strings.Repeat("CANARY-5f2b ", 100)
	for name, in := range map[string]Input{
		"a value that is long":    {Metadata: map[string]any{"requirement.safety.k": canary}},
		"a value with a break":    {Metadata: map[string]any{"requirement.safety.k": "a\n" + canary}},
		"a value of another type": {Metadata: map[string]any{"requirement.safety.k": []any{canary}}},
		"a key":                   {Metadata: map[string]any{canary: "x"}},
		"a number":                {Metadata: map[string]any{"priority": canary}},
		"a model":                 {Metadata: map[string]any{"logicalModel": canary}},
		"a JSON text":             {Metadata: map[string]any{"intent": `{"` + canary}},
		"a member":                {Metadata: map[string]any{"intent": tree(canary, 1.0, "requirements", canary)}},
		"a version":               {Metadata: map[string]any{"intent": map[string]any{"version": canary}}},
		"an operator": {Metadata: map[string]any{"intent": tree("requirements", []any{
			map[string]any{"class": "safety", "key": "k", "operator": canary, "values": []any{canary}}})}},
		"a plain header":    {Plain: []Header{{"x-tenant", canary}}},
		"a signed header":   {Signed: []string{canary}},
		"a header, by name": {Plain: []Header{{"x-selected-model", canary + "\n"}}},
	} {
		got, err := mustReader(t, everything(t)).Read(&in, noon)
		e := refusal(t, got, err)
		if n := strings.Count(e.Error(), "CANARY"); n > 6 || len(e.Error()) > 500 || strings.ContainsAny(e.Error(), "\r\n") {
			t.Errorf("%s: %d bytes with the value %d times over: %s", name, len(e.Error()), n, e)
		}
	}
}
