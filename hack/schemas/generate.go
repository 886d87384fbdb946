package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	apiDirectory = "api/v1alpha1"
	// idBase makes the identifiers of the schemas. They are names: nothing needs
	// to be there.
	idBase = "https://berth.dev/v1alpha1/"
	suffix = ".schema.json"
)

// generate returns the text of each schema by its file name. Root is the root of
// the repository.
func generate(root string) (map[string][]byte, error) {
	api, err := readSource(filepath.Join(root, apiDirectory))
	if err != nil {
		return nil, err
	}
	bounds, err := readBounds(root)
	if err != nil {
		return nil, err
	}
	unused := maps.Clone(bounds)
	schemas := map[string][]byte{}
	for _, d := range documents() {
		s := reflectDocument(api, d)
		types := typesOf(d, s)
		for name, t := range types {
			for at, narrow := range bounds {
				if of, member, _ := strings.Cut(at, "."); of == name {
					property, ok := t.Properties.Get(member)
					if !ok {
						return nil, fmt.Errorf("%s: the document has no such member", at)
					}
					narrow(property)
					delete(unused, at)
				}
			}
		}
		if err := d.complete(types); err != nil {
			return nil, fmt.Errorf("%s: %w", d.file, err)
		}
		if schemas[d.file+suffix], err = text(s); err != nil {
			return nil, fmt.Errorf("%s: %w", d.file, err)
		}
	}
	if len(unused) > 0 {
		return nil, fmt.Errorf("%v: no document has such a type", slices.Sorted(maps.Keys(unused)))
	}
	return schemas, nil
}

// reflectDocument is the schema as types, tags, comments and constants have it.
func reflectDocument(api *source, d document) *jsonschema.Schema {
	r := &jsonschema.Reflector{
		Anonymous:                 true,
		ExpandedStruct:            true,
		AllowAdditionalProperties: true,
		Mapper:                    func(t reflect.Type) *jsonschema.Schema { return mapType(api, t) },
		LookupComment: func(t reflect.Type, field string) string {
			if field == "" {
				return api.typeComment(t.Name())
			}
			f, _ := t.FieldByName(field)
			return api.memberComment(t.Name(), field, f.Type.Name())
		},
	}
	s := r.Reflect(d.of)
	s.ID = jsonschema.ID(idBase + d.file + suffix)
	s.Title = d.kind
	if d.about != "" {
		s.Description = d.about
	}
	// A field of type any says nothing of what it may hold.
	if reading := s.Definitions["Reading"]; reading != nil {
		distribution := r.Reflect(v1alpha1.Distribution{})
		distribution.Version, distribution.Definitions = "", nil
		s.Definitions["Distribution"] = distribution
	}
	for _, t := range typesOf(d, s) {
		if !d.configuration {
			t.AdditionalProperties = jsonschema.TrueSchema
			continue
		}
		t.AdditionalProperties = jsonschema.FalseSchema
		t.Required = nil
	}
	return s
}

// typesOf has the schema of each struct of a document by the struct's name.
func typesOf(d document, s *jsonschema.Schema) map[string]*jsonschema.Schema {
	types := map[string]*jsonschema.Schema{d.kind: s}
	for name, t := range s.Definitions {
		if t.Properties != nil {
			types[name] = t
		}
	}
	return types
}

// mapType is the schema of a type that writes itself as text, or has a few values
// only; nil for others.
func mapType(api *source, t reflect.Type) *jsonschema.Schema {
	switch {
	case t == reflect.TypeFor[v1alpha1.Duration]():
		// Of numbers, ParseDuration takes 0 alone.
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			{Type: "string", Pattern: `^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`},
			{Enum: []any{0}},
		}}
	case t == reflect.TypeFor[v1alpha1.Bytes]():
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			{Type: "string", Pattern: `^[0-9]+(KiB|MiB|GiB)?$`},
			{Type: "integer", Minimum: "0"},
		}}
	case t.Kind() == reflect.String && t.PkgPath() != "":
		s := &jsonschema.Schema{Type: "string"}
		for _, v := range api.values[t.Name()] {
			s.Enum = append(s.Enum, v.text)
		}
		return s
	}
	return nil
}

// text is the schema as a file has it.
func text(s *jsonschema.Schema) ([]byte, error) {
	compact, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, compact, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	// What is escaped for HTML is hard to read. A backslash before a backslash is
	// passed over together with it.
	plain := strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")
	return []byte(plain.Replace(b.String())), nil
}
