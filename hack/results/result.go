package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"
)

// schema is the version of Result: a field that is added, removed or means
// something else is another version.
const schema = 1

// Result is one file of docs/results.
type Result struct {
	Manifest Manifest `json:"manifest"`
	// Figures are in the order in which the command gave them; at least one.
	Figures []Figure `json:"figures"`
	// ExitCode is the command's, 0 to 255.
	ExitCode int `json:"exitCode"`
}

// Manifest says what was measured, where and how. No field of it may be empty.
type Manifest struct {
	Schema int `json:"schema"`
	// Name is the file's, without .json.
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// Date is when the command was started, UTC, to the second.
	Date time.Time `json:"date"`
	// Commit has 40 hexadecimal digits.
	Commit string `json:"commit"`
	// Dirty tells that the tree had changes beside docs/results, so that Commit
	// alone does not give back what was measured.
	Dirty   bool    `json:"dirty"`
	Build   Build   `json:"build"`
	Machine Machine `json:"machine"`
	Subject Subject `json:"subject"`
}

// Build is what the commit was built with.
type Build struct {
	// Version is the release, as git describes the commit.
	Version string `json:"version"`
	// Go is the version of the go command in use, such as go1.26.8.
	Go   string `json:"go"`
	OS   string `json:"os"`   // GOOS
	Arch string `json:"arch"` // GOARCH
}

// Machine is where the command ran.
type Machine struct {
	CPU string `json:"cpu"`
	// Cores are the logical ones that a process may use, at least 1.
	Cores int `json:"cores"`
	// MemoryBytes is all that the kernel manages.
	MemoryBytes int64  `json:"memoryBytes"`
	Kernel      string `json:"kernel"`
}

// Subject is what only the measured command can know. It states each of the four
// in one line of its output or more; "none" and a reason is a statement, too.
type Subject struct {
	// Configuration is the policies, by digest, that were in force, and what else
	// decides how the product does what was measured.
	Configuration []string `json:"configuration"`
	// ServedIDs are the model ids that replicas served.
	ServedIDs []string `json:"servedIDs"`
	// CacheState is what caches held when the measurement began.
	CacheState []string `json:"cacheState"`
	// TrafficShape is which requests came, how many at a time, and how often.
	TrafficShape []string `json:"trafficShape"`
}

// keys are the statements by the names that they have in lines of output.
func (s *Subject) keys() []statement {
	return []statement{
		{"configuration", &s.Configuration},
		{"servedIDs", &s.ServedIDs},
		{"cacheState", &s.CacheState},
		{"trafficShape", &s.TrafficShape},
	}
}

type statement struct {
	key    string
	values *[]string
}

// Figure is one measured value.
type Figure struct {
	// Name is unique in a result.
	Name string `json:"name"`
	// OK tells whether Measured is within Limit; null where nothing is promised.
	OK *bool `json:"ok"`
	// Measured is a number with its unit, or a word such as unmeasured.
	Measured string `json:"measured"`
	// Limit is "<=", ">=" or "=" and a number with its unit, or "-" for none.
	Limit string `json:"limit"`
	// About says what was measured, and how; it may be empty.
	About string `json:"about"`
}

var commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)

// check names every field that does not hold what it must.
func (r *Result) check() error {
	var found []error
	want := func(held bool, field, format string, args ...any) {
		if !held {
			found = append(found, fmt.Errorf(field+": "+format, args...))
		}
	}
	text := func(field, value string) { want(value != "", "manifest."+field, "is empty") }
	list := func(field string, values []string) {
		want(len(values) > 0, "manifest."+field, "is empty")
		for i, v := range values {
			text(fmt.Sprintf("%s[%d]", field, i), v)
		}
	}
	m := &r.Manifest
	want(m.Schema == schema, "manifest.schema", "%d, want %d", m.Schema, schema)
	text("name", m.Name)
	want(len(m.Command) > 0 && m.Command[0] != "", "manifest.command", "is empty")
	want(!m.Date.IsZero() && m.Date.Location() == time.UTC && m.Date.Nanosecond() == 0, "manifest.date", "%v, want a second of UTC", m.Date)
	want(commitForm.MatchString(m.Commit), "manifest.commit", "%q, want 40 hexadecimal digits", m.Commit)
	text("build.version", m.Build.Version)
	text("build.go", m.Build.Go)
	text("build.os", m.Build.OS)
	text("build.arch", m.Build.Arch)
	text("machine.cpu", m.Machine.CPU)
	want(m.Machine.Cores > 0, "manifest.machine.cores", "%d, want at least 1", m.Machine.Cores)
	want(m.Machine.MemoryBytes > 0, "manifest.machine.memoryBytes", "%d, want at least 1", m.Machine.MemoryBytes)
	text("machine.kernel", m.Machine.Kernel)
	for _, s := range m.Subject.keys() {
		list("subject."+s.key, *s.values)
	}
	want(len(r.Figures) > 0, "figures", "there are none")
	names := map[string]bool{}
	for i, f := range r.Figures {
		field := fmt.Sprintf("figures[%d]", i)
		want(f.Name != "" && f.Measured != "" && f.Limit != "", field, "%+v, want a name, what was measured and a limit", f)
		want(!names[f.Name], field+".name", "%q is the name of an earlier one", f.Name)
		names[f.Name] = true
	}
	want(r.ExitCode >= 0 && r.ExitCode <= 255, "exitCode", "%d, want 0 to 255", r.ExitCode)
	return errors.Join(found...)
}

// encode returns the one text that a valid result has.
func (r *Result) encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(r)
	return text.Bytes(), err
}

// decode accepts only what encode writes, byte by byte: a file without a field,
// with a field twice or with an unknown one is not a result.
func decode(text []byte) (*Result, error) {
	r := &Result{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows after the result")
	}
	again, err := r.encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(text, again) {
		return nil, fmt.Errorf("line %d is not as this command writes it: a field is missing, there twice, or in another form", firstDifference(text, again))
	}
	return r, nil
}

// firstDifference is the number of the first line in which two texts differ.
func firstDifference(a, b []byte) int {
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	return 1 + bytes.Count(a[:same], []byte("\n"))
}
