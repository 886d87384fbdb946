package main

import (
	"fmt"
	"io"

	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

// printManifest states what is measured, as a published result must.
func printManifest(chosen []check, n size, w io.Writer) error {
	for _, c := range chosen {
		cfg := c.configuration(n)
		p, _, err := policy.Parse(c.name, []byte(cfg.String()), ".", plugins.Catalog{})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "manifest configuration %s: policy %s (telemetry %s, %d endpoints, limits %s)\n",
			c.name, p.Digest, cfg.telemetry, cfg.endpoints, cfg.limits)
		fmt.Fprintf(w, "manifest trafficShape %s: %s\n", c.name, c.what)
	}
	fmt.Fprintln(w, "manifest servedIDs "+model+" and any other: the endpoints state no models")
	fmt.Fprintln(w, "manifest cacheState no engine runs, so no KV cache is warm or cold")
	return nil
}
