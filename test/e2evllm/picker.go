package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/gateway"
)

// fallbacks is how many replicas follow the pick: the other one.
const fallbacks = 1

// configuration is the picker's, with the pool inside. What the replicas serve is
// for them to say.
func (s *session) configuration() string {
	var text strings.Builder
	fmt.Fprintf(&text, `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: kv-cache-utilization}
- {type: active-requests}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth, weight: 2}
  - {pluginRef: kv-cache-utilization, weight: 2}
  - {pluginRef: active-requests, weight: 1}
  - {pluginRef: berth-picker}
---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
gateway: {fallbacks: %d}
acknowledgement: {responseHeaders: full}
limits: {drain: 1s}
---
apiVersion: berth.dev/v1alpha1
kind: StaticPool
metadata: {namespace: local, name: vllm}
endpoints:
`, fallbacks)
	for _, r := range s.replicas {
		a := netip.MustParseAddrPort(r.address)
		fmt.Fprintf(&text, "- {name: %s, address: %s, port: %d, engine: vllm}\n", r.name, a.Addr(), a.Port())
	}
	return text.String()
}

func (s *session) pickerBinary() string { return filepath.Join(s.dir, "berth-epp") }

func (s *session) buildPicker() error {
	build := exec.CommandContext(s.ctx, "go", "build", "-o", s.pickerBinary(), "github.com/berth-dev/berth/cmd/berth-epp")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building berth-epp: %w\n%s", err, out)
	}
	s.logf("picker: built")
	return nil
}

// serveLimit is how long the picker and the gateway may take to start.
const serveLimit = time.Minute

// picker's listeners, as its log tells them.
type listeners struct{ Msg, Extproc, Admin string }

func (s *session) startPicker() (err error) {
	config := filepath.Join(s.dir, "berth.yaml")
	if err := os.WriteFile(config, []byte(s.configuration()), 0o644); err != nil {
		return err
	}
	const free = "127.0.0.1:0"
	s.picker, err = startProcess("picker", s.dir, nil, s.pickerBinary(), "--config", config,
		"--extproc-address", free, "--health-address", free, "--metrics-address", free, "--admin-address", free)
	if err != nil {
		return err
	}
	return s.await("the picker serves", serveLimit, func() (bool, error) {
		l, serving := s.listeners()
		s.reports = l.Admin
		return serving, nil
	})
}

// listeners reads them in the picker's log.
func (s *session) listeners() (l listeners, serving bool) {
	text, err := os.ReadFile(s.picker.log)
	if err != nil {
		return listeners{}, false
	}
	for line := range bytes.Lines(text) {
		if json.Unmarshal(line, &l) == nil && l.Msg == "serving" {
			return l, true
		}
	}
	return listeners{}, false
}

func (s *session) startGateway() (err error) {
	l, _ := s.listeners()
	options := gateway.Options{
		ListenAddress: "127.0.0.1:0", AdminAddress: "127.0.0.1:0", PickerAddress: l.Extproc,
		Fallbacks: fallbacks, AccessLog: filepath.Join(s.dir, "access.log"),
	}
	for _, r := range s.replicas {
		options.Endpoints = append(options.Endpoints, gateway.Endpoint{Name: r.name, Address: netip.MustParseAddrPort(r.address)})
	}
	bootstrap, err := gateway.WriteFiles(s.dir, options)
	if err != nil {
		return err
	}
	adminFile := filepath.Join(s.dir, "envoy.admin")
	s.envoy, err = startProcess("envoy", s.dir, nil, s.envoyBinary, "-c", bootstrap, "--concurrency", "1",
		"--disable-hot-restart", "--admin-address-path", adminFile, "-l", "warning")
	if err != nil {
		return err
	}
	return s.await("Envoy serves", serveLimit, func() (bool, error) {
		admin, err := os.ReadFile(adminFile)
		if err != nil || len(admin) == 0 {
			return false, nil
		}
		_, state, err := s.get("http://" + string(admin) + "/ready")
		if err != nil || !strings.Contains(state, "LIVE") {
			return false, nil
		}
		_, page, err := s.get("http://" + string(admin) + "/listeners?format=json")
		if err != nil {
			return false, err
		}
		s.gateway, err = listenerOf(page)
		return err == nil, err
	})
}

// listenerOf is the ip:port of the one listener on Envoy's page of them.
func listenerOf(page string) (string, error) {
	var list struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(page), &list); err != nil || len(list.Statuses) != 1 {
		return "", fmt.Errorf("listeners of Envoy: %q, want one", page)
	}
	socket := list.Statuses[0].Local.Socket
	return net.JoinHostPort(socket.Address, strconv.Itoa(socket.Port)), nil
}

// observe is what the picker reports of a replica.
func (s *session) observe(r *replica) (*v1alpha1.Observation, error) {
	var list struct{ Items []*v1alpha1.Observation }
	if err := s.reported("/v1alpha1/replicas", &list); err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		if o.Replica.Name == r.name {
			return o, nil
		}
	}
	return nil, fmt.Errorf("the picker reports %d replicas, %s is none of them", len(list.Items), r.name)
}

// decision is the picker's record of a request that has ended, or was refused.
func (s *session) decision(id string) (d *v1alpha1.Decision, err error) {
	if id == "" {
		return nil, errors.New("the response names no decision")
	}
	// The client may see the end before the picker does.
	err = s.await("decision "+id+" has an end", patience, func() (bool, error) {
		d = &v1alpha1.Decision{}
		err := s.reported("/v1alpha1/decisions/"+id, d)
		return d.Outcome != nil || d.Refusal != nil, err
	})
	return d, err
}

func (s *session) reported(path string, into any) error {
	status, text, err := s.get("http://" + s.reports + path)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, text)
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), into)
	}
	if err != nil {
		return fmt.Errorf("the picker's report %s: %w", path, err)
	}
	return nil
}

// see waits until what is reported of a replica fulfils a condition, and returns
// the last report, which fulfils it unless that took too long.
func (s *session) see(r *replica, condition func(*v1alpha1.Observation) bool) (last *v1alpha1.Observation, err error) {
	_, err = s.until(patience, func() (bool, error) {
		var err error
		if last, err = s.observe(r); err != nil {
			return false, err
		}
		return condition(last), nil
	})
	return last, err
}

// quiet waits until the picker knows that every replica that lives has nothing
// to do.
func (s *session) quiet() error {
	for _, r := range s.replicas {
		if r.killed {
			continue
		}
		err := s.await("the picker sees "+r.name+" idle", patience, func() (bool, error) {
			o, err := s.observe(r)
			if err != nil {
				return false, err
			}
			idle := number(o, "activeRequests") == 0 && number(o, "queueDepth") == 0 && number(o, "kvCacheUtilization") == 0
			return idle && o.InFlight == 0 && o.Order == "normal" && o.Excluded == "", nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
