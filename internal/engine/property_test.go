package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/telemetry"
)

// TestWhatIsNotThereHasNoValue: unknown is never zero. A source of which a family
// is off the page, or there in HELP and TYPE alone, gives nothing.
func TestWhatIsNotThereHasNoValue(t *testing.T) {
	pages := enginePages(t)
	rapid.Check(t, func(t *rapid.T) {
		c := pages[rapid.IntRange(0, len(pages)-1).Draw(t, "page")]
		p := c.profile
		family := rapid.IntRange(0, len(p.families)-1).Draw(t, "family")
		declared := rapid.Bool().Draw(t, "declared")
		lines := withoutFamily(p, family, c.page)
		if declared {
			lines = append(lines, "# TYPE "+p.families[family].name+" untyped\n")
		}
		lines = append(lines, "\n")
		before, after := c.mustRead(t, c.page), c.read(strings.Join(lines, ""))
		for i := range after {
			if after[i] == nil {
				continue // the family was all by which the engine is known
			}
			for j := range p.rules {
				r := &p.rules[j]
				had, has := &before[i].Readings[r.field], &after[i].Readings[r.field]
				switch src := sourceOf(r, has); {
				case !r.names(p, family):
					if everything(r.field, had) != everything(r.field, has) {
						t.Errorf("%s, which does not name %s:\n got  %s\n want %s", r.field, p.families[family].name, everything(r.field, has), everything(r.field, had))
					}
				case has.Recorded == telemetry.Fresh && src.needs(family):
					t.Errorf("%s has a value without %s: %s", r.field, p.families[family].name, everything(r.field, has))
				}
			}
		}
	})
}

// TestTheFirstPageGivesNoValueOfWhatCounts, whatever is on it.
func TestTheFirstPageGivesNoValueOfWhatCounts(t *testing.T) {
	set := defaults(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawEngine(t, set)
		s, err := p.Read([]byte(drawPage(t, p)), Input{At: scriptBegins, History: &History{}, Previous: p.Silent(scriptBegins - 1)})
		if err != nil {
			return
		}
		for i := range p.rules {
			r := &p.rules[i]
			if got := &s.Readings[r.field]; got.Recorded == telemetry.Fresh && sourceOf(r, got).window > 0 {
				t.Errorf("%s: %s", r.field, everything(r.field, got))
			}
		}
	})
}

// TestABadFamilySpoilsItsFieldsAlone: whatever stands in the place of a family's
// lines, and wherever on the page.
func TestABadFamilySpoilsItsFieldsAlone(t *testing.T) {
	pages := enginePages(t)
	rapid.Check(t, func(t *rapid.T) {
		c := pages[rapid.IntRange(0, len(pages)-1).Draw(t, "page")]
		p := c.profile
		family := rapid.IntRange(0, len(p.families)-1).Draw(t, "family")
		if p.valid != nil && p.valid.family == family || p.clock != nil && p.clock.family == family {
			return // these speak for every field
		}
		name := p.families[family].name
		bad := rapid.SampledFrom([]string{
			"F NaN", "F -nan", "F -1", "F +Inf", "F -Inf", "F 1e999", "F 1e300", "F x", "F", "F ", "F{", "F{a=\"", "F{a=\"b\"", "F{a=\"b\"}", "F{a=b} 1",
			"F{a=\"1\",a=\"2\"} 1", "F 1\nF 2", "F{a=\"1\"} 1\nF{a=\"1\"} 2", "F 1 2 3", "F 0x1", "F 0x1p1", "F{a=\"\xff\"} 1", "F{=} 1", "F}{ 1", "F\"{ 1",
		}).Draw(t, "bad")
		bad = strings.ReplaceAll(bad, "F", name) + "\n"
		rest := withoutFamily(p, family, c.page)
		// A line without the whole name is not the family's. Some families are all by
		// which the page is known.
		if _, err := p.Read([]byte(bad+strings.Join(rest, "")), Input{At: c.at}); errors.Is(err, ErrNoEngineFamilies) {
			if c.read(strings.Join(rest, ""))[0] != nil {
				t.Errorf("%q: %v", bad, err)
			}
			return
		}
		read := func(at int) []*telemetry.Snapshot {
			return c.mustRead(t, strings.Join(slices.Insert(slices.Clone(rest), at, bad), ""))
		}
		first := read(0)
		at := rapid.IntRange(0, len(rest)).Draw(t, "at")
		middle, last, whole := read(at), read(len(rest)), c.mustRead(t, c.page)
		for i := range first {
			checkPossible(t, first[i])
			for f := range telemetry.NumFields {
				got := everything(f, &first[i].Readings[f])
				if a, b := everything(f, &middle[i].Readings[f]), everything(f, &last[i].Readings[f]); got != a || got != b {
					t.Errorf("%s depends on where %q stands:\n%s\n%s\n%s", f, bad, got, a, b)
				}
				j := slices.IndexFunc(p.rules, func(r rule) bool { return r.field == f })
				if j >= 0 && p.rules[j].names(p, family) {
					continue
				}
				if want := everything(f, &whole[i].Readings[f]); got != want {
					t.Errorf("%s, which does not name %s, with %q:\n got  %s\n want %s", f, name, bad, got, want)
				}
			}
		}
	})
}

