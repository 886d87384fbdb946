package host

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/berth-dev/berth/internal/certificate"
)

// What Options.ExtProcTLS may be beside a directory.
const (
	TLSOff        = "off"
	TLSSelfSigned = "self-signed"
)

// identity is what the ext_proc listener shows of itself over TLS. A listener
// without TLS has none: nil.
type identity struct {
	pair    atomic.Pointer[tls.Certificate]
	files   *certificate.Files // nil where the pair was made at the start
	log     *zap.Logger
	reloads *prometheus.CounterVec
}

// newIdentity makes or reads the first pair. The error names the flag.
func newIdentity(mode string, m *metrics, log *zap.Logger) (*identity, error) {
	id := &identity{log: log}
	var pair *tls.Certificate
	var err error
	switch mode {
	case "", TLSOff:
		return nil, nil
	case TLSSelfSigned:
		pair, err = certificate.SelfSigned(time.Now())
	default:
		if info, statErr := os.Stat(mode); statErr == nil && !info.IsDir() || errors.Is(statErr, fs.ErrNotExist) {
			return nil, fmt.Errorf("--extproc-tls %s: no such directory: must be %s, %s, or a directory with %s and %s",
				mode, TLSOff, TLSSelfSigned, certificate.CertFile, certificate.KeyFile)
		}
		id.files, pair, err = certificate.Open(mode, time.Now)
	}
	if err != nil {
		return nil, fmt.Errorf("--extproc-tls %s: %w", mode, err)
	}
	id.pair.Store(pair)
	id.reloads = m.certificate(func() time.Time { return id.pair.Load().Leaf.NotAfter })
	return id, nil
}

// certificate adds what is known of the ext_proc listener's certificate, and
// returns the count of reloads by their result.
func (m *metrics) certificate(notAfter func() time.Time) *prometheus.CounterVec {
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_certificate_reloads_total", Help: "Reloads of the ext_proc listener's certificate by result.",
	}, []string{"result"})
	for _, result := range []string{"ok", "failed"} {
		reloads.WithLabelValues(result) // from 0 on, so that the first one is an increase
	}
	m.registry.MustRegister(reloads, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_certificate_expiry_timestamp_seconds",
		Help: "Unix time at which the ext_proc listener's certificate expires.",
	}, func() float64 { return float64(notAfter().Unix()) }))
	return reloads
}

// grpcOptions are what the ext_proc server needs to show it.
func (id *identity) grpcOptions() []grpc.ServerOption {
	if id == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(certificate.Config(id.pair.Load)))}
}

// follow gives new handshakes the pair that the directory has, until ctx ends.
func (id *identity) follow(ctx context.Context) {
	if id == nil || id.files == nil {
		return
	}
	err := id.files.Watch(ctx, func(pair *tls.Certificate, err error) {
		if err != nil {
			id.reloads.WithLabelValues("failed").Inc()
			id.log.Error("certificate not loaded; new connections get the last good one", zap.Error(err),
				zap.Time("goodUntil", id.pair.Load().Leaf.NotAfter))
			return
		}
		id.pair.Store(pair)
		id.reloads.WithLabelValues("ok").Inc()
		id.log.Info("certificate loaded", zap.String("serial", pair.Leaf.SerialNumber.Text(16)), zap.Time("notAfter", pair.Leaf.NotAfter))
	})
	if err != nil && ctx.Err() == nil {
		id.log.Error("the certificate is not watched", zap.Error(err))
	}
}
