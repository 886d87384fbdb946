package refusal

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
)

func TestALineIsWrittenOncePerSecondAndCountsTheOthers(t *testing.T) {
	var lines []string
	ctx := logr.NewContext(context.Background(),
		funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	name := plugin.TypedName{Type: "health", Name: "mine"}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

	var l Log
	for _, at := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond, time.Second, -time.Hour, -time.Hour + 1} {
		l.Say(ctx, start.Add(at), name, "intent_expired")
	}
	var unlogged []string
	for _, line := range lines {
		if !strings.Contains(line, `"plugin"="mine/health"`) || !strings.Contains(line, `"reason"="intent_expired"`) {
			t.Errorf("the line is %s, want the plugin and the reason", line)
		}
		_, n, _ := strings.Cut(line, `"unlogged"=`)
		unlogged = append(unlogged, n)
	}
	// The fifth is written for the clock that was set back, the last one is not.
	if want := []string{"0", "2", "0"}; !slices.Equal(unlogged, want) {
		t.Errorf("lines count %v that were not written, want %v", unlogged, want)
	}
}

func TestWithoutALoggerNothingIsSaid(t *testing.T) {
	var l Log
	l.Say(context.Background(), time.Unix(1, 0), plugin.TypedName{}, "intent_expired")
	if l.unsaid != 0 {
		t.Errorf("%d lines were held back, want none", l.unsaid)
	}
}
