package policy

import (
	"encoding"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decode fills the struct that into points to from the document, by JSON tags.
// What the document does not say keeps its value. Paths in refused are keys
// whose behaviour does not exist; they need no field in the struct.
func (d *document) decode(into any, refused []string) {
	d.decodeValue("", d.root, reflect.ValueOf(into).Elem(), refused)
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

func (d *document) decodeValue(path string, n *yaml.Node, v reflect.Value, refused []string) {
	d.at[path] = n
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.decodeText(path, n, u)
		return
	}
	tag := n.ShortTag()
	switch {
	case v.Type() == rawMessage:
		if d.expect(path, n.Kind == yaml.MappingNode, "must be a mapping") {
			v.SetBytes(d.json(path, n))
		}
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decodeValue(path, n, v.Elem(), refused)
	case v.Kind() == reflect.Struct:
		if d.expect(path, n.Kind == yaml.MappingNode, "must be a mapping") {
			d.decodeStruct(path, n, v, refused)
		}
	case v.Kind() == reflect.Slice:
		if !d.expect(path, n.Kind == yaml.SequenceNode, "must be a list") {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.decodeValue(index(path, i), item, v.Index(i), refused)
		}
	case v.Kind() == reflect.Map:
		if !d.expect(path, n.Kind == yaml.MappingNode, mappingOf(v.Type().Elem())) {
			return
		}
		v.Set(reflect.MakeMapWithSize(v.Type(), len(n.Content)/2))
		for i := 0; i+1 < len(n.Content); i += 2 {
			item, at := reflect.New(v.Type().Elem()).Elem(), child(path, n.Content[i].Value)
			d.member(at, n.Content[i], n.Content[i+1])
			d.decodeValue(at, n.Content[i+1], item, refused)
			v.SetMapIndex(reflect.ValueOf(n.Content[i].Value), item)
		}
	case v.Kind() == reflect.String:
		allowed := "must be a string"
		if n.Kind == yaml.ScalarNode && tag != "!!null" {
			allowed = "must be a string: put it in quotes"
		}
		if d.expect(path, n.Kind == yaml.ScalarNode && tag == "!!str", allowed) {
			v.SetString(n.Value)
		}
	case v.Kind() == reflect.Bool:
		var b bool
		if d.expect(path, n.Kind == yaml.ScalarNode && tag == "!!bool" && n.Decode(&b) == nil, "must be true or false") {
			v.SetBool(b)
		}
	case v.CanInt():
		var i int64
		if d.expect(path, n.Kind == yaml.ScalarNode && tag == "!!int" && n.Decode(&i) == nil && !v.OverflowInt(i), "must be a whole number") {
			v.SetInt(i)
		}
	case v.CanFloat():
		var f float64
		if d.expect(path, n.Kind == yaml.ScalarNode && (tag == "!!float" || tag == "!!int") && n.Decode(&f) == nil, "must be a number") {
			v.SetFloat(f)
		}
	default:
		// Only a type in a configuration struct that this function does not know
		// leads here; the tests decode into each of them.
		d.refuse(path, "is not supported by this version")
	}
}

func mappingOf(t reflect.Type) string {
	if t.Kind() == reflect.String {
		return "must be a mapping of strings"
	}
	return "must be a mapping of lists of strings"
}

func (d *document) expect(path string, ok bool, allowed string) bool {
	if !ok {
		d.refuse(path, allowed)
	}
	return ok
}

// decodeText decodes a duration or a number of bytes.
func (d *document) decodeText(path string, n *yaml.Node, u encoding.TextUnmarshaler) {
	tag := n.ShortTag()
	if !d.expect(path, n.Kind == yaml.ScalarNode && (tag == "!!str" || tag == "!!int" || tag == "!!float"), "must be a value with a unit") {
		return
	}
	if err := u.UnmarshalText([]byte(n.Value)); err != nil {
		// The error is "VALUE is not ALLOWED", and the value may say anything.
		parts := strings.Split(err.Error(), " is not ")
		d.refuse(path, "must be "+parts[len(parts)-1])
	}
}

func (d *document) decodeStruct(path string, n *yaml.Node, v reflect.Value, refused []string) {
	fields := map[string]reflect.Value{}
	collectFields(v, fields)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := child(path, key.Value)
		field, known := fields[key.Value]
		d.member(at, key, value)
		switch {
		case slices.Contains(refused, at):
			d.refuse(at, "is not supported by this version")
		case !known:
			d.refuse(at, "is an unknown key; known here: "+strings.Join(knownKeys(path, fields, refused), ", "))
		default:
			d.decodeValue(at, value, field, refused)
		}
	}
}

// collectFields finds a struct's fields by JSON name, those of inlined structs
// among them.
func collectFields(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		switch {
		case name == "" && strings.Contains(options, "inline"):
			collectFields(v.Field(i), into)
		case name != "" && name != "-":
			into[name] = v.Field(i)
		}
	}
}

func knownKeys(path string, fields map[string]reflect.Value, refused []string) []string {
	var keys []string
	for key := range fields {
		if !slices.Contains(refused, child(path, key)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// json is a plugin's parameters as canonical JSON: sorted keys, no spaces. Nil
// stands for parameters that say nothing.
func (d *document) json(path string, n *yaml.Node) json.RawMessage {
	value := d.plain(path, n)
	if m, ok := value.(map[string]any); ok && len(m) == 0 {
		return nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		d.refuse(path, "must be what JSON can hold: "+err.Error())
		return nil
	}
	return data
}

func (d *document) plain(path string, n *yaml.Node) any {
	d.at[path] = n
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := child(path, n.Content[i].Value)
			d.member(at, n.Content[i], n.Content[i+1])
			m[n.Content[i].Value] = d.plain(at, n.Content[i+1])
		}
		return m
	case yaml.SequenceNode:
		s := make([]any, len(n.Content))
		for i, item := range n.Content {
			s[i] = d.plain(index(path, i), item)
		}
		return s
	}
	var value any
	var ok bool
	switch n.ShortTag() {
	case "!!str":
		return n.Value
	case "!!bool", "!!int":
		ok = n.Decode(&value) == nil
	case "!!float":
		var f float64
		ok = n.Decode(&f) == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
		value = f
	default:
		// JSON has no timestamps and no binary, and null says nothing.
		ok = false
	}
	if !ok {
		d.refuse(path, "must be a string, a finite number, true, false, a list or a mapping")
		return nil
	}
	return value
}
