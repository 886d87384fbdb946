package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// again is what is logged when the configuration in force is what the file says again.
const again = "configuration is good again"

// mended breaks the configuration and mends it to what it was, and says whether that
// was told as it should be: once, and with the digest in force.
func (r *running) mended(what string, broken, mend func()) {
	r.t.Helper()
	was, told := r.digest(), r.log.FilterMessageSnippet(again).Len()
	ok, failed := r.reloads("ok"), r.reloads("failed")
	broken()
	eventually(r.t, what+": the fault is counted", func() bool { return r.reloads("failed") > failed })
	mend()
	eventually(r.t, what+": what was mended is counted", func() bool { return r.reloads("ok") == ok+1 })
	logged := r.log.FilterMessageSnippet(again).All()
	if len(logged) != told+1 || logged[told].ContextMap()["policy"] != was || r.digest() != was {
		r.t.Errorf("%s: logged %v, want %q once more, for %s", what, logged, again, was)
	}
}

func TestAFaultThatIsMendedToWhatIsInForceIsToldOnce(t *testing.T) {
	port, profiles := mine(t), t.TempDir()
	profile := filepath.Join(profiles, "mine.yaml")
	write(t, profile, mineText("mine_waiting"))
	settings := "telemetry: {profiles: " + profiles + ", " + oftenRead + "}\n"
	r := run(t, settings, minePool(port, "my-engine"))

	r.mended("a profile",
		func() { write(t, profile, mineText("[mine_waiting")) },
		func() { write(t, profile, mineText("mine_waiting")) })
	r.mended("the configuration",
		func() { r.configure(settings + "limits: {body: lots}\n") },
		func() { r.configure(settings) })
	r.mended("a directory of profiles",
		func() {
			if err := os.Rename(profiles, profiles+"-gone"); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if err := os.Rename(profiles+"-gone", profiles); err != nil {
				t.Fatal(err)
			}
		})
	config, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	r.mended("a pool file that is not there",
		func() {
			write(t, r.config, pickerDocument+berthDocument("discovery: {file: never.yaml}\n"+settings))
		},
		func() { write(t, r.config, string(config)) })
	if p := r.reloadAwaited(); p != nil {
		t.Errorf("%s is put into force, which the file does not say any more", p.Digest)
	}

	// What was not broken is not mended: a comment is nothing to tell of.
	ok := r.reloads("ok")
	write(t, r.config, string(config)+"# a comment\n")
	r.configure(settings + "limits: {body: 1KiB}\n")
	eventually(t, "the next configuration is in force", func() bool { return r.reloads("ok") > ok })
	if n := r.log.FilterMessageSnippet(again).Len(); n != 4 {
		t.Errorf("told %d times that it is good again, want 4", n)
	}
}

func TestAConfigurationThatWaitsIsDroppedForOneThatIsRefused(t *testing.T) {
	r := run(t, quiet, poolDocument("19101"))
	later := filepath.Join(filepath.Dir(r.config), "later.yaml")
	write(t, r.config, pickerDocument+berthDocument("discovery: {file: later.yaml}\n"+quiet))
	refused := func(n int) func() bool {
		return func() bool { return r.log.FilterMessageSnippet("last good one").Len() == n }
	}
	eventually(t, "the missing file is told", refused(1))
	r.configure(quiet + "limits: {body: lots}\n")
	eventually(t, "the broken file is told", refused(2))
	write(t, later, poolDocument("19102"))
	if p := r.reloadAwaited(); p != nil {
		t.Errorf("%s is put into force, which the file does not say any more", p.Digest)
	}
}

func TestTheIDsOfRotatedKeysAreLogged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.json")
	other := signer{"kept\" \u00e9"}
	write(t, file, keySet(signer{"older"}, other))
	r := run(t, quiet+fmt.Sprintf("intent: {signedHeader: {keySet: %q, audience: berth}}\n", file), servingPool())

	for i, c := range []struct {
		keys                     string
		added, removed, replaced []string
	}{
		{keySet(signer{"newer"}, other), []string{"newer"}, []string{"older"}, nil},
		{keySet(other, signer{"newer"}, signer{"a"}), []string{"a"}, nil, nil},
		{keySet(other), nil, []string{"a", "newer"}, nil},
		{replacedKey(other, signer{"somebody else"}), nil, nil, []string{other.kid}},
	} {
		write(t, file, c.keys)
		var logged map[string]any
		eventually(t, "the change is logged", func() bool {
			all := r.log.FilterMessageSnippet("keys of signed intents changed").All()
			if len(all) == i+1 {
				logged = all[i].ContextMap()
			}
			return logged != nil
		})
		for name, want := range map[string][]string{"added": c.added, "removed": c.removed, "replaced": c.replaced} {
			got := []string{}
			for _, id := range logged[name].([]any) {
				got = append(got, id.(string))
			}
			if !slices.Equal(got, want) {
				t.Errorf("change %d: %s %q, want %q", i, name, got, want)
			}
		}
		if logged["policy"] != r.digest() || logged["keySet"] != file {
			t.Errorf("change %d: logged as %v", i, logged)
		}
	}

	write(t, file, "{")
	var refused map[string]any
	eventually(t, "the refusal is logged", func() bool {
		if all := r.log.FilterMessageSnippet("last good one").All(); len(all) == 1 {
			refused = all[0].ContextMap()
		}
		return refused != nil
	})
	if got := fmt.Sprint(refused["keys"]); got != fmt.Sprint([]string{other.kid}) {
		t.Errorf("the keys that stay in force are logged as %s", got)
	}
}

// replacedKey is a key set in which one signer's name stands for the key of another.
func replacedKey(name, key signer) string {
	return strings.Replace(keySet(key), strconv.Quote(key.kid), strconv.Quote(name.kid), 1)
}