// TestALineThatDoesNotParseSpoilsWhatIsReadOfItsFamily, though other lines of it do:
// nobody knows what it would have said.
func TestALineThatDoesNotParseSpoilsWhatIsReadOfItsFamily(t *testing.T) {
	pages := enginePages(t)
	rapid.Check(t, func(t *rapid.T) {
		c := pages[rapid.IntRange(0, len(pages)-1).Draw(t, "page")]
		p := c.profile
		family := rapid.IntRange(0, len(p.families)-1).Draw(t, "family")
		bad := rapid.SampledFrom([]string{
			"F x", "F", "F ", "F{", "F{a=\"", "F{a=\"b\"", "F{a=\"b\"}", "F{a=b} 1", "F{a=\"1\",a=\"2\"} 1", "F 1 2 3", "F 0x1p1", "F 1_0", "F{=} 1", "F 1 x",
		}).Draw(t, "bad")
		all := lines(c.page)
		at := rapid.IntRange(0, len(all)).Draw(t, "at")
		page := strings.Join(slices.Insert(all, at, strings.ReplaceAll(bad, "F", p.families[family].name)+"\n"), "")
		for i, s := range c.mustRead(t, page) {
			for j := range p.rules {
				r := &p.rules[j]
				if has := &s.Readings[r.field]; has.Recorded == telemetry.Fresh && sourceOf(r, has).needs(family) {
					t.Errorf("page %d: %s is read beside %q of %s: %s", i, r.field, bad, p.families[family].name, everything(r.field, has))
				}
			}
		}
	})
}

