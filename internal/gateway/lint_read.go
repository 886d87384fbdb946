package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/berth-dev/berth/internal/policy"
)

// ErrNotEnvoy is the answer to a file that is no Envoy configuration.
var ErrNotEnvoy = errors.New("is no Envoy configuration")

// maxYAML bounds what is read as YAML, bytes: its tree takes some thirty times the
// memory of its text. JSON is read without a tree.
const maxYAML = 64 << 20

// The types of an ext_proc filter's settings, and of those that a route puts in
// their place.
const (
	filterType = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
	routeType  = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
)

// Filters reads the ext_proc filters of an Envoy configuration, wherever they
// stand in it: in a bootstrap, in resources, in the dump of Envoy's admin
// endpoint. What begins with a brace and a quote is read as JSON, of one value;
// all else as YAML, of any number of documents. A file without Envoy's keys at the top
// is ErrNotEnvoy; what is wrong with one that has them is *policy.Error, joined.
func Filters(file string, data []byte) ([]Filter, error) {
	c := &configuration{file: file, data: bytes.TrimPrefix(data, []byte("\ufeff"))}
	read := c.readYAML
	if isJSON(c.data) {
		read = c.readJSON
	}
	switch err := read(); {
	case !c.envoy:
		return nil, ErrNotEnvoy
	case err != nil:
		c.errs = append(c.errs, err)
	}
	return c.filters, errors.Join(c.errs...)
}

// configuration is a file of Envoy's while it is read.
type configuration struct {
	file string
	data []byte

	// envoy is set once a document has one of Envoy's keys at its top.
	envoy   bool
	filters []Filter
	errs    []error

	// lineEnds has the offset of each line's end, once it was asked for.
	lineEnds []int
}

// topKeys are the keys by which a bootstrap, a file of resources and a dump are
// known.
var topKeys = []string{"static_resources", "dynamic_resources", "resources", "configs"}

func isTopKey(key string) bool {
	return slices.ContainsFunc(topKeys, func(name string) bool { return spells(key, name) })
}

// spells reports whether a key is a name in either spelling that Envoy takes:
// processing_mode, processingMode.
func spells(key, name string) bool {
	return strings.EqualFold(strings.ReplaceAll(key, "_", ""), strings.ReplaceAll(name, "_", ""))
}

// readYAML reads documents one at a time, so that one tree at most is held.
func (c *configuration) readYAML() error {
	if len(c.data) > maxYAML {
		c.envoy = c.hasTopLine()
		return &policy.Error{File: c.file, Value: "more than 64MiB", Allowed: "must be at most 64MiB as YAML; the JSON of Envoy's admin endpoint may be longer"}
	}
	for dec := yaml.NewDecoder(bytes.NewReader(c.data)); ; {
		var root yaml.Node
		err := dec.Decode(&root)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			c.envoy = c.envoy || c.hasTopLine()
			line, reason := yamlError(err)
			return &policy.Error{File: c.file, Line: line, Allowed: "is not valid YAML: " + reason}
		}
		for _, document := range root.Content {
			eachMember(document, func(key string, _ *yaml.Node) { c.envoy = c.envoy || isTopKey(key) })
		}
		visit(&root, c.yamlMapping)
	}
}

// hasTopLine reports whether a line begins with one of Envoy's keys, in a file
// that does not parse.
func (c *configuration) hasTopLine() bool {
	for line := range bytes.Lines(c.data) {
		key, _, found := bytes.Cut(line, []byte(":"))
		if found && len(key) < 32 && isTopKey(strings.Trim(string(key), `"' `)) && key[0] != ' ' {
			return true
		}
	}
	return false
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// yamlError takes the line out of a YAML error; 0 where it has none.
func yamlError(err error) (line int, reason string) {
	reason = strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(reason); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits; 0 if there are too many
		reason = reason[len(m[0]):]
	}
	return line, reason
}

