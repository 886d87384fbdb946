package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/telemetry"
)

func profilesCommand(out *output) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "profiles",
		Short: "List, show and try engine profiles: how the pages of an engine become readings",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("%q: no such command; there are list, show and test", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&dir, "profiles", "", profilesUsage)
	cmd.AddCommand(profilesListCommand(out, &dir), profilesShowCommand(out, &dir), profilesTestCommand(out, &dir))
	return cmd
}

const profilesUsage = "`DIRECTORY` of profiles (*.yaml) to know besides those that are built in, or instead of those with the same name"

// loadProfiles are the built-in profiles with those of a directory, if one is
// named. Errors begin with the file and the line.
func loadProfiles(dir string) (*engine.Set, error) {
	if dir == "" {
		return engine.Defaults()
	}
	set, err := policy.LoadProfiles(dir)
	if err != nil {
		return nil, usageError{fileError{fmt.Errorf("--profiles: %w", err)}}
	}
	return set, nil
}

// readRegular reads a file of at most limit bytes. Its errors have the path.
func readRegular(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := readBounded(f, limit)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return text, nil
}

func readBounded(r io.Reader, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return text, err
}

// profileOf finds a profile by name or alias; what flag or argument it is from
// is in the error.
func profileOf(set *engine.Set, from, name string) (*engine.Profile, error) {
	if p := set.Profile(name); p != nil {
		return p, nil
	}
	var names []string
	for _, p := range set.Profiles() {
		names = append(append(names, p.Name()), p.Aliases()...)
	}
	slices.Sort(names)
	return nil, usageError{fmt.Errorf("%s: %q: must be one of %s", from, name, strings.Join(names, ", "))}
}

type profileDocument struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases"`
	// Role is engine or exporter.
	Role string `json:"role"`
	// Origin is built-in, own, or replacement: one's own instead of the built-in one.
	Origin string `json:"origin"`
	Digest string `json:"digest"`
	// RecognisedBy says in words by what a page is known to be the engine's.
	RecognisedBy string         `json:"recognisedBy"`
	Pages        []pageDocument `json:"pages"`
	// Never are the paths that must not be asked there.
	Never []string `json:"never,omitempty"`
	// Counts are how many fields there are of each level.
	Counts   map[string]int     `json:"counts"`
	Coverage []coverageDocument `json:"coverage,omitempty"`
}

type pageDocument struct {
	Path   string `json:"path"`
	Format string `json:"format"`
	// Port and Scheme are left out where they are those that requests go to.
	Port   uint16 `json:"port,omitempty"`
	Scheme string `json:"scheme,omitempty"`
	// EverySeconds is left out for the metrics page, which is read all the time.
	EverySeconds float64 `json:"everySeconds,omitempty"`
	TTLSeconds   float64 `json:"ttlSeconds"`
}

type coverageDocument struct {
	Field string `json:"field"`
	Unit  string `json:"unit,omitempty"`
	// Level is direct, partial or none.
	Level   string           `json:"level"`
	Reason  string           `json:"reason,omitempty"`
	Off     []string         `json:"off,omitempty"`
	Sources []originDocument `json:"sources"`
}

type originDocument struct {
	v1alpha1.Source
	Quality float64 `json:"quality"`
	Because string  `json:"because,omitempty"`
}

