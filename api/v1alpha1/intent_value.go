package v1alpha1

import "encoding/json"

// value is one value of an intent, wherever it is read from: a tree that somebody
// else has decoded, or the tape that the parser of JSON text has written.
type value struct {
	tree any
	// tape is nil for a value of a tree; at is the value's node otherwise.
	tape *parser
	at   uint32
}

func (v value) node() *node { return &v.tape.nodes[v.at] }

func (v value) isObject() bool {
	if v.tape != nil {
		return v.node().kind == '{'
	}
	_, ok := v.tree.(map[string]any)
	return ok
}

// object has the members of a value of a tree.
func (v value) object() map[string]any {
	of, _ := v.tree.(map[string]any)
	return of
}

// member finds a member of an object.
func (v value) member(name string) (value, bool) {
	if v.tape != nil {
		at, ok := v.tape.find(v.at, name)
		if !ok {
			return value{}, false
		}
		return value{tape: v.tape, at: at}, true
	}
	m, ok := v.object()[name]
	return value{tree: m}, ok
}

// len is how many members an object has.
func (v value) len() int {
	if v.tape != nil {
		return int(v.node().n)
	}
	return len(v.object())
}

// names are those of an object's members, in any order.
func (v value) names() (names []string) {
	if v.tape == nil {
		for name := range v.object() {
			names = append(names, name)
		}
		return names
	}
	at := v.at + 1
	for range v.node().n {
		n := &v.tape.nodes[at]
		names = append(names, v.tape.text(n.name))
		at = n.next
	}
	return names
}

func (v value) text() (string, bool) {
	if v.tape == nil {
		text, ok := v.tree.(string)
		return text, ok
	}
	n := v.node()
	if n.kind != '"' {
		return "", false
	}
	return v.tape.text(n.content), true
}

// plain is the value as a tree has it, objects and lists without what is in them.
func (v value) plain() any {
	if v.tape == nil {
		return v.tree
	}
	switch n := v.node(); n.kind {
	case '"':
		return v.tape.text(n.content)
	case '{':
		return map[string]any{}
	case '[':
		return []any{}
	case 't', 'f':
		return n.kind == 't'
	case 'n':
		return nil
	default:
		return json.Number(v.tape.text(n.content))
	}
}

// items goes through a list of n.
type items struct {
	rest []any
	tape *parser
	at   uint32
	n    int
}

func (v value) items() (items, bool) {
	if v.tape != nil {
		n := v.node()
		return items{tape: v.tape, at: v.at + 1, n: int(n.n)}, n.kind == '['
	}
	list, ok := v.tree.([]any)
	return items{rest: list, n: len(list)}, ok
}

// next is the next item. It must be called n times at most.
func (s *items) next() value {
	if s.tape != nil {
		v := value{tape: s.tape, at: s.at}
		s.at = v.node().next
		return v
	}
	v := value{tree: s.rest[0]}
	s.rest = s.rest[1:]
	return v
}
