package console

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/berth-dev/berth/internal/engine"
)

// Profiles writes one row for each engine profile: where its metrics page is,
// and how many fields it can know.
func Profiles(w io.Writer, profiles []*engine.Profile) error {
	p := &printer{w: w}
	t := tabwriter.NewWriter(p, 2, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NAME\tALIASES\tROLE\tMETRICS PAGE\t%s\t%s\t%s\tDIGEST\n", engine.Direct.Symbol(), engine.Partial.Symbol(), engine.None.Symbol())
	for _, profile := range profiles {
		var levels [3]int
		for _, c := range profile.Coverage() {
			levels[c.Level]++
		}
		aliases := "-"
		if list := profile.Aliases(); len(list) > 0 {
			aliases = strings.Join(list, ", ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", profile.Name(), aliases, Role(profile), plain(PageAddress(profile.Metrics())),
			levels[engine.Direct], levels[engine.Partial], levels[engine.None], profile.Digest())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	p.line("")
	p.line("Fields: %s the engine says it, %s of low quality or not in every release, %s no source. berthctl profiles show NAME tells which.",
		engine.Direct.Symbol(), engine.Partial.Symbol(), engine.None.Symbol())
	return p.err
}

// Role is what kind of page a profile reads: engine or exporter.
func Role(p *engine.Profile) string {
	if p.Exporter() {
		return "exporter"
	}
	return "engine"
}

// PageAddress is where a page is on a replica's own address: port and path, or
// the path alone for the port that serves requests.
func PageAddress(page engine.Page) string {
	address := page.Path
	if page.Port != 0 {
		address = fmt.Sprintf(":%d%s", page.Port, page.Path)
	}
	if page.Scheme == "https" {
		address += " (https)"
	}
	return address
}
