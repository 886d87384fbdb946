// Package testevent reads what `go test -json` writes: one JSON object a line
// (see `go doc test2json`), among lines that are not JSON, which builds and
// crashes may leave.
package testevent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// What an event's Action may be, of those that matter here.
const (
	Run         = "run"          // a test started
	Pass        = "pass"         // a test or package ended well
	Fail        = "fail"         // a test or package ended badly
	Skip        = "skip"         // a test skipped itself; a package has no tests
	Output      = "output"       // a line printed by a test or package
	BuildOutput = "build-output" // a line printed by the build
)

// An Event is one line. A line that is no JSON object has only Output.
type Event struct {
	Action      string
	Package     string
	ImportPath  string  // of build events, instead of Package
	Test        string  // with parents, as in TestX/sub; empty: the event is the package's
	Output      string  // with its newline
	Elapsed     float64 // seconds
	FailedBuild string  // import path whose build failed, on a package's fail
}

// Read calls each for every line of r, in order, until the end of r.
func Read(r io.Reader, each func(Event)) error {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			each(parse(line))
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("reading test events: %w", err)
		}
	}
}

func parse(line []byte) Event {
	var e Event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		return Event{Output: string(line)}
	}
	return e
}
