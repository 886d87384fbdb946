package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// roles are what this binary is when it is started as a child. Each says where
// it listens on its first line, then answers a line with a line until its
// standard input ends, so that none outlives the parent.
func roles() map[string]func(ctx context.Context, args []string) error {
	return map[string]func(ctx context.Context, args []string) error{
		"empty-server": playEmptyServer,
		"picker":       playPicker,
		"engines":      playEngines,
	}
}

// child is a process that was started to be measured.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// address is where it takes ext_proc streams, if it does.
	address string
}

func (s *session) start(binary string, args ...string) (*child, error) {
	cmd := exec.CommandContext(s.ctx, binary, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd: cmd, in: in, out: bufio.NewReader(out)}, nil
}

// play starts this binary in one of its roles.
func (s *session) play(role string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c, err := s.start(self, append([]string{role}, args...)...)
	if err != nil {
		return nil, err
	}
	if c.address, err = c.line(); err != nil {
		c.stop()
		return nil, fmt.Errorf("%s: %w", role, err)
	}
	return c, nil
}

func (c *child) line() (string, error) {
	line, err := c.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

// ask sends one line of numbers and reads two back.
func (c *child) ask(first, second *float64, numbers ...any) error {
	if _, err := fmt.Fprintln(c.in, numbers...); err != nil {
		return fmt.Errorf("asking a child process: %w", err)
	}
	line, err := c.line()
	if err == nil {
		_, err = fmt.Sscan(line, first, second)
	}
	if err != nil {
		return fmt.Errorf("a child process answers %q, want two numbers: %w", line, err)
	}
	return nil
}

// cpu is the CPU time that the child has taken, once it takes no more.
func (c *child) cpu(ctx context.Context) (time.Duration, error) {
	const pause, quiet = 20 * time.Millisecond, 200 * time.Microsecond
	before, err := processCPU(c.cmd.Process.Pid)
	for err == nil {
		if err = wait(ctx, pause); err != nil {
			break
		}
		var after time.Duration
		if after, err = processCPU(c.cmd.Process.Pid); err == nil && after-before < quiet {
			return after, nil
		}
		before = after
	}
	return 0, err
}

// stop ends the child; it has nothing to say any more.
func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Wait()
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// listeners are the picker's, each on a free port of the loopback.
var listeners = []string{
	"--extproc-address=127.0.0.1:0", "--health-address=127.0.0.1:0",
	"--metrics-address=127.0.0.1:0", "--admin-address=127.0.0.1:0",
}

// startPicker starts berth-epp on a configuration, its decision log going to
// the null device. For a profile, the same picker runs in this binary.
func (s *session) startPicker(name, config string) (*child, error) {
	file := filepath.Join(s.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if s.profiles != "" {
		return s.play("picker", file, filepath.Join(s.profiles, name+".pprof"))
	}
	if s.epp == "" {
		epp := filepath.Join(s.dir, "berth-epp")
		if err := s.build(s.root, "./cmd/berth-epp", epp); err != nil {
			return nil, err
		}
		s.epp = epp
	}
	cmd := exec.CommandContext(s.ctx, s.epp, append([]string{"--config=" + file}, listeners...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in, out: bufio.NewReader(log)}
	if err := c.awaitServing(); err != nil {
		c.stop()
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, c.out) }()
	return c, nil
}

// awaitServing reads the picker's log up to the line that tells its addresses.
func (c *child) awaitServing() error {
	for last := ""; ; {
		line, err := c.line()
		if err != nil {
			return fmt.Errorf("berth-epp ended, after saying %q: %w", last, err)
		}
		last = line
		var said struct{ Msg, Extproc string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "serving" {
			c.address = said.Extproc
			return nil
		}
	}
}

// setup is a picker without telemetry over so many endpoints, whose records list
// up to candidates of them and of which ring stay in memory.
type setup struct{ endpoints, candidates, ring int }

func (c setup) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: kv-cache-utilization}
- {name: load, type: active-requests}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth, weight: 2}
  - {pluginRef: kv-cache-utilization, weight: 2}
  - {pluginRef: load, weight: 1}
  - {pluginRef: berth-picker}
---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
telemetry: {mode: none}
ledger: {candidates: %d, ring: %d}
limits: {drain: 0s}
---
apiVersion: berth.dev/v1alpha1
kind: StaticPool
metadata: {name: budgets}
endpoints:
`, c.candidates, c.ring)
	for _, s := range specs(c.endpoints) {
		fmt.Fprintf(&b, "- {name: %q, address: %s, port: %d, servedModels: [%s]}\n", s.Name, s.Address.Addr(), s.Address.Port(), model)
	}
	return b.String()
}