// visit calls see for each mapping of a document. Aliases are not followed: what
// they stand for is visited where it is written.
func visit(n *yaml.Node, see func(*yaml.Node)) {
	if n.Kind == yaml.MappingNode {
		see(n)
	}
	for _, child := range n.Content {
		visit(child, see)
	}
}

// behind is the node that an alias stands for. No alias stands for another.
func behind(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// eachMember calls see for the members of a mapping, or of the one behind an
// alias.
func eachMember(n *yaml.Node, see func(key string, value *yaml.Node)) {
	n = behind(n)
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		see(behind(n.Content[i]).Value, behind(n.Content[i+1]))
	}
}

// yamlMapping takes a mapping's settings if they are of one of the two types.
func (c *configuration) yamlMapping(n *yaml.Node) {
	kind := ""
	eachMember(n, func(key string, value *yaml.Node) {
		if key == "@type" {
			kind = value.Value
		}
	})
	if !isSettings(kind) {
		return
	}
	kept := settings{}
	var errs []error
	eachMember(n, func(key string, value *yaml.Node) {
		if name, read := settingName(key); read {
			var content any
			// Decoding follows aliases inside, and refuses those that lead back to
			// themselves or blow a small text up.
			err := value.Decode(&content)
			if err == nil {
				kept[name], err = json.Marshal(content)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	})
	c.add(n.Line, kind, kept, errors.Join(errs...))
}

// space is what may stand between the parts of JSON.
const space = " \t\r\n"

// isJSON reports whether a file begins as a JSON object does: with a brace, and
// behind it a quote or the other brace. An unquoted key is YAML's.
func isJSON(data []byte) bool {
	inside, found := bytes.CutPrefix(bytes.TrimLeft(data, space), []byte("{"))
	inside = bytes.TrimLeft(inside, space)
	return found && len(inside) > 0 && (inside[0] == '"' || inside[0] == '}')
}

// unread is a JSON value that is checked and not kept.
type unread struct{}

func (*unread) UnmarshalJSON([]byte) error { return nil }

// readJSON checks the file and looks for objects of the two types in it. A dump
// may be large, so nothing is held of it but the settings that are linted.
func (c *configuration) readJSON() error {
	err := json.Unmarshal(c.data, &unread{})
	c.scanJSON(err == nil)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		// The offset is behind the byte that does not fit.
		return &policy.Error{File: c.file, Line: c.lineAt(int(syntax.Offset) - 1), Allowed: "is not valid JSON: " + syntax.Error()}
	}
	return err
}

// scanJSON goes through brackets and strings. Of a file that is not valid it
// finds the keys at the top alone.
func (c *configuration) scanJSON(valid bool) {
	type bracket struct {
		begin int
		kind  string
	}
	var open []bracket
	var key []byte // the one whose value is next
	for i := 0; i < len(c.data); i++ {
		switch c.data[i] {
		case '{', '[':
			open, key = append(open, bracket{begin: i}), nil
		case '}', ']':
			if len(open) == 0 {
				return // not valid
			}
			inner := open[len(open)-1]
			open = open[:len(open)-1]
			if valid && isSettings(inner.kind) {
				kept, err := settingsOf(c.data[inner.begin : i+1])
				c.add(c.lineAt(inner.begin), inner.kind, kept, err)
			}
		case '"':
			text, length := jsonString(c.data[i:])
			i += length - 1
			switch {
			case bytes.HasPrefix(bytes.TrimLeft(c.data[min(i+1, len(c.data)):], space), []byte(":")):
				key = text
				c.envoy = c.envoy || len(open) == 1 && isTopKey(string(text))
			case len(open) > 0 && string(key) == "@type":
				open[len(open)-1].kind = string(text)
			}
		}
	}
}

// jsonString is the text of the string that data begins with, and its length
// with the quotes.
func jsonString(data []byte) (text []byte, length int) {
	end, escaped := 1, false
	for end < len(data) && data[end] != '"' {
		if data[end] == '\\' {
			escaped = true
			end++
		}
		end++
	}
	end = min(end, len(data)-1)
	text = data[1:max(end, 1)]
	if escaped {
		var unescaped string
		if json.Unmarshal(data[:end+1], &unescaped) == nil {
			text = []byte(unescaped)
		}
	}
	return text, end + 1
}

// lineAt is the line of an offset, from 1.
func (c *configuration) lineAt(offset int) int {
	if c.lineEnds == nil {
		c.lineEnds = []int{}
		for i, b := range c.data {
			if b == '\n' {
				c.lineEnds = append(c.lineEnds, i)
			}
		}
	}
	before, _ := slices.BinarySearch(c.lineEnds, offset)
	return before + 1
}

// settings are members of a filter's settings by their names in snake case, as
// JSON. Only those that are linted are kept: others may hold types that only
// Envoy knows.
type settings map[string]json.RawMessage

// settingName is the name of a key in snake case, if the setting is read.
func settingName(key string) (name string, read bool) {
	for _, name := range []string{
		"processing_mode", "failure_mode_allow", "observability_mode", "metadata_options", "response_attributes",
		"disabled", "overrides",
	} {
		if spells(key, name) {
			return name, true
		}
	}
	return "", false
}

func settingsOf(object json.RawMessage) (settings, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil {
		return nil, err
	}
	kept := settings{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if name, read := settingName(key); read {
			kept[name] = all[key]
		}
	}
	return kept, nil
}

// decode reads the named settings into a message that has fields of these names.
func (s settings) decode(into proto.Message, names ...string) error {
	named := settings{}
	for _, name := range names {
		if value, set := s[name]; set {
			named[name] = value
		}
	}
	text, err := json.Marshal(named)
	if err != nil {
		return err
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, into); err != nil {
		return errors.New(protoPlace.ReplaceAllString(err.Error(), ""))
	}
	return nil
}

// protoPlace is where protojson found an error, in a text that nobody wrote.
var protoPlace = regexp.MustCompile(`^proto:\W*(?:syntax error )?\(line \d+:\d+\): `)

// isSettings reports whether a type is one of the two whose settings are linted.
func isSettings(kind string) bool {
	return strings.HasSuffix(kind, "/"+filterType) || strings.HasSuffix(kind, "/"+routeType)
}

// add keeps what settings of a type say, or what is wrong with them.
func (c *configuration) add(line int, kind string, s settings, err error) {
	filter, named := Filter{Line: line, settings: &extprocv3.ExternalProcessor{}}, filterType
	if strings.HasSuffix(kind, "/"+routeType) {
		filter.Route, named = true, routeType
	}
	switch {
	case err != nil:
	case filter.Route:
		err = filter.override(s)
	default:
		err = s.decode(filter.settings, "processing_mode", "failure_mode_allow", "observability_mode", "metadata_options", "response_attributes")
	}
	if err != nil {
		c.errs = append(c.errs, &policy.Error{File: c.file, Line: line, Field: named, Allowed: "cannot be read: " + err.Error()})
		return
	}
	c.filters = append(c.filters, filter)
}

// override sets what a route replaces of the filter.
func (f *Filter) override(s settings) error {
	route := &extprocv3.ExtProcPerRoute{}
	if err := s.decode(route, "disabled"); err != nil {
		return err
	}
	f.disabled = route.GetDisabled()
	text, set := s["overrides"]
	if !set {
		return nil
	}
	inside, err := settingsOf(text)
	if err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	overrides := &extprocv3.ExtProcOverrides{}
	if err := inside.decode(overrides, "processing_mode", "failure_mode_allow", "metadata_options"); err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	f.settings.ProcessingMode = overrides.GetProcessingMode()
	f.settings.FailureModeAllow = overrides.GetFailureModeAllow().GetValue()
	f.settings.MetadataOptions = overrides.GetMetadataOptions()
	return nil
}
