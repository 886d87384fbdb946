package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// source is what reflection does not see of a package. Comments are one line per
// paragraph.
type source struct {
	// types has the comment of each type.
	types map[string]string
	// members has the fields of each struct, in order.
	members map[string][]member
	// values has the constants of each named string type, in order.
	values map[string][]value
}

// member is one field of a struct. The fields of a group without blank lines or
// comments in it share the comment above it, where that names them.
type member struct {
	name, json, comment string
}

// value is one constant. Its comment begins with the value.
type value struct {
	text, comment string
}

// readSource reads the Go files of a directory, tests left out.
func readSource(dir string) (*source, error) {
	s := &source{types: map[string]string{}, members: map[string][]member{}, values: map[string][]value{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, filepath.Join(dir, e.Name()), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					s.addType(files, spec, cmp.Or(spec.Doc, g.Doc))
				case *ast.ValueSpec:
					if err := s.addValue(spec); err != nil {
						return nil, fmt.Errorf("%s: %w", files.Position(spec.Pos()), err)
					}
				}
			}
		}
	}
	return s, nil
}

func (s *source) addType(files *token.FileSet, spec *ast.TypeSpec, comment *ast.CommentGroup) {
	s.types[spec.Name.Name] = paragraphs(comment)
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	var shared string
	var lastLine int
	for _, f := range fields.Fields.List {
		own := paragraphs(f.Doc)
		if own != "" || files.Position(f.Pos()).Line > lastLine+1 {
			shared = own
		}
		lastLine = files.Position(f.End()).Line
		for _, n := range f.Names {
			m := member{name: n.Name, comment: own}
			if own == "" && regexp.MustCompile(`\b`+n.Name+`\b`).MatchString(shared) {
				m.comment = shared
			}
			if f.Tag != nil {
				// The parser has read it as a string already.
				tag, _ := strconv.Unquote(f.Tag.Value)
				m.json, _, _ = strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			}
			s.members[spec.Name.Name] = append(s.members[spec.Name.Name], m)
		}
	}
}

// addValue keeps constants of a named type whose value is written out as a string.
func (s *source) addValue(spec *ast.ValueSpec) error {
	of, ok := spec.Type.(*ast.Ident)
	if !ok {
		return nil
	}
	for i, n := range spec.Names {
		if i >= len(spec.Values) {
			return nil
		}
		literal, ok := spec.Values[i].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return nil
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			return err
		}
		v := value{text: text}
		if c, ok := strings.CutPrefix(paragraphs(spec.Doc), n.Name); ok {
			v.comment = text + c
		}
		s.values[of.Name] = append(s.values[of.Name], v)
	}
	return nil
}

func paragraphs(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	var out []string
	for p := range strings.SplitSeq(strings.TrimSpace(c.Text()), "\n\n") {
		out = append(out, strings.Join(strings.Fields(p), " "))
	}
	return strings.Join(out, "\n")
}

// typeComment is the comment of a type, of its fields by the names that the
// document has for them.
func (s *source) typeComment(t string) string { return s.byJSONName(t, s.types[t]) }

// memberComment is the comment of a field, and if the field is of a named string
// type, what each value of it means.
func (s *source) memberComment(t, field, fieldType string) string {
	var comment string
	for _, m := range s.members[t] {
		if m.name == field {
			comment = s.byJSONName(t, m.comment)
		}
	}
	values := s.values[fieldType]
	if len(values) == 0 {
		return comment
	}
	lines := []string{cmp.Or(comment, s.types[fieldType])}
	for _, v := range values {
		if v.comment != "" {
			lines = append(lines, v.comment)
		}
	}
	return strings.Join(lines, "\n")
}

var words = regexp.MustCompile(`\w+(\.\w+)*`)

// byJSONName writes the fields that a comment of struct t speaks of as the
// document does: Acted as acted, Acknowledgement.Acted as acknowledgement.acted.
func (s *source) byJSONName(t, comment string) string {
	name := func(t, field string) string {
		for _, m := range s.members[t] {
			if m.name == field && m.json != "" {
				return m.json
			}
		}
		return field
	}
	return words.ReplaceAllStringFunc(comment, func(word string) string {
		first, rest, dotted := strings.Cut(word, ".")
		if dotted {
			return name(t, first) + "." + name(first, rest)
		}
		return name(t, word)
	})
}
