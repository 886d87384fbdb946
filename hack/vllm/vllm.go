// Package vllm finds a real vLLM for CPUs, for the end-to-end test that needs
// one.
//
// vLLM is Python. pip installs a release that was built for CPUs, and all that it
// needs, into a virtual environment in the user's cache directory:
//
//	<cache>/berth/vllm/<version>-py<version of Python>-<first 8 hex digits of the requirements' SHA-256>
//
// Every file is pinned by version and SHA-256 in requirements.txt, which lock.py
// makes. The first installation downloads about 2.9 GB and takes 6 GB of disk:
// the package index carries torch only with the libraries for CUDA, which it
// loads even where there is no GPU. Later runs touch neither pip nor the network.
// pip is used the way the machine has it configured: index, mirror, proxy and
// certificates are its own business.
//
// The environment variable VLLM_PYTHON names, by its absolute path, the Python
// interpreter of an environment that has a vLLM already; then nothing is
// installed and its version is not looked at.
package vllm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// Version is the release of vLLM that Python gets.
const Version = "0.32.0"

// EnvVar is the environment variable that names an interpreter to use instead of
// an installation.
const EnvVar = "VLLM_PYTHON"

//go:embed requirements.txt
var requirements []byte

// pythons are the versions of Python that requirements.txt has files for.
var pythons = []string{"3.11", "3.12", "3.13"}

// ErrUnusable is what every error of Python is, beside its cause: there is no
// vLLM to run here.
var ErrUnusable = errors.New("no usable vLLM")

// Python returns the absolute path of a Python interpreter that can import vllm:
// the one that VLLM_PYTHON names, else that of the cached environment, else that
// of one that it installs now. What it does at length is told to progress, a line
// at a time; progress may be nil.
//
// Any number of goroutines and processes may call Python at the same time: each
// gets a complete environment. Where the cache is empty, each may install its own
// copy, and the first one stays.
func Python(ctx context.Context, progress io.Writer) (string, error) {
	if progress == nil {
		progress = io.Discard
	}
	path, err := find(ctx, progress)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return path, nil
}

func find(ctx context.Context, progress io.Writer) (string, error) {
	if named := os.Getenv(EnvVar); named != "" {
		return named, checkNamed(named)
	}
	if err := checkMachine(runtime.GOOS, runtime.GOARCH); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory to keep vLLM in: %w; %s", err, advice)
	}
	in := installer{
		python:       "python3",
		requirements: requirements,
		imports:      []string{"vllm", "torch"},
		dir:          filepath.Join(cache, "berth", "vllm"),
		progress:     progress,
	}
	return in.path(ctx)
}

// advice ends the errors that a machine's owner can get around by bringing a
// vLLM along.
const advice = "or set " + EnvVar + " to the absolute path of a Python that can import vllm"

// checkMachine says what is supported, if the machine is not.
func checkMachine(goos, goarch string) error {
	if goos != "linux" || !slices.Contains([]string{"amd64", "arm64"}, goarch) {
		return fmt.Errorf("release %s can be installed on linux/amd64 and linux/arm64 only, this is %s/%s; %s", Version, goos, goarch, advice)
	}
	return nil
}

// checkNamed says whether the interpreter that VLLM_PYTHON names can be run. A
// relative path is refused: what it means would depend on who asks.
func checkNamed(named string) error {
	if !filepath.IsAbs(named) {
		return fmt.Errorf("%s=%q is not an absolute path", EnvVar, named)
	}
	info, err := os.Stat(named)
	switch {
	case err != nil:
		return fmt.Errorf("%s=%q does not exist or cannot be read: %w", EnvVar, named, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s=%q is not a regular file", EnvVar, named)
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s=%q is not executable (mode %v)", EnvVar, named, info.Mode().Perm())
	}
	return nil
}
