//go:build !linux

package main

import (
	"errors"
	"time"
)

func processCPU(int) (time.Duration, error) {
	return 0, errors.New("the CPU clock of a process: needs Linux")
}
