// Package engines holds the engine profiles that are built into the binaries:
// one YAML file for each kind of engine, named after it. The fields of a
// profile are described in internal/engine.
package engines

import "embed"

// FS holds the profiles at its root.
//
//go:embed *.yaml
var FS embed.FS
