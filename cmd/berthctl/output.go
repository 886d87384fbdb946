package main

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// output is how a command prints what it has to say.
type output struct{ format string }

func (o *output) check() error {
	switch o.format {
	case "table", "json", "yaml":
		return nil
	}
	return usageError{fmt.Errorf("--output: %q: must be table, json or yaml", o.format)}
}

// print writes doc as JSON or YAML, or lets table write for people.
func (o *output) print(w io.Writer, doc any, table func(io.Writer) error) error {
	switch o.format {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(doc)
	case "yaml":
		text, err := yaml.Marshal(doc)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	default:
		return table(w)
	}
}
