package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// jsonPage is a profile with one JSON page, whose fields are the given members.
func jsonPage(t *testing.T, fields string) (*Profile, Page) {
	t.Helper()
	p := parse(t, strings.Replace(small, "labels:", "- {path: /info, format: json, every: 1m, ttl: 20s, fields: {"+fields+"}}\nlabels:", 1))
	return p, slowPage(t, p, JSON)
}

func TestMembersOfAJSONPage(t *testing.T) {
	cases := []struct{ name, fields, body, field, want string }{
		{"a text", "engineVersion: {member: version}", `{"version":"1.2.3"}`, "engineVersion", "text 1.2.3"},
		{"a text within an object", "engineVersion: {member: build.version}", `{"build":{"version":"1.2.3"}}`, "engineVersion", "text 1.2.3"},
		{"a text that several agree on", "engineVersion: {member: 'ranks[].v'}", `{"ranks":[{"v":"1"},{"v":"1"}]}`, "engineVersion", "text 1"},
		{"texts that differ", "engineVersion: {member: 'ranks[].v'}", `{"ranks":[{"v":"1"},{"v":"2"}]}`, "engineVersion", "invalid"},
		{"an empty text", "engineVersion: {member: version}", `{"version":""}`, "engineVersion", "supported, invalid: version is empty"},
		{"a text that does not print", "engineVersion: {member: version}", `{"version":"a\u0000"}`, "engineVersion", "supported, invalid: version has characters that do not print"},
		{"a number for a text", "engineVersion: {member: version}", `{"version":1}`, "engineVersion", "supported, invalid: version is not a text"},
		{"no member", "engineVersion: {member: version}", `{"other":"1"}`, "engineVersion", "missing: version is not stated"},
		{"null", "engineVersion: {member: version}", `{"version":null}`, "engineVersion", "missing: version is not stated"},
		{"another case of letters", "engineVersion: {member: version}", `{"Version":"1"}`, "engineVersion", "missing: version is not stated"},
		{"a member of no object", "engineVersion: {member: a.b}", `{"a":"b"}`, "engineVersion", "missing: a.b is not stated"},
		{"a list that is none", "maxConcurrency: {member: 'a[].b', combine: sum}", `{"a":{"b":1}}`, "maxConcurrency", "missing: a[].b is not stated"},
		{"an empty list", "maxConcurrency: {member: 'a[].b', combine: sum}", `{"a":[]}`, "maxConcurrency", "missing: a[].b is not stated"},

		{"one number", "maxConcurrency: {member: max}", `{"max":256}`, "maxConcurrency", "256"},
		{"numbers that agree", "maxConcurrency: {member: 'a[].m'}", `{"a":[{"m":8},{"m":8}]}`, "maxConcurrency", "8"},
		{"numbers that differ", "maxConcurrency: {member: 'a[].m'}", `{"a":[{"m":8},{"m":9}]}`, "maxConcurrency", "supported, invalid: a[].m is 8 in one place and 9 in another"},
		{"a sum", "maxConcurrency: {member: 'a[].m', combine: sum}", `{"a":[{"m":8},{"m":9}]}`, "maxConcurrency", "17"},
		{"the largest", "maxConcurrency: {member: 'a[].m', combine: max}", `{"a":[{"m":8},{"m":9},{"m":1}]}`, "maxConcurrency", "9"},
		{"lists in lists", "maxConcurrency: {member: 'a[].b[]', combine: sum}", `{"a":[{"b":[1,2]},{"b":[3]}]}`, "maxConcurrency", "6"},
		{"a negative number", "maxConcurrency: {member: max}", `{"max":-1}`, "maxConcurrency", "supported, invalid: max is not a number of at least 0"},
		{"one of several is negative", "maxConcurrency: {member: 'a[]', combine: sum}", `{"a":[5,-1]}`, "maxConcurrency", "supported, invalid: a[] is not a number of at least 0"},
		{"a number in a text", "maxConcurrency: {member: max}", `{"max":"256"}`, "maxConcurrency", "supported, invalid: max is not a number of at least 0"},
		{"a number beyond all measure", "maxConcurrency: {member: max}", `{"max":1e300}`, "maxConcurrency", "supported, invalid: max is 1e+300: not possible for maxConcurrency"},
		{"zero, which is no concurrency", "maxConcurrency: {member: max}", `{"max":0}`, "maxConcurrency", "supported, invalid: max is 0: not possible for maxConcurrency"},
		{"zero, which is a depth", "activeRequests: {member: n}", `{"n":0}`, "activeRequests", "0"},
		{"a ratio above one", "kvCacheUtilization: {member: kv}", `{"kv":1.5}`, "kvCacheUtilization", "supported, invalid: kv is 1.5: not possible for kvCacheUtilization"},
		{"a doubted number", "maxConcurrency: {member: max, quality: 0.5, because: a guess}", `{"max":256}`, "maxConcurrency", "256 at 0.5: a guess"},

		{"yes", "prefixCacheEnabled: {member: on}", `{"on":true}`, "prefixCacheEnabled", "true"},
		{"no, inverted", "prefixCacheEnabled: {member: off, invert: true}", `{"off":false}`, "prefixCacheEnabled", "true"},
		{"yes, inverted", "prefixCacheEnabled: {member: off, invert: true}", `{"off":true}`, "prefixCacheEnabled", "false"},
		{"yes and no", "prefixCacheEnabled: {member: 'a[]'}", `{"a":[true,false]}`, "prefixCacheEnabled", "supported, invalid: a[] is not one yes or no"},
		{"a number for a yes", "prefixCacheEnabled: {member: on}", `{"on":1}`, "prefixCacheEnabled", "supported, invalid: on is not one yes or no"},

		{"names", "adaptersWaiting: {member: 'a[].id'}", `{"a":[{"id":"x"},{"id":"y"},{"id":"x"}]}`, "adaptersWaiting", "names x,y"},
		{"a name that is none", "adaptersWaiting: {member: 'a[].id'}", `{"a":[{"id":"x"},{"id":7}]}`, "adaptersWaiting", "supported, invalid: a[].id is not a text"},

		{"a time", "processStart: {member: start}", `{"start":40}`, "processStart", "40"},
		{"a time later than the page", "processStart: {member: start}", `{"start":1788184120}`, "processStart", "supported, invalid: start is 1.78818412e+09: later than the page, which was asked for at 50"},
		{"not in each item of a list", "maxConcurrency: {member: 'a[].m', combine: sum}", `{"a":[{"m":8},{"x":1}]}`, "maxConcurrency", "missing: a[].m is not stated in each place: what it is together is not known"},
		{"null in an item of a list", "maxConcurrency: {member: 'a[].m', combine: sum}", `{"a":[{"m":8},{"m":null}]}`, "maxConcurrency", "missing: a[].m is not stated in each place: what it is together is not known"},
		{"an item that is no object", "maxConcurrency: {member: 'a[].m', combine: max}", `{"a":[{"m":8},7]}`, "maxConcurrency", "missing: a[].m is not stated in each place: what it is together is not known"},
		{"what all must agree on, not in each item", "maxConcurrency: {member: 'a[].m'}", `{"a":[{"m":8},{}]}`, "maxConcurrency", "8"},
		{"given twice", "maxConcurrency: {member: max}", `{"max":8,"max":8}`, "maxConcurrency", "supported, invalid: max is given twice"},
		{"given twice, once with escapes", "maxConcurrency: {member: max}", `{"max":8,"\u006dax":9}`, "maxConcurrency", "supported, invalid: max is given twice"},
		{"a part of a request", "maxConcurrency: {member: max}", `{"max":5.5}`, "maxConcurrency", "supported, invalid: max is 5.5, want a whole number"},
		{"a number that no float can have", "maxConcurrency: {member: max}", `{"max":1e400}`, "maxConcurrency", "supported, invalid: max is not a number of at least 0"},
		{"half a character", "engineVersion: {member: version}", `{"version":"a\ud800"}`, "engineVersion", "supported, invalid: version has what is no character"},
		{"a time of zero", "processStart: {member: start}", `{"start":0}`, "processStart", "invalid"},
		{"a time beyond the calendar", "processStart: {member: start}", `{"start":1e14}`, "processStart", "invalid"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, page := jsonPage(t, c.fields)
			s, err := p.ReadSlow(page, 200, []byte(c.body), 50*second, 0, p.Silent(second))
			if err != nil {
				t.Fatal(err)
			}
			f, _ := telemetry.ParseField(c.field)
			r := &s.Readings[f]
			got := say(f, r)
			switch {
			case r.Recorded == telemetry.Missing:
				_, got, _ = strings.Cut(got, ", ")
			case c.want == "invalid":
				// The wording is open.
				got = r.Recorded.String()
			case r.Recorded == telemetry.Fresh && f.Kind() == telemetry.Text:
				got = "text " + r.Detail.Text
			case r.Recorded == telemetry.Fresh && f.Kind() == telemetry.Names:
				got = "names " + strings.Join(r.Detail.Names, ",")
			}
			if got != c.want {
				t.Errorf("%s is %s, want %s", c.field, got, c.want)
			}
			if src := r.Detail.Source; src == nil || src.Path != "/info" {
				t.Errorf("source %+v, want one on /info", src)
			}
			if r.Recorded == telemetry.Fresh && (r.ObservedAt != 50*second || r.ExpiresAt != 70*second || r.Provenance != telemetry.Measured) {
				t.Errorf("observed at %v, expires at %v, %v", r.ObservedAt, r.ExpiresAt, r.Provenance)
			}
		})
	}
}

