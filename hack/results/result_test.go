package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden file")

func valid() *Result {
	held, missed := true, false
	return &Result{
		Manifest: Manifest{
			Schema:  1,
			Name:    "example",
			Command: []string{"go", "run", "./test/budgets", "-run", "^<cycle>$"},
			Date:    time.Date(2026, 11, 29, 20, 31, 7, 0, time.UTC),
			Commit:  "0123456789abcdef0123456789abcdef01234567",
			Build:   Build{Version: "v0.1.0-3-g0123456", Go: "go1.26.8", OS: "linux", Arch: "amd64"},
			Machine: Machine{CPU: "AMD EPYC", Cores: 2, MemoryBytes: 25276063744, Kernel: "6.18.44"},
			Subject: Subject{
				Configuration: []string{"policy sha256:0123456789ab"},
				ServedIDs:     []string{"llama-3.1-8b"},
				CacheState:    []string{"none: no engine runs"},
				TrafficShape:  []string{"8 streams at a time", "100 replicas are read"},
			},
		},
		Figures: []Figure{
			{Name: "cycle/ratio", OK: &held, Measured: "1.21x", Limit: "<=1.25x", About: "median of 5"},
			{Name: "cycle/allocs", OK: &missed, Measured: "unmeasured", Limit: "<=40"},
			{Name: "cycle/cpu", Measured: "31.2us", Limit: "-"},
		},
		ExitCode: 1,
	}
}

func TestAResultIsWrittenAsTheGoldenFileAndReadBack(t *testing.T) {
	const golden = "testdata/example.json"
	text, err := valid().encode()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("it is written as\n%s\nwant\n%s", text, want)
	}
	r, err := decode(want)
	if err != nil {
		t.Fatal(err)
	}
	if f := r.Figures; *f[0].OK != true || *f[1].OK != false || f[2].OK != nil {
		t.Errorf("the verdicts read back are %v, %v, %v, want true, false, none", *f[0].OK, *f[1].OK, f[2].OK)
	}
}

func TestAResultIsRefusedByTheFieldThatIsWrong(t *testing.T) {
	for field, spoil := range map[string]func(*Result){
		"manifest.schema: 2":           func(r *Result) { r.Manifest.Schema = 2 },
		"manifest.name: ":              func(r *Result) { r.Manifest.Name = "" },
		"manifest.command: ":           func(r *Result) { r.Manifest.Command = nil },
		"manifest.date: ":              func(r *Result) { r.Manifest.Date = time.Time{} },
		"manifest.commit: \"0123456\"": func(r *Result) { r.Manifest.Commit = "0123456" },
		"manifest.commit: \"0123456789ABCDEF0123456789ABCDEF01234567\"": func(r *Result) { r.Manifest.Commit = strings.ToUpper(r.Manifest.Commit) },
		"manifest.build.version: ":                                      func(r *Result) { r.Manifest.Build.Version = "" },
		"manifest.build.go: ":                                           func(r *Result) { r.Manifest.Build.Go = "" },
		"manifest.build.os: ":                                           func(r *Result) { r.Manifest.Build.OS = "" },
		"manifest.build.arch: ":                                         func(r *Result) { r.Manifest.Build.Arch = "" },
		"manifest.machine.cpu: ":                                        func(r *Result) { r.Manifest.Machine.CPU = "" },
		"manifest.machine.cores: ":                                      func(r *Result) { r.Manifest.Machine.Cores = 0 },
		"manifest.machine.memoryBytes: ":                                func(r *Result) { r.Manifest.Machine.MemoryBytes = 0 },
		"manifest.machine.kernel: ":                                     func(r *Result) { r.Manifest.Machine.Kernel = "" },
		"manifest.subject.configuration: ":                              func(r *Result) { r.Manifest.Subject.Configuration = nil },
		"manifest.subject.servedIDs: ":                                  func(r *Result) { r.Manifest.Subject.ServedIDs = []string{} },
		"manifest.subject.cacheState: ":                                 func(r *Result) { r.Manifest.Subject.CacheState = nil },
		"manifest.subject.trafficShape[1]: ":                            func(r *Result) { r.Manifest.Subject.TrafficShape[1] = "" },
		"figures: ":                                                     func(r *Result) { r.Figures = nil },
		"figures[1]: ":                                                  func(r *Result) { r.Figures[1].Measured = "" },
		"figures[2].name: \"cycle/ratio\"":                              func(r *Result) { r.Figures[2].Name = "cycle/ratio" },
		"exitCode: -1":                                                  func(r *Result) { r.ExitCode = -1 },
	} {
		t.Run(field, func(t *testing.T) {
			r := valid()
			spoil(r)
			_, err := r.encode()
			if err == nil || !strings.HasPrefix(err.Error(), field) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one finding that begins with %q", err, field)
			}
		})
	}
}

