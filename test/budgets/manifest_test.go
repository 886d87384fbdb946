package main

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

func TestTheManifestSaysFourThingsOfEveryBudget(t *testing.T) {
	for _, b := range budgets() {
		t.Run(b.name, func(t *testing.T) {
			var out strings.Builder
			if err := printManifest([]budget{b}, &out); err != nil {
				t.Fatal(err)
			}
			var keys []string
			for line := range strings.Lines(out.String()) {
				words := strings.Fields(line)
				keys = append(keys, words[1])
				about := words[2:]
				if words[1] != "cacheState" {
					if about[0] != b.name+":" {
						t.Errorf("%q does not begin with the budget's name", line)
					}
					about = about[1:]
				}
				if words[0] != "manifest" || len(about) == 0 {
					t.Errorf("%q states nothing", line)
				}
			}
			if got := strings.Join(keys, " "); got != "configuration servedIDs trafficShape cacheState" {
				t.Errorf("the manifest has the keys %q", got)
			}
		})
	}
}

func TestOnlyWhatIsMeasuredIsStated(t *testing.T) {
	var out strings.Builder
	if err := printManifest(budgets()[:1], &out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), budgets()[1].name+":") {
		t.Errorf("the manifest of %s alone is\n%s", budgets()[0].name, &out)
	}
}

func TestTheManifestNamesThePoliciesOfTheConfigurationsInUse(t *testing.T) {
	about, err := recordSubject()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []setup{withCandidates, withoutCandidates} {
		p, _, err := policy.Parse("record", []byte(c.config()), t.TempDir(), plugins.Catalog{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(about.configuration, p.Digest) {
			t.Errorf("configuration %q does not name %s", about.configuration, p.Digest)
		}
	}
}