// TestTheFormOfAnyPageDoesNotMatter: order of lines, ends of lines, spelling of
// names. Good pages and bad ones, alone and one after the other.
func TestTheFormOfAnyPageDoesNotMatter(t *testing.T) {
	set := defaults(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawEngine(t, set)
		models := rapid.SampledFrom([][]string{nil, {"a"}, {"a", "b"}}).Draw(t, "models")
		seed := rapid.Uint64().Draw(t, "seed")
		change := rapid.SampledFrom([]func(string) string{
			func(page string) string { return shuffled(seed)(page) },
			func(page string) string { return shuffled(seed)(page) },
			func(page string) string { return strings.ReplaceAll(page, "\n", "\r\n") },
			func(page string) string { return withoutColons(page, true) },
			func(page string) string { return shuffled(seed)(withSpellings(page, seed)) },
			func(page string) string { return strings.ReplaceAll(page, "\n", " \n") },
			func(page string) string { return strings.ReplaceAll(page, "} ", "}\t ") },
			func(page string) string { return "\n\n" + strings.ReplaceAll(page, "\n", "\n# a comment\n\n") },
		}).Draw(t, "change")
		var plain, changed *telemetry.Snapshot
		h, g := &History{}, &History{}
		for i := range 3 {
			page := drawPage(t, p)
			at := scriptBegins.Add(time.Duration(i) * 30 * time.Second)
			s, err := p.Read([]byte(page), Input{At: at, Models: models, Previous: plain, History: h})
			c, fault := p.Read([]byte(change(page)), Input{At: at, Models: models, Previous: changed, History: g})
			if fmt.Sprint(err) != fmt.Sprint(fault) {
				t.Fatalf("page %d: %v, and in another form %v\n%s", i, err, fault, page)
			}
			if err != nil {
				continue
			}
			checkPossible(t, s)
			if s.Incarnation != c.Incarnation {
				t.Errorf("page %d: incarnation %d, and in another form %d", i, s.Incarnation, c.Incarnation)
			}
			for f := range telemetry.NumFields {
				if got, want := value(f, &c.Readings[f]), value(f, &s.Readings[f]); got != want {
					t.Errorf("page %d: %s\n got  %s\n want %s\nof\n%s\n%s", i, f, got, want, page, change(page))
				}
			}
			plain, changed = s, c
		}
	})
}

// TestSamplesOfAnyPageAreThoseOfTheParserOfPrometheusCommon, where it reads the
// page at all.
func TestSamplesOfAnyPageAreThoseOfTheParserOfPrometheusCommon(t *testing.T) {
	set := defaults(t)
	plain := map[*Profile]*Profile{}
	for _, p := range set.Profiles() {
		plain[p] = asScanned(t, p)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom(set.Profiles()).Draw(t, "profile")
		page := []byte(withSpellings(drawPage(t, p), rapid.Uint64().Draw(t, "spellings")))
		compareWithCommon(t, plain[p], page, parsedByCommon(page))
	})
}

// TestReadDoesNotChangeWhatItIsGiven: snapshots are shared as soon as they are
// published.
func TestReadDoesNotChangeWhatItIsGiven(t *testing.T) {
	set := defaults(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawEngine(t, set)
		h := &History{}
		var all []*telemetry.Snapshot
		var was []string
		at := scriptBegins
		traffic := rapid.SampledFrom([]Traffic{{}, {BusySince: at}, {IdleSince: at}}).Draw(t, "traffic")
		page := drawPage(t, p)
		for range 4 {
			if rapid.Bool().Draw(t, "another page") {
				page = drawPage(t, p)
			}
			at = at.Add(rapid.SampledFrom([]time.Duration{200 * time.Millisecond, time.Second, 30 * time.Second, 5 * time.Minute}).Draw(t, "after"))
			in := Input{At: at, History: h, Traffic: traffic}
			if len(all) > 0 {
				in.Previous = all[len(all)-1]
			}
			original := page
			s, err := p.Read([]byte(page), in)
			if page != original {
				t.Fatal("the page was written to")
			}
			for i, before := range all {
				if got := sayEverything(before); got != was[i] {
					t.Errorf("a snapshot before was changed:\n%s\nwas\n%s", got, was[i])
				}
			}
			if err != nil {
				continue
			}
			all, was = append(all, s), append(was, sayEverything(s))
		}
	})
}

func drawEngine(t *rapid.T, set *Set) *Profile {
	var names []string
	for _, p := range set.Engines() {
		names = append(names, p.Name())
	}
	return set.Profile(rapid.SampledFrom(names).Draw(t, "engine"))
}

// enginePage is a page of testdata with the profile that recognises it.
type enginePage struct {
	profile *Profile
	page    string
	// at is just after the time that the page states.
	at telemetry.Instant
}

