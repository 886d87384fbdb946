// Package version says which build this is. The values are stamped by the
// linker; a build without them says so.
package version

import "runtime"

var (
	// Version is the release, as git describes it.
	Version = "unstamped"
	// Commit is the revision that was built.
	Commit = "unknown"
)

// String is one line for --version.
func String() string {
	return Version + " (" + Commit + ", " + runtime.Version() + ")"
}
