package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultServer is where berth-epp's admin listener is unless told otherwise.
const defaultServer = "http://127.0.0.1:9091"

// maxReport bounds one report: a replica list of a large pool takes some MiB.
const maxReport = 256 << 20

// reports reads the documents of a picker's admin listener.
type reports struct {
	server string
	client *http.Client
}

func (r *reports) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.server, "server", defaultServer, "`URL` of the picker's admin listener")
	r.client = &http.Client{Timeout: 10 * time.Second}
}

// get reads one document into doc.
func (r *reports) get(ctx context.Context, path string, doc any) error {
	base, err := url.Parse(r.server)
	if err != nil || base.Host == "" {
		return usageError{fmt.Errorf("--server: %q: must be a URL such as %s", r.server, defaultServer)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(r.server, "/")+path, http.NoBody)
	if err != nil {
		return usageError{fmt.Errorf("--server: %q: %w", r.server, err)}
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return usageError{fmt.Errorf("--server %s: is the picker running there? %w", base.Redacted(), err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReport))
	if err != nil {
		return usageError{fmt.Errorf("--server %s: %w", base.Redacted(), err)}
	}
	if resp.StatusCode != http.StatusOK {
		var failure struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(body, &failure) != nil || failure.Error == "" {
			failure.Error = resp.Status + "; this is not a picker's admin listener"
		}
		return usageError{fmt.Errorf("%s%s: %s", base.Redacted(), path, failure.Error)}
	}
	if err := json.Unmarshal(body, doc); err != nil {
		return usageError{fmt.Errorf("%s%s: not a report of a picker: %w", base.Redacted(), path, err)}
	}
	return nil
}
