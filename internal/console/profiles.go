package console

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/berth-dev/berth/internal/engine"
)

// Profiles writes one row for each engine profile: whose it is, where its metrics
// page is, and how many fields it can know.
func Profiles(w io.Writer, profiles []*engine.Profile) error {
	p := &printer{w: w}
	t := tabwriter.NewWriter(p, 2, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NAME\tALIASES\tROLE\tORIGIN\tMETRICS PAGE\t%s\t%s\t%s\tDIGEST\n", engine.Direct.Symbol(), engine.Partial.Symbol(), engine.None.Symbol())
	for _, profile := range profiles {
		var levels [3]int
		for _, c := range profile.Coverage() {
			levels[c.Level]++
		}
		aliases := "-"
		if list := profile.Aliases(); len(list) > 0 {
			aliases = strings.Join(list, ", ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", profile.Name(), aliases, Role(profile), OriginOf(profile), plain(PageAddress(profile.Metrics())),
			levels[engine.Direct], levels[engine.Partial], levels[engine.None], profile.Digest())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	p.line("")
	p.line("Fields: %s the engine says it, %s of low quality or not in every release, %s no source. berthctl profiles show NAME tells which.",
		engine.Direct.Symbol(), engine.Partial.Symbol(), engine.None.Symbol())
	for _, profile := range profiles {
		if OriginOf(profile) == Replacement {
			p.line("%s is read by a profile of your own instead of the built-in one.", profile.Name())
		}
	}
	return p.err
}

// Origin is whose a profile is.
type Origin string

const (
	// BuiltIn: it came with this binary.
	BuiltIn Origin = "built-in"
	// Own: it is its user's, beside the built-in ones.
	Own Origin = "own"
	// Replacement: it is its user's, instead of the built-in one of that name.
	Replacement Origin = "replacement"
)

// OriginOf tells whose a profile is.
func OriginOf(p *engine.Profile) Origin {
	switch digest := builtInDigests()[p.Name()]; digest {
	case "":
		return Own
	case p.Digest():
		return BuiltIn
	default:
		return Replacement
	}
}

// replaces reports that a digest, which begins with the profile's name, is of another
// text than the built-in profile of that name.
func replaces(digest string) bool {
	name, _, _ := strings.Cut(digest, "@")
	own := builtInDigests()[name]
	return own != "" && own != digest
}

// builtInDigests are the digests of the built-in profiles, by name.
var builtInDigests = sync.OnceValue(func() map[string]string {
	digests := map[string]string{}
	set, err := engine.Defaults()
	if err != nil {
		// Whoever reads pages with the profiles reports it.
		return digests
	}
	for _, p := range set.Profiles() {
		digests[p.Name()] = p.Digest()
	}
	return digests
})

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
