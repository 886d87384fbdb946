package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// envoyLimit is how long an Envoy may take to start; an idle machine needs less
// than a second.
const envoyLimit = 30 * time.Second

// An envoyProcess is a running Envoy.
type envoyProcess struct {
	// Gateway is the ip:port that clients connect to, Admin Envoy's own.
	Gateway, Admin string

	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{}
}

// startEnvoy runs the binary on a bootstrap with one listener, port 0, and an
// admin endpoint, port 0. Its log goes beside the bootstrap.
func startEnvoy(ctx context.Context, client *http.Client, binary, bootstrap string) (*envoyProcess, error) {
	dir := filepath.Dir(bootstrap)
	adminFile := filepath.Join(dir, "envoy.admin")
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		return nil, err
	}
	e := &envoyProcess{log: log, ended: make(chan struct{})}
	e.cmd = exec.Command(binary, "-c", bootstrap, "--concurrency", "1", "--disable-hot-restart",
		"--admin-address-path", adminFile, "-l", "warning")
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if err := e.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("the gateway does not start: %w", err), log.Close())
	}
	go func() {
		// How it ended is told by its log.
		_ = e.cmd.Wait()
		close(e.ended)
	}()
	err = until(ctx, envoyLimit, "Envoy is ready", func() (bool, error) { return e.ready(ctx, client, adminFile) })
	if err != nil {
		err = fmt.Errorf("%w%s", err, e.lastWords())
		e.stop()
		return nil, err
	}
	return e, nil
}

// stop ends the process and waits for its end.
func (e *envoyProcess) stop() {
	// It is an error if the process has ended already.
	_ = e.cmd.Process.Kill()
	<-e.ended
	_ = e.log.Close()
}

// ready fills in the addresses as soon as Envoy serves.
func (e *envoyProcess) ready(ctx context.Context, client *http.Client, adminFile string) (bool, error) {
	select {
	case <-e.ended:
		return false, errors.New("the gateway, Envoy, ended by itself")
	default:
	}
	address, err := os.ReadFile(adminFile)
	if err != nil || len(address) == 0 {
		return false, nil
	}
	e.Admin = string(address)
	state, err := get(ctx, client, "http://"+e.Admin+"/ready")
	if err != nil || !strings.Contains(string(state), "LIVE") {
		return false, nil
	}
	page, err := get(ctx, client, "http://"+e.Admin+"/listeners?format=json")
	if err != nil {
		return false, err
	}
	var listeners struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(page, &listeners); err != nil || len(listeners.Statuses) != 1 {
		return false, fmt.Errorf("the gateway does not tell its one listener: %q", page)
	}
	socket := listeners.Statuses[0].Local.Socket
	e.Gateway = net.JoinHostPort(socket.Address, strconv.Itoa(socket.Port))
	return true, nil
}

// lastWords is the end of Envoy's log, for an error; empty if it said nothing.
func (e *envoyProcess) lastWords() string {
	const most = 2 << 10
	text, err := os.ReadFile(e.log.Name())
	if err != nil || len(text) == 0 {
		return ""
	}
	return "; Envoy's log ends with:\n" + strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

// pollEvery is how often a condition is looked at.
const pollEvery = 50 * time.Millisecond

// until waits for a condition. The error says what was waited for, or is that
// of the condition or the context.
func until(ctx context.Context, limit time.Duration, what string, holds func() (bool, error)) error {
	again := time.NewTicker(pollEvery)
	defer again.Stop()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		ok, err := holds()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil || ok:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("not within %s: %s", limit, what)
		case <-again.C:
		}
	}
}

// get is the body of a page that is answered with 200.
func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return page, err
}
