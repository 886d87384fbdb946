package pool

import (
	"slices"
	"strings"
	"sync"
)

// ServedSet is a known set of served model names. Equal sets of one registry
// share one value, so that a question about a model is asked once per distinct
// set and not once per endpoint. It is immutable; nil stands for "unknown".
type ServedSet struct{ names []string }

// Has reports whether the set has a name.
func (s *ServedSet) Has(model string) bool { return slices.Contains(s.names, model) }

// maxServedSets bounds the sets that are shared. Adapters come and go, and each
// state of them is a set; when the bound is reached sharing starts anew.
const maxServedSets = 4096

// servedSets shares equal sets.
type servedSets struct {
	mu    sync.Mutex
	byKey map[string]*ServedSet
}

// of returns the set of these names; nil for nil.
func (s *servedSets) of(names []string) *ServedSet {
	if names == nil {
		return nil
	}
	// Names hold no NUL: they come from validated files and JSON pages, and one
	// that did would only cost the sharing.
	key := strings.Join(names, "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	if set, ok := s.byKey[key]; ok && slices.Equal(set.names, names) {
		return set
	}
	if s.byKey == nil || len(s.byKey) >= maxServedSets {
		s.byKey = map[string]*ServedSet{}
	}
	set := &ServedSet{names: slices.Clone(names)}
	s.byKey[key] = set
	return set
}
