// Package refusal says in the log why a filter leaves no endpoint. A stock EPP
// answers such a request with 429 and tells nobody the reason.
package refusal

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
)

// interval is the least time between two lines of one filter: what clients send
// must not fill the log.
const interval = time.Second

// Log writes at most one line per second. It may be used concurrently. The zero
// value is ready.
type Log struct {
	mu     sync.Mutex
	next   time.Time
	unsaid int
}

// Say writes to the logger of ctx that a filter left no endpoint at now. The reason
// is a token: it must not hold anything that a client sent.
func (l *Log) Say(ctx context.Context, now time.Time, name plugin.TypedName, reason string) {
	unsaid, ok := l.admit(now)
	if !ok {
		return
	}
	logr.FromContextOrDiscard(ctx).Info("filter left no endpoint",
		"plugin", name.String(), "reason", reason, "unlogged", unsaid)
}

// admit reports whether a line may be written now, and how many were not since the
// last one.
func (l *Log) admit(now time.Time) (unsaid int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A clock that was set back must not silence the log until it has caught up.
	if now.Before(l.next) && l.next.Sub(now) <= interval {
		l.unsaid++
		return 0, false
	}
	unsaid, l.unsaid = l.unsaid, 0
	l.next = now.Add(interval)
	return unsaid, true
}
