package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"github.com/berth-dev/berth/internal/yamlerror"
)

const (
	// maxFile is the most that a Kubernetes ConfigMap can hold.
	maxFile = 1 << 20
	// maxDepth is far above any valid document and far below what recursion
	// can bear.
	maxDepth = 32
)

// document is one YAML document with the place of each value in it.
type document struct {
	*problems
	root       *yaml.Node
	apiVersion string
	kind       string
	// at has the value node of each path, keyLine the line of its key where that has
	// one: a list or mapping begins below it.
	at      map[string]*yaml.Node
	keyLine map[string]int
	// failed has the paths that were refused already: one mistake, one error.
	failed map[string]bool
}

// readFile reads a file of at most maxFile bytes; one more byte tells that it
// was longer.
func readFile(path string) ([]byte, error) {
	data, err := readRegular(path, maxFile)
	if err == nil {
		return data, nil
	}
	var pe *os.PathError
	reason := err
	if errors.As(err, &pe) {
		reason = pe.Err
	}
	return nil, &Error{File: path, Allowed: "cannot be read: " + reason.Error(), cause: err}
}

// errNotRegular says that a path leads to something that may never end, or never
// begin.
var errNotRegular = errors.New("it is not a regular file")

// readRegular reads a file up to one byte above limit.
func readRegular(path string, limit int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

// OpenRegular opens a file that has an end. Opening does not wait: a pipe without
// a writer would hold up whoever asks, for ever. An error is the file system's, or
// says bare what the path leads to instead.
func OpenRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = syscall.EISDIR
	case !info.Mode().IsRegular():
		err = errNotRegular
	default:
		return f, nil
	}
	_ = f.Close() // nothing was written
	return nil, err
}

// split parses the documents of a file. Documents that cannot be decoded are
// reported and left out; so are empty ones, silently.
func split(p *problems, data []byte) []*document {
	if len(data) > maxFile {
		p.refuse(0, "", "more than 1MiB", "must be at most 1MiB")
		return nil
	}
	var docs []*document
	empty := true
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			line, reason := yamlerror.Place(data, err)
			p.refuse(line, "", "", "is not valid YAML: "+reason)
			return docs
		}
		if len(n.Content) == 0 || n.Content[0].ShortTag() == "!!null" && n.Content[0].Anchor == "" {
			continue
		}
		empty = false
		d := &document{problems: p, root: n.Content[0], at: map[string]*yaml.Node{}, keyLine: map[string]int{}, failed: map[string]bool{}}
		d.at[""] = d.root
		if d.inspect("", d.root, 0) && d.header() {
			docs = append(docs, d)
		}
	}
	if empty {
		p.refuse(0, "", "", "is empty")
	}
	return docs
}

// inspect refuses what no document may contain. It reports false where decoding
// would make no sense.
func (d *document) inspect(path string, n *yaml.Node, depth int) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.problems.refuse(n.Line, path, show(n), "must be written out: anchors and aliases are not allowed")
		return false
	case depth > maxDepth:
		d.problems.refuse(n.Line, path, show(n), fmt.Sprintf("must have at most %d levels", maxDepth))
		return false
	}
	ok := true
	switch n.Kind {
	case yaml.SequenceNode:
		for i, item := range n.Content {
			ok = d.inspect(index(path, i), item, depth+1) && ok
		}
	case yaml.MappingNode:
		first := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.ShortTag() != "!!str" {
				d.problems.refuse(key.Line, path, show(key), "must be a plain string, as every key")
				ok = false
				continue
			}
			at := child(path, key.Value)
			if line, twice := first[key.Value]; twice {
				d.problems.refuse(key.Line, at, show(value), fmt.Sprintf("must occur once: it is in line %d already", line))
			} else {
				first[key.Value] = key.Line
			}
			ok = d.inspect(at, value, depth+1) && ok
		}
	}
	return ok
}

// header reads apiVersion and kind.
func (d *document) header() bool {
	if d.root.Kind != yaml.MappingNode {
		d.problems.refuse(d.root.Line, "", show(d.root), "must be a mapping with apiVersion and kind")
		return false
	}
	d.apiVersion, d.kind = d.text("apiVersion"), d.text("kind")
	versions := map[string]string{kindPicker: pickerVersion, kindBerth: berthVersion, kindPool: berthVersion}
	want, known := versions[d.kind]
	switch {
	case !known:
		d.problems.refuse(d.line("kind"), "kind", d.value("kind"), "must be one of EndpointPickerConfig, BerthConfiguration, StaticPool")
	case d.apiVersion != want:
		d.problems.refuse(d.line("apiVersion"), "apiVersion", d.value("apiVersion"), fmt.Sprintf("must be %s for kind %s", want, d.kind))
	default:
		return true
	}
	return false
}

// text is a top-level string; it also notes where that is.
func (d *document) text(key string) string {
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if n := d.root.Content[i+1]; d.root.Content[i].Value == key {
			d.member(key, d.root.Content[i], n)
			if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
				return n.Value
			}
		}
	}
	return ""
}

// has reports whether the file says anything at path.
func (d *document) has(path string) bool { return d.at[path] != nil }

// line is where path is, or the nearest thing around it that the file has.
func (d *document) line(path string) int {
	for d.at[path] == nil {
		cut := strings.LastIndexAny(path, ".[")
		path = path[:max(cut, 0)]
	}
	n := d.at[path]
	if line := d.keyLine[path]; line > 0 && (n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode) {
		return line
	}
	return n.Line
}

// member notes where a member of a mapping is.
func (d *document) member(path string, key, value *yaml.Node) {
	d.at[path], d.keyLine[path] = value, key.Line
}

// value is what the file says at path.
func (d *document) value(path string) string {
	if n := d.at[path]; n != nil {
		return show(n)
	}
	return "missing"
}

// refuse reports the value at path, unless it was reported before.
func (d *document) refuse(path, allowed string) {
	if d.failed[path] {
		return
	}
	d.failed[path] = true
	d.problems.refuse(d.line(path), path, d.value(path), allowed)
}

func (d *document) warn(path, message string) { d.problems.warn(d.line(path), path, message) }

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// child is the path of a key. Keys with other characters than names have, such
// as labels, stand in brackets.
func child(path, key string) string {
	name := key != ""
	for i := 0; i < len(key) && name; i++ {
		c := key[i]
		name = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}
	switch {
	case !name:
		return path + "[" + key + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}
