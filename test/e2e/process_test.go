package e2e

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// A process is a picker of its own: berth-epp as it is shipped.
type process struct {
	cmd                     *exec.Cmd
	ended                   chan struct{}
	extproc, metrics, admin string // ip:port
}

// buildPicker builds berth-epp and returns its path.
func buildPicker(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "berth-epp")
	build := exec.Command("go", "build", "-o", binary, "../../cmd/berth-epp")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building berth-epp: %v\n%s", err, out)
	}
	return binary
}

// startProcess starts a built berth-epp and returns when it serves. Decisions go
// to log.
func startProcess(t *testing.T, binary, config string, log *records, extproc string) *process {
	t.Helper()
	p := &process{ended: make(chan struct{})}
	const free = "127.0.0.1:0"
	p.cmd = exec.Command(binary, "--config", config, "--extproc-address", extproc,
		"--health-address", free, "--metrics-address", free, "--admin-address", free)
	p.cmd.Stdout = log
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said buffer
	serving := make(chan struct{})
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(stderr)
		for announced := false; lines.Scan(); {
			_, _ = said.Write(append(lines.Bytes(), '\n'))
			var line struct{ Msg, Extproc, Metrics, Admin string }
			if announced || json.Unmarshal(lines.Bytes(), &line) != nil || line.Msg != "serving" {
				continue
			}
			p.extproc, p.metrics, p.admin = line.Extproc, line.Metrics, line.Admin
			announced = true
			close(serving)
		}
		// Killed is how it ends here.
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("berth-epp said:\n%s", said.String())
		}
	})
	select {
	case <-serving:
	case <-p.ended:
		t.Fatalf("berth-epp ended by itself:\n%s", said.String())
	}
	return p
}

// kill ends the process without giving it a chance, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}