func describeProfile(p *engine.Profile) profileDocument {
	doc := profileDocument{
		Name: p.Name(), Aliases: append([]string{}, p.Aliases()...), Role: console.Role(p), Origin: string(console.OriginOf(p)), Digest: p.Digest(),
		RecognisedBy: p.Recognition(), Never: p.Forbidden(),
		Counts: map[string]int{"direct": 0, "partial": 0, "none": 0},
	}
	for _, page := range append([]engine.Page{p.Metrics()}, p.SlowPages()...) {
		doc.Pages = append(doc.Pages, pageDocument{
			Path: page.Path, Format: string(page.Format), Port: page.Port, Scheme: page.Scheme,
			EverySeconds: page.Every.Seconds(), TTLSeconds: page.TTL.Seconds(),
		})
	}
	for _, c := range p.Coverage() {
		doc.Counts[c.Level.String()]++
		covered := coverageDocument{
			Field: c.Field.String(), Unit: c.Field.Unit(), Level: c.Level.String(), Reason: c.Reason, Off: c.Off,
			Sources: []originDocument{},
		}
		for _, o := range c.Origins {
			covered.Sources = append(covered.Sources, originDocument{
				Source:  v1alpha1.Source{Path: o.Source.Path, Metric: o.Source.Metric, Rule: o.Source.Rule},
				Quality: round(o.Quality), Because: o.Because,
			})
		}
		doc.Coverage = append(doc.Coverage, covered)
	}
	return doc
}

// round is a quality as its profile writes it.
func round(quality float32) float64 { return float64(int(quality*1000+0.5)) / 1000 }

// unusable are the files that profiles name and that are of no use, each with the
// profile's own file.
func unusable(profiles *engine.Set) (places []string) {
	for _, p := range profiles.Profiles() {
		for _, problem := range collect.CheckAccess(p.Access()) {
			places = append(places, p.File()+": "+problem)
		}
	}
	return places
}

// reportUnusable tells of them, which is no error: a file may come later.
func reportUnusable(w io.Writer, profiles *engine.Set) {
	for _, place := range unusable(profiles) {
		report(w, fileError{errors.New(place)})
	}
}

func profilesListCommand(out *output, dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the engine profiles, and how many fields each can know",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := loadProfiles(*dir)
			if err != nil {
				return err
			}
			doc := struct {
				Version string            `json:"version"`
				Kind    string            `json:"kind"`
				Items   []profileDocument `json:"items"`
			}{Version: v1alpha1.Version, Kind: "EngineProfileList"}
			for _, p := range set.Profiles() {
				item := describeProfile(p)
				item.Coverage = nil
				doc.Items = append(doc.Items, item)
			}
			if err := out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error { return console.Profiles(w, set.Profiles()) }); err != nil {
				return err
			}
			reportUnusable(cmd.ErrOrStderr(), set)
			return nil
		},
	}
}

func profilesShowCommand(out *output, dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Print a profile as it was loaded; with -o json, what it can know of each field",
		Args:  exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := loadProfiles(*dir)
			if err != nil {
				return err
			}
			p, err := profileOf(set, "NAME", args[0])
			if err != nil {
				return err
			}
			doc := struct {
				Version string `json:"version"`
				Kind    string `json:"kind"`
				profileDocument
			}{v1alpha1.Version, "EngineProfileCoverage", describeProfile(p)}
			return out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error {
				_, err := w.Write(p.Text())
				return err
			})
		},
	}
}

