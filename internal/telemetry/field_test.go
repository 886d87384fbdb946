package telemetry

import "testing"

// contract is the observation catalogue as the wire contract lists it.
var contract = map[string]struct {
	unit string
	kind Kind
}{
	"health":               {"", Bool},
	"ready":                {"", Bool},
	"sleeping":             {"", Bool},
	"queueDepth":           {"requests", Number},
	"activeRequests":       {"requests", Number},
	"maxConcurrency":       {"requests", Number},
	"kvCacheUtilization":   {"util", Number},
	"kvCacheCapacity":      {"tokens", Number},
	"kvBlockSize":          {"tokens", Number},
	"prefixCacheEnabled":   {"", Bool},
	"prefixCacheHitRatio":  {"util", Number},
	"adaptersLoaded":       {"", Names},
	"adaptersWaiting":      {"", Names},
	"adaptersMax":          {"count", Number},
	"ttft":                 {"seconds", Dist},
	"itl":                  {"seconds", Dist},
	"tpot":                 {"seconds", Dist},
	"e2e":                  {"seconds", Dist},
	"queueTime":            {"seconds", Dist},
	"promptThroughput":     {"tokens/s", Number},
	"generationThroughput": {"tokens/s", Number},
	"preemptionRate":       {"1/s", Number},
	"gpuUtilization":       {"util", Number},
	"memoryPressure":       {"util", Number},
	"power":                {"W", Number},
	"energyPerToken":       {"J/token", Number},
	"contextLimit":         {"tokens", Number},
	"servedModels":         {"", Names},
	"engineVersion":        {"", Text},
	"processStart":         {"time", Time},
}

func TestTheCatalogueIsTheContractAndNothingElse(t *testing.T) {
	if int(NumFields) != len(contract) {
		t.Errorf("catalogue has %d fields, the contract %d", NumFields, len(contract))
	}
	for f := range NumFields {
		want, ok := contract[f.String()]
		switch {
		case !ok:
			t.Errorf("field %d is named %q, which the contract does not list", f, f)
		case f.Unit() != want.unit:
			t.Errorf("%s: unit %q, want %q", f, f.Unit(), want.unit)
		case f.Kind() != want.kind:
			t.Errorf("%s: kind %d, want %d", f, f.Kind(), want.kind)
		}
	}
}

func TestEveryRatioIsBoundedByOneAndNothingElseIs(t *testing.T) {
	for f := range NumFields {
		if f.Kind() != Number {
			continue
		}
		if ratio := f.Unit() == "util"; f.Possible(1.5) == ratio {
			t.Errorf("%s [%s]: Possible(1.5) = %v", f, f.Unit(), f.Possible(1.5))
		}
	}
}

func TestParseFieldFindsEveryFieldByItsName(t *testing.T) {
	for f := range NumFields {
		if got, ok := ParseField(f.String()); !ok || got != f {
			t.Errorf("ParseField(%q) = %s, %v", f.String(), got, ok)
		}
	}
}

func TestParseFieldTakesNoOtherName(t *testing.T) {
	for _, name := range []string{"", "QueueDepth", "queuedepth", " queueDepth", "queueDepth ", "queue_depth", "vllm:num_requests_waiting", NumFields.String()} {
		if got, ok := ParseField(name); ok {
			t.Errorf("ParseField(%q) = %s, want none", name, got)
		}
	}
}

func TestNamesOfStatesSupportAndProvenance(t *testing.T) {
	for _, tc := range []struct {
		got  interface{ String() string }
		want string
	}{
		{Missing, "missing"}, {Fresh, "fresh"}, {Stale, "stale"}, {Invalid, "invalid"},
		{SupportUnknown, "unknown"}, {Supported, "supported"}, {Unsupported, "unsupported"}, {Disabled, "disabled"},
		{NoProvenance, ""}, {Measured, "measured"}, {Modeled, "modeled"}, {Inferred, "inferred"}, {Declared, "declared"},
	} {
		if tc.got.String() != tc.want {
			t.Errorf("%T %d is named %q, want %q", tc.got, tc.got, tc.got, tc.want)
		}
	}
}
