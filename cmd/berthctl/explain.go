package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/console"
)

// newestID stands for the newest decision.
const newestID = "latest"

func explainCommand(out *output) *cobra.Command {
	var (
		from   reports
		ledger string
	)
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "Tell one decision as a person would; ID may be " + newestID,
		Args:  exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var d *v1alpha1.Decision
			var err error
			if ledger != "" {
				d, err = findInLog(ledger, args[0])
			} else {
				d, err = findAtServer(cmd.Context(), &from, args[0])
			}
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), d, func(w io.Writer) error { return console.Explain(w, d) })
		},
	}
	from.flag(cmd)
	cmd.Flags().StringVar(&ledger, "ledger", "", "`FILE` of decision records, one JSON object per line, to read instead of a server")
	return cmd
}

func findAtServer(ctx context.Context, from *reports, id string) (*v1alpha1.Decision, error) {
	if id != newestID {
		d := &v1alpha1.Decision{}
		return d, from.get(ctx, "/v1alpha1/decisions/"+url.PathEscape(id), d)
	}
	var list struct {
		Items []*v1alpha1.Decision `json:"items"`
	}
	if err := from.get(ctx, "/v1alpha1/decisions?limit=1", &list); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, usageError{errors.New("the picker has made no decision yet")}
	}
	return list.Items[0], nil
}

// maxRecord bounds one line of a decision log.
const maxRecord = 64 << 20

func findInLog(path, id string) (*v1alpha1.Decision, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, usageError{err}
	}
	defer f.Close()
	var found *v1alpha1.Decision
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxRecord)
	var broken error
	for n := 1; lines.Scan(); n++ {
		d := &v1alpha1.Decision{}
		// A log that is being written, or was cut, has lines that are no records.
		if err := json.Unmarshal(lines.Bytes(), d); err != nil {
			if broken == nil {
				broken = fmt.Errorf("%s:%d: not a decision record: %w", path, n, err)
			}
			continue
		}
		if id == newestID || d.ID == id {
			found = d
		}
	}
	if err := lines.Err(); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	if found == nil {
		return nil, usageError{errors.Join(fmt.Errorf("%s: no decision with the id %q", path, id), broken)}
	}
	return found, nil
}
