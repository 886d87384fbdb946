// Command schemas writes the JSON Schemas of the documents of api/v1alpha1, from
// their Go types:
//
//	schemas -o docs/schemas
//
// Reflection gives members, types and, from the JSON tags, what is always there.
// The source gives what reflection does not see: comments become descriptions,
// constants of a named string type the values that it has. documents.go adds what
// neither says: which types are documents, and the bounds that the comments tell
// in words. It runs at the root of the repository.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("o", "docs/schemas", "`directory` that takes the schemas; those of the same names are replaced")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "schemas: %q: there are no arguments\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(".", *out); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	schemas, err := generate(root)
	if err != nil {
		return err
	}
	for name, text := range schemas {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
