package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a running program with a process group of its own.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// startProcess starts a program. What it says goes to NAME.log in dir.
func startProcess(name, dir string, env []string, program string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// What it starts itself belongs to the group, and ends with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s does not start: %w", name, err)
	}
	go func() {
		// How it ended is told by its log.
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stopTime is how long a process may take to end when asked: less than those who
// run this command may give it to end itself.
const stopTime = 5 * time.Second

// stop ends the process and all of its group. A nil process has ended.
func (p *process) stop() {
	if p == nil {
		return
	}
	group := -p.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	late := time.NewTimer(stopTime)
	defer late.Stop()
	select {
	case <-p.ended:
	case <-late.C:
	}
	// It is an error if nobody of the group is left.
	_ = syscall.Kill(group, syscall.SIGKILL)
	<-p.ended
}

// kill ends the process, and it alone, without giving it a chance.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.ended
	return err
}

// alive is an error with the process's last words once it has ended.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return errors.New(p.name + " ended by itself" + p.lastWords())
	default:
		return nil
	}
}

// lastWords is the end of what the process said, for an error; empty if it said
// nothing.
func (p *process) lastWords() string {
	const most = 4 << 10
	text, err := os.ReadFile(p.log)
	if err != nil || len(text) == 0 {
		return ""
	}
	return "; its log ends with:\n" + strings.TrimSpace(string(text[max(0, len(text)-most):]))
}
