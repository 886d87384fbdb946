package v1alpha1

import (
	"encoding/json"
	"math"
	"testing"
	"time"
)

func TestDurationsAreTextWithAUnit(t *testing.T) {
	for _, c := range []struct {
		text  string
		want  time.Duration
		again string
	}{
		{"200ms", 200 * time.Millisecond, "200ms"},
		{"1000ms", time.Second, "1s"},
		{"1.5s", 1500 * time.Millisecond, "1.5s"},
		{"60s", time.Minute, "1m"},
		{"90s", 90 * time.Second, "1m30s"},
		{"60m", time.Hour, "1h"},
		{"1h0m1s", time.Hour + time.Second, "1h0m1s"},
		{"0s", 0, "0s"},
		{"-1s", -time.Second, "-1s"},
		{"10m", 10 * time.Minute, "10m"},
		{"10s", 10 * time.Second, "10s"},
	} {
		var d Duration
		if err := json.Unmarshal([]byte(`"`+c.text+`"`), &d); err != nil || time.Duration(d) != c.want {
			t.Errorf("%s: got %v, %v; want %v", c.text, d, err, c.want)
		}
		if out, err := json.Marshal(d); err != nil || string(out) != `"`+c.again+`"` {
			t.Errorf("%s: marshals as %s, %v; want %q", c.text, out, err, c.again)
		}
	}
	for _, bad := range []string{`"5"`, `5`, `""`, `"fast"`, `"1 s"`, `"99999999h"`, `true`, `{}`} {
		var d Duration
		if err := json.Unmarshal([]byte(bad), &d); err == nil {
			t.Errorf("%s is accepted as %v", bad, d)
		}
	}
}

func TestBytesAreWholeNumbersWithABinaryUnit(t *testing.T) {
	for _, c := range []struct {
		json  string
		want  Bytes
		again string
	}{
		{`"32MiB"`, 33554432, "32MiB"},
		{`"1024MiB"`, 1073741824, "1GiB"},
		{`"64KiB"`, 65536, "64KiB"},
		{`"1500"`, 1500, "1500"},
		{`1048576`, 1048576, "1MiB"},
		{`0`, 0, "0"},
		{`"0GiB"`, 0, "0"},
		{`9223372036854775807`, math.MaxInt64, "9223372036854775807"},
	} {
		var b Bytes
		if err := json.Unmarshal([]byte(c.json), &b); err != nil || b != c.want {
			t.Errorf("%s: got %d, %v; want %d", c.json, b, err, c.want)
		}
		if out, err := json.Marshal(b); err != nil || string(out) != `"`+c.again+`"` {
			t.Errorf("%s: marshals as %s, %v; want %q", c.json, out, err, c.again)
		}
	}
	for _, bad := range []string{`"1.5MiB"`, `"-1"`, `-1`, `1.5`, `"32 MiB"`, `"32MB"`, `"32Mi"`, `"MiB"`, `""`,
		`"8589934592GiB"`, `9223372036854775808`, `true`, `{}`} {
		var b Bytes
		if err := json.Unmarshal([]byte(bad), &b); err == nil {
			t.Errorf("%s is accepted as %d", bad, b)
		}
	}
}

func TestEachDefaultConfigurationIsItsOwn(t *testing.T) {
	DefaultBerthConfiguration().Trust.Headers["x-tenant"] = "requirement.authorization.berth.dev/tenants"
	if got := DefaultBerthConfiguration().Trust.Headers; len(got) != 1 || got["x-selected-model"] != "logicalModel" {
		t.Errorf("headers %v; want the default mapping alone", got)
	}
}

func TestWhatAFileLeavesOutKeepsItsDefaultAndAnExplicitZeroStays(t *testing.T) {
	c := DefaultBerthConfiguration()
	if err := json.Unmarshal([]byte(`{"limits":{"drain":"0s"},"ledger":{"ring":0},"intent":{"metadata":false,"signedHeader":{"skew":"0s"}},"screening":{"quarantine":{"maxShare":0}}}`), &c); err != nil {
		t.Fatal(err)
	}
	if c.Limits.Drain != 0 || c.Ledger.Ring != 0 {
		t.Errorf("drain %v, ring %d; want the explicit zeros", c.Limits.Drain, c.Ledger.Ring)
	}
	if skew := c.Intent.SignedHeader.Skew; c.Intent.Metadata || skew == nil || *skew != 0 || c.Screening.Quarantine.MaxShare != 0 {
		t.Errorf("metadata %v, skew %v, maxShare %v; want the explicit zeros", c.Intent.Metadata, skew, c.Screening.Quarantine.MaxShare)
	}
	if q := c.Screening.Quarantine; q.Failures != 3 || q.ProbeAfter != Duration(10*time.Second) || c.Intent.UnreadableBody != UnreadableBodyRefuse {
		t.Errorf("quarantine %+v, unreadableBody %q; want the defaults beside the zeros", q, c.Intent.UnreadableBody)
	}
	if c.Limits.Body != 32*MiB || c.Ledger.Candidates != 512 || c.Telemetry.Hot != Duration(200*time.Millisecond) {
		t.Errorf("body %v, candidates %d, hot %v; want the defaults", c.Limits.Body, c.Ledger.Candidates, c.Telemetry.Hot)
	}
}
