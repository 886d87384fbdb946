package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

// subject is what a published result must say of one budget: a line each, and
// none of them empty. What engines have cached is the same for all of them.
type subject struct {
	// configuration is what decides how the product does what is measured, by the
	// digests that it reports itself.
	configuration string
	// served are the ids that replicas serve and requests name.
	served string
	// traffic is what the product is given while it is measured.
	traffic string
}

// printManifest states what is measured, in the lines that hack/results reads.
func printManifest(chosen []budget, w io.Writer) error {
	for _, b := range chosen {
		about, err := b.subject()
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		fmt.Fprintf(w, "manifest configuration %s: %s\n", b.name, about.configuration)
		fmt.Fprintf(w, "manifest servedIDs %s: %s\n", b.name, about.served)
		fmt.Fprintf(w, "manifest trafficShape %s: %s\n", b.name, about.traffic)
	}
	fmt.Fprintln(w, "manifest cacheState no engine runs, so no KV cache is warm or cold; what decisions know of caches is a reading that is given or absent")
	return nil
}

// pickers tells the policies of the pickers that are measured beside each other.
func pickers(setups ...setup) (string, error) {
	var list []string
	for _, c := range setups {
		p, _, err := policy.Parse("budgets", []byte(c.config()), ".", plugins.Catalog{})
		if err != nil {
			return "", err
		}
		list = append(list, fmt.Sprintf("policy %s (telemetry %s, %d endpoints, records with up to %d candidates, %d of them kept)",
			p.Digest, p.Telemetry.Mode, c.endpoints, c.candidates, c.ring))
	}
	return strings.Join(list, ", beside "), nil
}

// pageSubject is that of what reads the golden pages of vLLM.
func pageSubject(traffic string) (subject, error) {
	profiles, err := engine.Defaults()
	if err != nil {
		return subject{}, err
	}
	return subject{
		configuration: "no policy; engine profile " + profiles.Profile("vllm").Digest(),
		served:        "meta-llama/Llama-3.1-8B-Instruct, as the pages say",
		traffic:       traffic,
	}, nil
}