func profilesTestCommand(out *output, dir *string) *cobra.Command {
	var (
		trial  trial
		at     string
		models []string
		wide   bool
	)
	cmd := &cobra.Command{
		Use:   "test PAGE...",
		Short: "Read saved metrics pages through a profile, and print what is known after the last",
		Long: "test reads saved metrics pages of one replica in order, as if they had been scraped --every apart, and\n" +
			"prints the observation after the last one. What counts over a window needs two pages that are half of it\n" +
			"apart. - reads a page from standard input. The other pages of the profile, of JSON or of a status, are\n" +
			"given with --page, as they are after the last metrics page.\n\n" +
			"The exit code is 1 where a page is refused, the pages are of two engines, a page is another engine's than\n" +
			"--engine says, an exporter's page does not know the pod, a field is invalid, or one that --require names is\n" +
			"not fresh. A field that is missing is none of these: tell with --require what a page must give.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("PAGE: missing")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := loadProfiles(*dir)
			if err != nil {
				return err
			}
			if trial.every < minEvery || trial.every > maxEvery {
				return usageError{fmt.Errorf("--every: %s: must be from %s to %s", trial.every, minEvery, maxEvery)}
			}
			if trial.at, err = pageTime(at, args[len(args)-1]); err != nil {
				return err
			}
			if slices.Contains(models, "") {
				return usageError{errors.New("--models: an empty name: must be names, joined by commas")}
			}
			trial.models = models
			if err := trial.checkRequired(); err != nil {
				return err
			}
			pages := make([][]byte, len(args))
			for i, name := range args {
				if pages[i], err = readPage(cmd.InOrStdin(), name); err != nil {
					return usageError{err}
				}
			}
			doc, notes, err := trial.read(set, args, pages)
			if err != nil {
				return err
			}
			view := console.View{Wide: wide, Profile: readBy(set, doc)}
			err = out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error { return view.Observation(w, trial.at, doc) })
			if err != nil {
				return err
			}
			reportUnusable(cmd.ErrOrStderr(), set)
			for _, note := range notes {
				report(cmd.ErrOrStderr(), errors.New(note))
			}
			last := args[len(args)-1]
			return errors.Join(faults(last, "--engine says", doc), trial.lacking(last, doc))
		},
	}
	f := cmd.Flags()
	f.StringVar(&trial.engine, "engine", "", "`NAME` of the profile; found out from the page if it is left out")
	f.StringVar(&at, "at", "", "`TIME` at which the last page was taken, as in 2026-01-02T15:04:05Z; that of the file's last change if it is left out")
	f.DurationVar(&trial.every, "every", 15*time.Second, "`TIME` from one page to the next")
	f.StringSliceVar(&models, "models", nil, "`NAMES` that the replica serves its model by, for pages that show several models")
	f.StringVar(&trial.pod, "pod", "", "`NAMESPACE/NAME` of the pod to read from an exporter's page")
	f.StringArrayVar(&trial.others, "page", nil, "`PATH=FILE` of another page of the profile, or PATH=STATUS for what it answers without a page, such as\n"+
		"/v1/models=models.json or /health=503; as often as there are pages")
	f.StringSliceVar(&trial.required, "require", nil, "`FIELDS` that must be fresh, joined by commas")
	f.BoolVar(&wide, "wide", false, wideUsage)
	return cmd
}

const (
	minEvery = time.Second
	maxEvery = time.Hour
)

// stdinName stands for standard input.
const stdinName = "-"

// pageTime is when the last page was taken.
func pageTime(text, name string) (time.Time, error) {
	if text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || at.Unix() <= 0 || at.Year() > 2200 {
			return at, usageError{fmt.Errorf("--at: %q: must be a time from 1970 to 2200 such as 2026-01-02T15:04:05Z", text)}
		}
		return at, nil
	}
	if name != stdinName {
		if info, err := os.Stat(name); err == nil && info.ModTime().Unix() > 0 {
			return info.ModTime(), nil
		}
	}
	return time.Now(), nil
}

// maxSavedPage bounds a saved page, bytes: the largest that telemetry.maxPage may
// allow.
const maxSavedPage = 64 << 20

func readPage(stdin io.Reader, name string) ([]byte, error) {
	if name != stdinName {
		return readRegular(name, maxSavedPage)
	}
	text, err := readBounded(stdin, maxSavedPage)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return text, nil
}

// faults says what of an observation is not as it should be, nil if nothing is;
// name is what it calls the replica or its page, declarer who says another engine.
func faults(name, declarer string, doc *v1alpha1.Observation) error {
	var found []error
	if doc.Declared != "" {
		found = append(found, fmt.Errorf("%s: it is %s, not %s as %s", name, doc.Engine, doc.Declared, declarer))
	}
	var invalid []string
	for f := range telemetry.NumFields {
		if doc.Fields[f.String()].State == v1alpha1.Invalid {
			invalid = append(invalid, f.String())
		}
	}
	if len(invalid) > 0 {
		found = append(found, fmt.Errorf("%s: invalid: %s", name, strings.Join(invalid, ", ")))
	}
	return errors.Join(found...)
}
