//go:build race

package engine

// raceEnabled: the race detector makes sync.Pool drop values at random.
const raceEnabled = true