func enginePages(t testing.TB) (pages []enginePage) {
	t.Helper()
	set := defaults(t)
	paths, err := filepath.Glob("testdata/*.prom")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		page := load(t, filepath.Base(path))
		if p, err := set.Detect(page); err == nil {
			c := enginePage{p, string(page), laterThanEveryPage}
			for _, r := range c.read(string(page))[0].Readings {
				if r.Detail.EngineTime != 0 {
					c.at = r.Detail.EngineTime.Add(time.Second)
				}
			}
			pages = append(pages, c)
		}
	}
	if len(pages) == 0 {
		t.Fatal("no pages")
	}
	return pages
}

// read reads a page as the first of an endpoint and again 20 s later; nil where it
// is refused.
func (c enginePage) read(page string) []*telemetry.Snapshot {
	h := &History{}
	first, err := c.profile.Read([]byte(page), Input{At: c.at, History: h})
	if err != nil {
		return make([]*telemetry.Snapshot, 2)
	}
	second, err := c.profile.Read([]byte(page), Input{At: c.at.Add(20 * time.Second), Previous: first, History: h})
	if err != nil {
		return []*telemetry.Snapshot{first, nil}
	}
	return []*telemetry.Snapshot{first, second}
}

func (c enginePage) mustRead(t *rapid.T, page string) []*telemetry.Snapshot {
	both := c.read(page)
	if both[0] == nil || both[1] == nil {
		t.Fatalf("the page is refused:\n%s", page)
	}
	return both
}

// withoutFamily is a page without the lines of one family of the profile, in
// either spelling.
func withoutFamily(p *Profile, family int, page string) []string {
	return slices.DeleteFunc(lines(page), func(line string) bool {
		words := strings.Fields(line)
		name := sampleName(line)
		if isComment(line) && len(words) > 2 {
			name = words[2]
		}
		n, ok := p.names[name]
		return ok && n.family == family
	})
}

// sourceOf is the source that a reading is from.
func sourceOf(r *rule, got *telemetry.Reading) *source {
	for i := range r.sources {
		s := &r.sources[i]
		if got.Detail != nil && (got.Detail.Source == s.detail.Source || s.byHead != nil && got.Detail.Source == s.byHead.Source) {
			return s
		}
	}
	return nil
}

// needs reports that a source cannot do without a family.
func (s *source) needs(family int) bool {
	return s != nil && slices.ContainsFunc(s.parts(), func(part *series) bool { return part.family == family })
}

// names reports that anything of a rule is read from a family.
func (r *rule) names(p *Profile, family int) bool {
	for i := range r.sources {
		s := &r.sources[i]
		if s.needs(family) || s.weight != nil && s.weight.family == family ||
			slices.ContainsFunc(s.plus, func(part series) bool { return part.family == family }) {
			return true
		}
	}
	for i := range r.contradicted {
		if slices.ContainsFunc(r.contradicted[i].parts(), func(part *series) bool { return part.family == family }) {
			return true
		}
	}
	return slices.ContainsFunc(r.off, func(c condition) bool { return c.family == family || slices.Contains(c.on, family) }) ||
		p.valid != nil && p.valid.family == family || p.clock != nil && p.clock.family == family
}

// value is all that a reading says but its reasons, of which the first that is
// found is enough.
func value(f telemetry.Field, r *telemetry.Reading) string {
	words := fmt.Sprintf("%s %s %s %v %v %v %v %v", f, r.Support, r.Recorded, r.Value, r.Quality, r.Provenance, r.ObservedAt, r.ExpiresAt)
	d := r.Detail
	if d == nil {
		return words
	}
	words += fmt.Sprintf(" %q %q %v", d.Names, d.Text, d.EngineTime)
	if d.Max != nil {
		words += fmt.Sprintf(" max %v", *d.Max)
	}
	if d.Distribution != nil {
		words += fmt.Sprintf(" %+v", *d.Distribution)
	}
	if d.Source != nil && r.Recorded != telemetry.Missing {
		words += fmt.Sprintf(" %+v", *d.Source)
	}
	return words
}

// everything is all that a reading says.
func everything(f telemetry.Field, r *telemetry.Reading) string {
	if r.Detail == nil {
		return value(f, r)
	}
	return value(f, r) + " " + strings.Join(r.Detail.Reasons, "; ")
}

