package policy

import (
	"errors"
	"strings"
	"testing"
)

func TestAFlatKeyThatNoReplicaCouldMeetIsRefusedWithTheNearest(t *testing.T) {
	for _, c := range []struct{ key, want string }{
		{"logicalModel", ""},
		{"requirement.residency.berth.dev/residency", ""},
		{"requirement.placement.berth.dev/pool", ""},
		{"requirement.capability.berth.dev/served-models", ""},
		{"requirement.placement.berth.dev/metrics-port", ""},
		{"requirement.placement.team", ""},
		{"requirement.placement.example.com/residncy", ""},
		{"requirement.residency.berth.dev/residncy", "berth.dev/zone; the nearest is requirement.residency.berth.dev/residency"},
		{"requirement.authorization.berth.dev/tenant", "; the nearest is requirement.authorization.berth.dev/tenants"},
		{"requirement.authorization.berth.dev/", "must be a requirement on an attribute that replicas can have; of berth.dev these are berth.dev/capabilities, "},
		{"requirement.placement.berth.dev/Zone", "; the nearest is requirement.placement.berth.dev/zone"},
		{"logicalModl", "; the nearest is logicalModel"},
		{"sessionkey", "; the nearest is sessionKey"},
		{"requirement.residncy.berth.dev/residency", "; the nearest is requirement.residency.berth.dev/residency"},
		{"", "must be logicalModel, "},
		{"intent", "must be logicalModel, "},
	} {
		err := FlatKey(c.key)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.key, err, c.want)
		}
	}
}

func TestAKeyThatIsTooLongHasNoNearest(t *testing.T) {
	err := FlatKey("requirement.safety." + strings.Repeat("k", 318))
	if err == nil || err.Error() != "has 318 bytes; allowed are 1 to 317" {
		t.Errorf("%v", err)
	}
}

func TestMetadataHasAWholeIntentToo(t *testing.T) {
	if err := MetadataKey("intent"); err != nil {
		t.Error(err)
	}
	for key, want := range map[string]string{"Intent": "intent", "intents": "intent", "tenant": "intent", "requirement.safety.berth.dev/safe": "requirement.safety.berth.dev/safety"} {
		var wrong *KeyError
		if err := MetadataKey(key); !errors.As(err, &wrong) || wrong.Nearest != want {
			t.Errorf("%s: %v; want the nearest %s", key, err, want)
		}
	}
}

func TestTheNearestNameTakesTheFewestChanges(t *testing.T) {
	for _, c := range []struct {
		word, want string
		candidates []string
	}{
		{"tenant", "tenants", []string{"tier", "tenants"}},
		{"TIER", "tier", []string{"tie", "tier"}},
		{"ab", "ba", []string{"ba", "abcd"}},
		{"x", "a", []string{"a", "b"}},
		{strings.Repeat("a", 1<<20), "aa", []string{"b", "aa"}},
	} {
		if got := nearest(c.word, c.candidates); got != c.want {
			t.Errorf("nearest to %.20q is %q; want %q", c.word, got, c.want)
		}
	}
}
