package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/host"
)

// pickerRole is the first argument that makes this binary a picker.
const pickerRole = "picker"

// insight is what only the picker's process itself can tell.
type insight struct {
	Goroutines int
	// Heap and Stacks are bytes in use after garbage collection.
	Heap, Stacks uint64
}

// playPicker is the picker. Its argument is the configuration file. It tells
// where it listens on its first line, then answers each line with an insight,
// until its standard input ends, so that none outlives the parent.
func playPicker(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("want one argument, the configuration file")
	}
	// What berth-epp sets for itself.
	const gcPercent, baseMemory = 400, 512 << 20
	debug.SetGCPercent(gcPercent)
	const anyPort = "127.0.0.1:0"
	h, err := host.Start(ctx, host.Options{
		ConfigFile:     args[0],
		ExtProcAddress: anyPort, HealthAddress: anyPort, MetricsAddress: anyPort, AdminAddress: anyPort,
		DecisionLog: io.Discard,
		Log:         zap.NewNop(),
		Buffered:    func(bytes int64) { debug.SetMemoryLimit(2*bytes + baseMemory) },
	})
	if err != nil {
		return err
	}
	defer h.Stop()
	fmt.Println(h.ExtProcAddr(), h.MetricsAddr())
	out := json.NewEncoder(os.Stdout)
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		if err := out.Encode(look()); err != nil {
			return err
		}
	}
	return nil
}

func look() insight {
	// The second collection empties what sync.Pool keeps over one.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return insight{Goroutines: runtime.NumGoroutine(), Heap: m.HeapAlloc, Stacks: m.StackInuse}
}

// picker is a picker in a process of its own.
type picker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// file is its configuration.
	file string
	// address is where it takes ext_proc streams, page where its metrics are.
	address, page string
}

// startPicker starts a picker on a configuration.
func (s *session) startPicker(c configuration) (*picker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.dir, "picker-")
	if err != nil {
		return nil, err
	}
	p := &picker{file: filepath.Join(dir, "berth.yaml")}
	if err := p.configure(c); err != nil {
		return nil, err
	}
	p.cmd = exec.CommandContext(s.ctx, self, pickerRole, p.file)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := p.out.ReadString('\n')
	addresses := strings.Fields(line)
	if err != nil || len(addresses) != 2 {
		return nil, fmt.Errorf("the picker does not start: it says %q: %w", line, errors.Join(err, p.stop()))
	}
	p.address, p.page = addresses[0], "http://"+addresses[1]+"/metrics"
	return p, nil
}

// stop ends the picker. The error says how it ended, if not well.
func (p *picker) stop() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the picker ended: %w", err)
	}
	return nil
}

// configure puts a configuration in place of the one that is there, in one step.
func (p *picker) configure(c configuration) error {
	next := p.file + ".next"
	if err := os.WriteFile(next, []byte(c.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(next, p.file)
}

// reading is a picker at one moment.
type reading struct {
	goroutines, descriptors int
	// heap and stacks are what is in use after garbage collection, resident what
	// the process has of memory now, and peak the most that it ever had: bytes.
	heap, stacks, resident, peak float64
	*page
}

func (p *picker) read(ctx context.Context) (reading, error) {
	var r reading
	var err error
	if r.page, err = p.metrics(ctx); err != nil {
		return r, err
	}
	if _, err := fmt.Fprintln(p.in); err != nil {
		return r, fmt.Errorf("the picker ended by itself: %w", err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return r, fmt.Errorf("the picker ended by itself: %w", err)
	}
	var i insight
	if err := json.Unmarshal(line, &i); err != nil {
		return r, fmt.Errorf("the picker answers %q: %w", line, err)
	}
	r.goroutines, r.heap, r.stacks = i.Goroutines, float64(i.Heap), float64(i.Stacks)
	process := "/proc/" + strconv.Itoa(p.cmd.Process.Pid)
	open, err := os.ReadDir(process + "/fd")
	if err != nil {
		return r, err
	}
	r.descriptors = len(open)
	status, err := os.ReadFile(process + "/status")
	if err != nil {
		return r, err
	}
	r.resident, r.peak = statusBytes(string(status), "VmRSS"), statusBytes(string(status), "VmHWM")
	return r, nil
}

// statusBytes reads a size from /proc/PID/status; NaN if it is not there.
func statusBytes(status, name string) float64 {
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != name+":" || fields[2] != "kB" {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
			return float64(n) * kibibyte
		}
	}
	return math.NaN()
}

// metrics reads the picker's page, on a connection that it does not keep.
func (p *picker) metrics(ctx context.Context) (*page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.page, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reading the picker's metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("reading the picker's metrics: %s", resp.Status)
	}
	return parsePage(resp.Body)
}