func sayEverything(s *telemetry.Snapshot) string {
	words := fmt.Sprintf("%s %s %d %v\n", s.Engine, s.Profile, s.Incarnation, s.ScrapedAt)
	for f := range telemetry.NumFields {
		words += everything(f, &s.Readings[f]) + "\n"
	}
	return words
}

// withSpellings spells some lines' names with colons and others' without.
func withSpellings(page string, seed uint64) string {
	random := rand.New(rand.NewPCG(seed, 3))
	all := lines(page)
	for i := range all {
		if random.IntN(2) == 0 {
			all[i] = withoutColons(all[i], true)
		}
	}
	return strings.Join(all, "")
}

// drawPage makes up a page of the profile's families: with some of the labels
// that its rules know, and values that a broken engine may show.
func drawPage(t *rapid.T, p *Profile) string {
	labels := map[string][]string{}
	add := func(label string, values ...string) {
		if label != "" {
			labels[label] = append(labels[label], values...)
		}
	}
	add(p.labels.model, "a", "b")
	for _, list := range [][]string{p.labels.ranks, p.labels.lowest, p.labels.drop} {
		for _, label := range list {
			add(label, "0", "1", "x")
		}
	}
	known := map[int][]*series{}
	note := func(s *series) { known[s.family] = append(known[s.family], s) }
	for i := range p.rules {
		for j := range p.rules[i].sources {
			s := &p.rules[i].sources[j]
			for _, part := range slices.Concat(s.parts(), pointers(s.plus)) {
				note(part)
			}
			if s.weight != nil {
				note(s.weight)
			}
		}
		for j := range p.rules[i].contradicted {
			for _, part := range p.rules[i].contradicted[j].parts() {
				note(part)
			}
		}
		for j := range p.rules[i].off {
			note(&p.rules[i].off[j].series)
		}
	}
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "page"), 1))
	oneOf := func(list ...string) string { return list[random.IntN(len(list))] }
	values := []string{"0", "0", "1", "1", "2", "3", "7", "0.5", "0.25", "1.0005", "1e9", "1e16", "1e308", "NaN", "-nan", "+Inf", "-1", "-2", "x"}
	if random.IntN(2) == 0 {
		values = []string{"0", "1", "2", "3", "0.5", "0.25", "12", "100"}
	}
	names := make([]string, 0, len(labels))
	for name := range labels {
		names = append(names, name)
	}
	slices.Sort(names)
	var page []string
	for family := range p.families {
		for range random.IntN(6) - 2 {
			var l []string
			for _, name := range names {
				if random.IntN(3) == 0 {
					l = append(l, fmt.Sprintf("%s=%q", name, oneOf(labels[name]...)))
				}
			}
			name := p.families[family].name
			if strings.HasSuffix(name, "_bucket") {
				l = append(l, fmt.Sprintf("le=%q", oneOf("-1", "0.5", "1", "+Inf", "x")))
			}
			if parts := known[family]; len(parts) > 0 {
				part := parts[random.IntN(len(parts))]
				for _, w := range part.where {
					if w.value == "" || labels[w.name] != nil {
						continue
					}
					l = append(l, fmt.Sprintf("%s=%q", w.name, strings.Replace(w.value, "*", "0", 1)))
				}
				if part.label != "" && !slices.ContainsFunc(part.where, func(w labelPair) bool { return w.name == part.label }) && labels[part.label] == nil {
					l = append(l, fmt.Sprintf("%s=%q", part.label, oneOf("1", "16", "0", "True", "False", "None", "", "a,b", "x\u0085y")))
				}
			}
			page = append(page, fmt.Sprintf("%s{%s} %s\n", name, strings.Join(l, ","), oneOf(values...)))
		}
	}
	if len(p.detect.prefixes) > 0 {
		page = append(page, p.detect.prefixes[0]+"something 1\n")
	}
	return strings.Join(page, "")
}