func TestABadMemberSpoilsItsFieldAlone(t *testing.T) {
	p, page := jsonPage(t, "engineVersion: {member: version}, maxConcurrency: {member: max}, prefixCacheEnabled: {member: on}")
	bodies := map[string]string{
		"engineVersion":      `{"version":[],"max":8,"on":true}`,
		"maxConcurrency":     `{"version":"1","max":{},"on":true}`,
		"prefixCacheEnabled": `{"version":"1","max":8,"on":"yes"}`,
	}
	for bad, body := range bodies {
		s, err := p.ReadSlow(page, 200, []byte(body), second, time.Second, p.Silent(second))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range page.Reads() {
			want := telemetry.Fresh
			if f.String() == bad {
				want = telemetry.Invalid
			}
			if got := s.Readings[f].Recorded; got != want {
				t.Errorf("with a bad %s, %s is %v, want %v", bad, f, got, want)
			}
		}
	}
}

// TestSecretsOfAnInfoPageAreNotKept: the page of SGLang's arguments has its API
// key.
func TestSecretsOfAnInfoPageAreNotKept(t *testing.T) {
	p := defaults(t).Profile("sglang")
	i := slices.IndexFunc(p.SlowPages(), func(page Page) bool { return page.Path == "/server_info" })
	page := p.SlowPages()[i]
	for _, body := range []string{
		`{"version":"0.5.23","api_key":"hunter2","disable_radix_cache":false}`,
		`{"version":"0.5.23","api_key":"hunter2","disable_radix_cache":"hunter2"}`,
	} {
		s, err := p.ReadSlow(page, 200, []byte(body), second, 0, p.Silent(second))
		if err != nil {
			t.Fatal(err)
		}
		if all := sayAll(s); strings.Contains(all, "hunter2") {
			t.Errorf("the key is in the readings:\n%s", all)
		}
	}
	if _, err := p.ReadSlow(page, 200, []byte(`{"api_key":"hunter2",`), second, 0, p.Silent(second)); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an answer that was cut: %v", err)
	}
}
