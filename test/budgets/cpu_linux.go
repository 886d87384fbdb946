package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// processCPU is the CPU time that a process has taken so far, user and system,
// all threads, in the resolution of the scheduler.
func processCPU(pid int) (time.Duration, error) {
	// A process's clock is its complemented id, shifted by three, with
	// CPUCLOCK_SCHED in the low bits (linux/posix-timers.h).
	const schedulerClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|schedulerClock, &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
