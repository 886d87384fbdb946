package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/version"
)

type versionDocument struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit"`
	Go       string   `json:"go"`
	Profiles []string `json:"profiles"`
}

func versionCommand(out *output) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, Go's version and the digests of the engine profiles",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			profiles, err := engine.Defaults()
			if err != nil {
				return err
			}
			doc := versionDocument{Version: version.Version, Commit: version.Commit, Go: runtime.Version()}
			for _, p := range profiles.Profiles() {
				doc.Profiles = append(doc.Profiles, p.Digest())
			}
			return out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error {
				fmt.Fprintf(w, "version   %s\ncommit    %s\ngo        %s\n", doc.Version, doc.Commit, doc.Go)
				for _, p := range doc.Profiles {
					fmt.Fprintf(w, "profile   %s\n", p)
				}
				return nil
			})
		},
	}
}
