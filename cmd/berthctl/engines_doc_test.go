package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

var update = flag.Bool("update", false, "write what is generated in docs/engines.md anew")

const enginesDoc = "../../docs/engines.md"

// section is what stands between two comments of a document.
func section(t *testing.T, doc, name string) (before, text, after string) {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, found := strings.Cut(doc, begin)
	text, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q and %q", enginesDoc, begin, end)
	}
	return before + begin, text, end + after
}

func TestTheDocumentedEnginesAreTheProfiles(t *testing.T) {
	data, err := os.ReadFile(enginesDoc)
	if err != nil {
		t.Fatal(err)
	}
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for name, want := range map[string]string{"support": supportMatrix(set), "engines": engineSections(set)} {
		before, text, after := section(t, doc, name)
		if *update {
			doc = before + want + after
			continue
		}
		if text != want {
			t.Errorf("%s: what is generated under %q is not what the profiles say; go test ./cmd/berthctl -run DocumentedEngines -update writes it", enginesDoc, name)
		}
	}
	if *update {
		if err := os.WriteFile(enginesDoc, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// supportMatrix has a row for each field and a column for each engine.
func supportMatrix(set *engine.Set) string {
	var b strings.Builder
	b.WriteString("| field | unit |")
	engines := set.Engines()
	var covered [][]engine.Coverage
	for _, p := range engines {
		fmt.Fprintf(&b, " %s |", p.Name())
		covered = append(covered, p.Coverage())
	}
	b.WriteString("\n|---|---|" + strings.Repeat(":-:|", len(engines)) + "\n")
	var notes []string
	for f := range telemetry.NumFields {
		fmt.Fprintf(&b, "| %s | %s |", f, unitOf(f))
		for i := range engines {
			c := &covered[i][f]
			mark := c.Level.Symbol()
			if c.Level == engine.Partial {
				n := slices.Index(notes, c.Reason)
				if n < 0 {
					n = len(notes)
					notes = append(notes, c.Reason)
				}
				mark += fmt.Sprintf(" <sup>%d</sup>", n+1)
			}
			fmt.Fprintf(&b, " %s |", mark)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for i, note := range notes {
		fmt.Fprintf(&b, "%d. %s\n", i+1, note)
	}
	return b.String()
}

func unitOf(f telemetry.Field) string {
	switch {
	case f.Kind() == telemetry.Bool:
		return "yes or no"
	case f.Kind() == telemetry.Names:
		return "names"
	case f.Kind() == telemetry.Text:
		return "text"
	default:
		return f.Unit()
	}
}

func engineSections(set *engine.Set) string {
	var b strings.Builder
	for _, p := range append(set.Engines(), slices.DeleteFunc(set.Profiles(), func(p *engine.Profile) bool { return !p.Exporter() })...) {
		engineSection(&b, p)
	}
	return b.String()
}

func engineSection(b *strings.Builder, p *engine.Profile) {
	role := ""
	if p.Exporter() {
		role = " (exporter)"
	}
	fmt.Fprintf(b, "\n### %s%s\n\n", p.Name(), role)
	if aliases := p.Aliases(); len(aliases) > 0 {
		fmt.Fprintf(b, "- Also called %s.\n", strings.Join(aliases, ", "))
	}
	fmt.Fprintf(b, "- Recognised by %s.\n", p.Recognition())
	fmt.Fprintf(b, "- %s\n", console.Needs(p.Name()))
	if never := p.Forbidden(); len(never) > 0 {
		fmt.Fprintf(b, "- Never asked for, since an answer costs or changes something: `%s`.\n", strings.Join(never, "`, `"))
	}
	metrics := p.Metrics()
	fmt.Fprintf(b, "- Asked for: `%s` at every scrape", console.PageAddress(metrics))
	for _, page := range p.SlowPages() {
		fmt.Fprintf(b, ", `%s` every %s", console.PageAddress(page), seconds(page.Every))
	}
	b.WriteString(".\n\n| field | | where, in order of preference | remarks |\n|---|:-:|---|---|\n")
	for _, c := range p.Coverage() {
		if p.Exporter() && c.Level == engine.None {
			continue
		}
		var where, remarks []string
		reasons := map[string][]string{}
		for i, o := range c.Origins {
			place := "`" + o.Source.Metric + "`"
			if o.Source.Path != metrics.Path {
				place = "`" + o.Source.Path + "` " + place
			}
			where = append(where, place+": "+o.Source.Rule)
			if o.Because != "" {
				reason := fmt.Sprintf("quality %v: %s", round(o.Quality), o.Because)
				if reasons[reason] == nil {
					remarks = append(remarks, reason)
				}
				reasons[reason] = append(reasons[reason], strconv.Itoa(i+1))
			}
		}
		for i, reason := range remarks {
			if n := len(reasons[reason]); n < len(c.Origins) {
				remarks[i] += " (source " + strings.Join(reasons[reason], ", ") + ")"
			}
		}
		if c.Reason != "" && !slices.ContainsFunc(c.Origins, func(o engine.Origin) bool { return o.Because == c.Reason }) {
			remarks = append(remarks, c.Reason)
		}
		for _, off := range c.Off {
			remarks = append(remarks, "disabled where "+off)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.Field, c.Level.Symbol(),
			cell(strings.Join(where, "<br>")), cell(strings.Join(remarks, "<br>")))
	}
}

// seconds is a cadence: 30 s, or 1 min.
func seconds(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// block is a fenced block of a document: "```LANGUAGE NAME".
type block struct{ language, name, text string }

var fence = regexp.MustCompile("(?m)^( *)```(\\S*) ?(.*)\n((?s:.*?))^ *```$")

func blocks(doc string) []block {
	var all []block
	for _, m := range fence.FindAllStringSubmatch(doc, -1) {
		text := m[4]
		if indent := m[1]; indent != "" {
			text = strings.ReplaceAll("\n"+text, "\n"+indent, "\n")[1:]
		}
		all = append(all, block{m[2], m[3], text})
	}
	return all
}

// What the document says of adding an engine is done here to the letter: its
// files are written, its commands are run in its order, and the engine is a
// server that answers the document's pages.
func TestAnEngineIsAddedAsTheDocumentSays(t *testing.T) {
	data, err := os.ReadFile(enginesDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "## Add an engine in ten minutes\n")
	if !found {
		t.Fatal("the document does not say how to add an engine")
	}
	pages := map[string]string{}
	for _, b := range blocks(text) {
		if b.language == "text" {
			pages[b.name] = b.text
		}
	}
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		page := pages["page2.prom"]
		if asked.Add(1) == 1 {
			page = pages["page1.prom"]
		}
		_, _ = io.WriteString(w, page)
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"llama-3.1-8b","object":"model","owned_by":"acme"}]}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	t.Chdir(t.TempDir())
	ran := map[string]string{}
	for _, b := range blocks(text) {
		switch b.language {
		case "text": // what the engine answers
		case "yaml":
			if err := os.MkdirAll(filepath.Dir(b.name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(b.name, []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "console":
			for line := range strings.Lines(b.text) {
				command, isCommand := strings.CutPrefix(strings.TrimSpace(line), "$ ")
				if !isCommand {
					t.Fatalf("%q is no command", line)
				}
				for command := range strings.SplitSeq(command, "; ") {
					name, out := runDocumented(t, strings.ReplaceAll(command, "http://127.0.0.1:8000", server.URL))
					ran[name] = out
				}
			}
		default:
			t.Fatalf("a block of the language %q", b.language)
		}
	}

	// By hand: 6000 tokens in 15 s; 20 first tokens took 4 s, 10 of them up to
	// 100 ms and 10 from 100 to 500 ms: the 18th is at 100+400*8/10, and 99 % are
	// 19.8 of them, at 100+400*9.8/10.
	shows(t, "profiles test", ran["profiles test --page"],
		`engine   acme, read by the profile acme@sha256:`,
		`queueDepth +fresh +5 requests +1 +0s +in 46s +/metrics acme_waiting`,
		`activeRequests +fresh +16 requests `,
		`kvCacheUtilization +fresh +0\.64 util `,
		`generationThroughput +fresh +400 tokens/s `,
		`ttft +fresh +mean 0\.2, p50 0\.1, p90 0\.42, p99 0\.492 seconds, n 20 +1 `,
		`servedModels +fresh +llama-3\.1-8b `,
		`power +missing, unsupported .* not exported by acme`,
		`itl +missing, no source .* the profile does not name it`,
	)
	shows(t, "profiles test --require", ran["profiles test"], `queueDepth +fresh +5 requests `, `servedModels +missing .* read from /v1/models, which is not given`)
	shows(t, "observe", ran["observe"],
		`engine   acme, read by the profile acme@sha256:`,
		`queueDepth +fresh +5 requests `,
		`servedModels +fresh +llama-3\.1-8b `,
		`ttft +missing .* first page: a window needs two`,
	)
	shows(t, "lint", ran["lint"], `berth\.yaml: no findings`)
	if asked.Load() < 3 {
		t.Errorf("the engine's page was asked for %d times, want by curl twice and by observe", asked.Load())
	}
}

func TestTheDocumentedExportersAreAConfiguration(t *testing.T) {
	data, err := os.ReadFile(enginesDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "## GPU exporters\n")
	text, _, _ = strings.Cut(text, "\n## ")
	found := blocks(text)
	if len(found) != 1 || found[0].language != "yaml" {
		t.Fatalf("%d blocks about exporters, want one of YAML", len(found))
	}
	dir := files(t, map[string]string{
		"berth.yaml": pickerDocument + settings("discovery: {file: pool.yaml}\n"+found[0].text), "pool.yaml": poolDocument,
	})
	if out, _, err := execute("lint", filepath.Join(dir, "berth.yaml")); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// runDocumented runs a command of the document and returns its name and output.
func runDocumented(t *testing.T, command string) (name, out string) {
	t.Helper()
	words := strings.Fields(command)
	switch words[0] {
	case "sleep": // as if it had passed: --every stands for it
	case "curl":
		resp, err := http.Get(words[3])
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(words[2], page, 0o600); err != nil {
			t.Fatal(err)
		}
	case "berthctl":
		stdout, _, err := execute(words[1:]...)
		if err != nil {
			t.Fatalf("%s: %v with exit %d\n%s", command, err, exit(err), stdout)
		}
		name = words[1]
		if name == "profiles" {
			name += " " + words[2]
		}
		if slices.Contains(words, "--page") {
			name += " --page"
		}
		return name, stdout
	default:
		t.Fatalf("the document has a command that this test does not know: %s", command)
	}
	return words[0], ""
}

func shows(t *testing.T, name, out string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !regexp.MustCompile(`(?m)^` + line).MatchString(out) {
			t.Errorf("%s does not show %q:\n%s", name, line, out)
		}
	}
}
