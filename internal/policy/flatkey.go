package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/spelling"
)

// KeyError says what is wrong with the name of a flat key.
type KeyError struct {
	// Allowed is what may stand there, as the rest of a sentence about the name: it
	// begins with must, or says what the name has.
	Allowed string
	// Nearest is the allowed key that is most like the name; empty where it is not that
	// which is wrong.
	Nearest string
}

// Error is Allowed and Nearest, in one line.
func (e *KeyError) Error() string {
	if e.Nearest == "" {
		return e.Allowed
	}
	return e.Allowed + "; the nearest is " + e.Nearest
}

// FlatKey reports what is wrong with the name of a flat key of an intent, as
// *KeyError; nil if a replica could be found by it.
//
// It is stricter than intent.FlatKey. Keys that begin with berth.dev/ are Berth's, and
// a pool that states another one is refused: no replica ever meets a requirement on it.
func FlatKey(name string) error { return checkKey(name, flatKeys) }

// MetadataKey is FlatKey for the keys of the metadata namespace berth.dev, which also
// holds a whole intent.
func MetadataKey(name string) error {
	if name == wholeIntent {
		return nil
	}
	return checkKey(name, func() []string { return append(flatKeys(), wholeIntent) })
}

const wholeIntent = "intent"

func checkKey(name string, allowed func() []string) error {
	if err := intent.FlatKey(name); err != nil {
		wrong := &KeyError{Allowed: printable(err.Error(), 400)}
		if !isFlat(name) {
			wrong.Nearest = nearest(name, allowed())
		}
		return wrong
	}
	// A class has no dot.
	parts := strings.SplitN(name, ".", 3)
	if len(parts) < 3 || knownAttribute(parts[2]) {
		return nil
	}
	attributes := berthAttributes()
	return &KeyError{
		Allowed: "must be a requirement on an attribute that replicas can have; of berth.dev these are " + strings.Join(attributes, ", "),
		Nearest: parts[0] + "." + parts[1] + "." + nearest(parts[2], attributes),
	}
}

// isFlat tells a requirement whose key alone is wrong, which no other name mends, from
// a name that is unknown.
func isFlat(name string) bool {
	parts := strings.SplitN(name, ".", 3)
	return len(parts) == 3 && parts[0] == "requirement" && slices.Contains(requirementClasses, v1alpha1.RequirementClass(parts[1])) && parts[2] != ""
}

var requirementClasses = []v1alpha1.RequirementClass{
	v1alpha1.Authorization, v1alpha1.Safety, v1alpha1.Residency, v1alpha1.Capability, v1alpha1.Placement,
}

// knownAttribute reports whether a replica could have the attribute: all but those with
// Berth's prefix that mean nothing.
func knownAttribute(key string) bool {
	return !strings.HasPrefix(key, labelPrefix) || slices.Contains(understood, key) || stated[key] != ""
}

// berthAttributes are the attributes with Berth's prefix, in order.
func berthAttributes() []string {
	return slices.Sorted(slices.Values(slices.Concat(understood, slices.Collect(maps.Keys(stated)))))
}

// flatKeys are the flat keys, and those of requirements on Berth's attributes.
func flatKeys() []string {
	keys := []string{"logicalModel", "servedModels", "priority", "sessionKey", "contextInputTokens", "contextOutputTokens"}
	for _, class := range requirementClasses {
		for _, attribute := range berthAttributes() {
			keys = append(keys, "requirement."+string(class)+"."+attribute)
		}
	}
	return keys
}

// maxCompared bounds what is compared with names, bytes: the longest of them is far
// shorter.
const maxCompared = 512

// nearest is the candidate that takes the fewest insertions, deletions and
// replacements of bytes to become the word; of several, the first. Case counts less.
func nearest(word string, candidates []string) string {
	word = word[:min(len(word), maxCompared)]
	best, least := "", -1
	for _, c := range candidates {
		// To differ in case alone is nearer than to differ.
		if n := 2*spelling.Distance(strings.ToLower(word), strings.ToLower(c)) + min(spelling.Distance(word, c), 1); least < 0 || n < least {
			best, least = c, n
		}
	}
	return best
}