func TestAFileThatIsNotAsWrittenIsRefused(t *testing.T) {
	text, err := valid().encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, old, new, says string }{
		{"an unknown field", `"cores": 2,`, `"cores": 2, "threads": 4,`, "threads"},
		{"a field is missing", "    \"dirty\": false,\n", "", "line 14 "},
		{"a verdict is missing", "      \"ok\": null,\n", "", "line 60 "},
		{"a field is there twice", `"cores": 2,`, `"cores": 1, "cores": 2,`, "line 23 "},
		{"a date of another zone", `"2026-11-29T20:31:07Z"`, `"2026-11-29T20:31:07+01:00"`, "manifest.date"},
		{"another form", `  "exitCode": 1`, `  "exitCode":1`, "line 66 "},
		{"more follows", "\n}\n", "\n}\n{}\n", "more follows"},
		{"an empty line follows", "\n}\n", "\n}\n\n", "line 68 "},
		{"it ends early", "\n}\n", "\n", "EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := bytes.LastIndex(text, []byte(tc.old))
			if i < 0 {
				t.Fatalf("the text has no %q", tc.old)
			}
			spoiled := slices.Concat(text[:i], []byte(tc.new), text[i+len(tc.old):])
			if _, err := decode(spoiled); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one with %q", err, tc.says)
			}
		})
	}
}

// The files that are published are results, and the table lists them, all and
// no other ones.
func TestPublishedResultsAreCompleteAndListed(t *testing.T) {
	dir := filepath.FromSlash("../../docs/results")
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, file := range files {
		there = append(there, filepath.Base(file))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := decode(text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if r.Manifest.Name+".json" != filepath.Base(file) {
			t.Errorf("%s: manifest.name: %q, want the file's", file, r.Manifest.Name)
		}
	}
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if listed := listedIn(string(readme)); !slices.Equal(listed, there) {
		t.Errorf("docs/results/README.md lists %q, the directory has %q", listed, there)
	}
}

// listedIn returns the files that the rows of a table begin with, sorted.
func listedIn(readme string) []string {
	var names []string
	for _, row := range regexp.MustCompile(`(?m)^\| \[[^\]]+\]\(([^)/]+\.json)\) \|`).FindAllStringSubmatch(readme, -1) {
		names = append(names, row[1])
	}
	slices.Sort(names)
	return names
}

func TestTheTableOfFilesIsReadByItsLinks(t *testing.T) {
	const readme = "See [this](other.json).\n\n| file | what |\n|---|---|\n| [soak](soak.json) | an hour |\n| [budgets](budgets.json) | all, beside [soak](gone.json) |\n"
	if got, want := listedIn(readme), []string{"budgets.json", "soak.json"}; !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
}

// What is accepted is valid and is written again as it was.
func FuzzDecode(f *testing.F) {
	text, err := valid().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"manifest":{},"figures":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decode(text)
		if err != nil {
			return
		}
		if again, err := r.encode(); err != nil || !bytes.Equal(again, text) {
			t.Errorf("%q is accepted and written as %q, error %v", text, again, err)
		}
	})
}
