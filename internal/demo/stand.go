package demo

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/gateway"
	"github.com/berth-dev/berth/internal/host"
)

//go:embed *.tmpl
var files embed.FS

// fallbacks is how many replicas follow the pick: all others.
const fallbacks = 3

// ring is how many decisions the picker keeps: more than a run of the defaults
// makes.
const ring = 4000

// A stand is a fleet and what stands before it: Envoy, and unless Envoy goes
// round robin, the picker.
type stand struct {
	*fleet
	envoy *envoyProcess
	// config is the path of the picker's configuration.
	config string

	client    *http.Client
	picker    *host.Host
	stopWatch context.CancelFunc
	log       []*os.File
}

// A front builds the Envoy, and what it needs, before the fleet of a stand.
type front func(ctx context.Context, s *stand, binary, dir string) error

// newStand starts a fleet and its front. Files go into dir, which is made.
func newStand(ctx context.Context, client *http.Client, binary, dir string, sh shape, before front) (*stand, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := startFleet(sh)
	if err != nil {
		return nil, err
	}
	s := &stand{fleet: f, client: client}
	if err := before(ctx, s, binary, dir); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close ends everything, from the client's side on.
func (s *stand) close() {
	if s.envoy != nil {
		s.envoy.stop()
	}
	if s.picker != nil {
		s.picker.Stop()
		s.stopWatch()
	}
	s.client.CloseIdleConnections()
	s.fleet.close()
	for _, f := range s.log {
		_ = f.Close()
	}
}

// roundRobin is Envoy alone.
func roundRobin(ctx context.Context, s *stand, binary, dir string) error {
	bootstrap, err := write(dir, "envoy.yaml", "roundrobin.yaml.tmpl", s.replicas)
	if err != nil {
		return err
	}
	s.envoy, err = startEnvoy(ctx, s.client, binary, bootstrap)
	return err
}

// throughPicker is an Envoy that asks a picker. It returns when the picker has
// read every replica.
func throughPicker(ctx context.Context, s *stand, binary, dir string) error {
	if err := s.startPicker(dir); err != nil {
		return err
	}
	options := gateway.Options{
		ListenAddress: "127.0.0.1:0",
		AdminAddress:  "127.0.0.1:0",
		PickerAddress: s.picker.ExtProcAddr().String(),
		Fallbacks:     fallbacks,
		AccessLog:     filepath.Join(dir, "access.log"),
	}
	for _, r := range s.replicas {
		options.Endpoints = append(options.Endpoints, gateway.Endpoint{Name: r.Name, Address: r.Address})
	}
	bootstrap, err := gateway.WriteFiles(dir, options)
	if err != nil {
		return err
	}
	if s.envoy, err = startEnvoy(ctx, s.client, binary, bootstrap); err != nil {
		return err
	}
	return until(ctx, pickerLimit, "the picker has read every replica", func() (bool, error) {
		replicas, err := s.observe(ctx)
		if err != nil {
			return false, err
		}
		for i := range replicas {
			if replicas[i].Order != orderNormal || loadState(&replicas[i]) != v1alpha1.Fresh {
				return false, nil
			}
		}
		return true, nil
	})
}

// pickerLimit is how long the picker may take to notice what became of a
// replica.
const pickerLimit = 30 * time.Second

func (s *stand) startPicker(dir string) (err error) {
	s.config, err = write(dir, "berth.yaml", "berth.yaml.tmpl", map[string]any{
		"Fallbacks": fallbacks, "Ring": ring, "Replicas": s.replicas, "Model": model,
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"berth.log", "decisions.jsonl"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		s.log = append(s.log, f)
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	// The picker outlives the context of its start; close ends it in order.
	watch, stop := context.WithCancel(context.Background())
	s.picker, err = host.Start(watch, host.Options{
		ConfigFile:     s.config,
		ExtProcAddress: "127.0.0.1:0", HealthAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0", AdminAddress: "127.0.0.1:0",
		Log:         zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(encoding), zapcore.Lock(s.log[0]), zap.InfoLevel)),
		DecisionLog: s.log[1],
	})
	if err != nil {
		stop()
		return fmt.Errorf("the picker does not start: %w", err)
	}
	s.stopWatch = stop
	return nil
}

// gatewayURL and reportsURL are where clients and operators go.
func (s *stand) gatewayURL() string { return "http://" + s.envoy.Gateway }
func (s *stand) reportsURL() string { return "http://" + s.picker.AdminAddr().String() }

const orderNormal = "normal"

// loadState is the worst state among a replica's load fields.
func loadState(o *v1alpha1.Observation) v1alpha1.State {
	worst := v1alpha1.Fresh
	for _, field := range []string{"queueDepth", "activeRequests", "kvCacheUtilization"} {
		if state := o.Fields[field].State; state != v1alpha1.Fresh {
			worst = state
		}
	}
	return worst
}

// observe reads the picker's report of the replicas.
func (s *stand) observe(ctx context.Context) ([]v1alpha1.Observation, error) {
	return report[v1alpha1.Observation](ctx, s, "/v1alpha1/replicas")
}

// decisions reads the picker's record of every request of the run, the newest
// first.
func (s *stand) decisions(ctx context.Context) ([]*v1alpha1.Decision, error) {
	return report[*v1alpha1.Decision](ctx, s, fmt.Sprintf("/v1alpha1/decisions?limit=%d", ring))
}

func report[T any](ctx context.Context, s *stand, path string) ([]T, error) {
	page, err := get(ctx, s.client, s.reportsURL()+path)
	if err != nil {
		return nil, fmt.Errorf("the picker's report: %w", err)
	}
	var list struct {
		Items []T `json:"items"`
	}
	if err := json.Unmarshal(page, &list); err != nil {
		return nil, fmt.Errorf("the picker's report %s: %w", path, err)
	}
	return list.Items, nil
}

// write fills in a template and returns the path of the result.
func write(dir, name, from string, data any) (string, error) {
	t, err := template.ParseFS(files, from)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, data); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, text.Bytes(), 0o644)
}
