package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/console"
)

type topDocument struct {
	Version   string                 `json:"version"`
	Kind      string                 `json:"kind"`
	Time      time.Time              `json:"time"`
	Replicas  []v1alpha1.Observation `json:"replicas"`
	Decisions []*v1alpha1.Decision   `json:"decisions"`
}

func topCommand(out *output) *cobra.Command {
	var (
		from     reports
		interval time.Duration
		once     bool
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the fleet: replicas, the age of what is known of them, and where requests go",
		Long: "top shows the replicas of a running picker, one in a row:\n\n" +
			"  ENGINE     the kind of engine by its page, and what is declared where that is another\n" +
			"  STATE      normal; last: is picked after all others; or why no request is sent there\n" +
			"  TELEMETRY  the worst state of queueDepth, activeRequests and kvCacheUtilization, and why the last\n" +
			"             page was not read where it was not\n" +
			"  AGE        of the newest of these three readings\n" +
			"  QUEUE, ACTIVE, KV\n" +
			"             the three by the engine's own word; (n) is stale: what was said last\n" +
			"  IN FLIGHT  requests that this picker has there now\n" +
			"  PICKS      how many of the last 1000 decisions chose it\n" +
			"  TTFT       the time to the first token of those of the last 1000 that it served\n\n" +
			"berthctl observe NAME shows all that the picker knows of one of them. With -o json or yaml, top looks\n" +
			"once and prints the observations of all replicas and the decisions.",
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond || interval > time.Hour {
				return usageError{fmt.Errorf("--interval: %s: must be from 100ms to 1h", interval)}
			}
			w := cmd.OutOrStdout()
			live := !once && out.format == "table" && w == io.Writer(os.Stdout) && term.IsTerminal(int(os.Stdout.Fd()))
			return watchTop(cmd.Context(), w, out, &from, interval, once || out.format != "table", live)
		},
	}
	from.flag(cmd)
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "`TIME` between two looks")
	cmd.Flags().BoolVar(&once, "once", false, "look once and end")
	return cmd
}

// clearScreen puts the cursor home and clears what is below.
const clearScreen = "\x1b[H\x1b[J"

func watchTop(ctx context.Context, w io.Writer, out *output, from *reports, interval time.Duration, once, live bool) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		doc, err := look(ctx, from)
		if err != nil {
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
		if live {
			fmt.Fprint(w, clearScreen)
		}
		err = out.print(w, doc, func(w io.Writer) error {
			fmt.Fprintf(w, "%s  %d replicas, last %d decisions\n", doc.Time.Format(time.TimeOnly), len(doc.Replicas), len(doc.Decisions))
			return console.Fleet(w, doc.Time, doc.Replicas, doc.Decisions)
		})
		if err != nil || once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func look(ctx context.Context, from *reports) (*topDocument, error) {
	var replicas struct {
		Items []v1alpha1.Observation `json:"items"`
	}
	var decisions struct {
		Items []*v1alpha1.Decision `json:"items"`
	}
	if err := from.get(ctx, replicasPath, &replicas); err != nil {
		return nil, err
	}
	if err := from.get(ctx, decisionsPath+"?limit=1000", &decisions); err != nil {
		return nil, err
	}
	return &topDocument{
		Version: v1alpha1.Version, Kind: "Top", Time: time.Now(),
		Replicas: replicas.Items, Decisions: decisions.Items,
	}, nil
}
