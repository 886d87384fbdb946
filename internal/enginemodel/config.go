package enginemodel

import (
	"errors"
	"fmt"
	"time"
)

// Defaults of Config. They describe a small engine whose requests last between a tenth of a second and a second, so that a
// demo on one machine shows queues and cache hits within seconds.
const (
	DefaultMaxRunning       = 32
	DefaultMaxBatchedTokens = 512
	DefaultPrefillRate      = 8000
	DefaultStepBase         = 6 * time.Millisecond
	DefaultPerSequence      = 100 * time.Microsecond
	DefaultBlocks           = 4096
	DefaultBlockTokens      = 16
)

// Config says how large and how fast an engine is. The zero value of a field means its default, except where noted.
type Config struct {
	// MaxRunning is the largest number of requests in the batch (vLLM's max_num_seqs). At least 1; default 32.
	MaxRunning int
	// MaxBatchedTokens is the token budget of one step (vLLM's max_num_batched_tokens). At least MaxRunning, since each
	// decoding request takes one token; default 512, or MaxRunning if that is larger.
	MaxBatchedTokens int
	// PrefillRate is how many prompt tokens are computed in a second. Above 0; default 8000.
	PrefillRate float64
	// StepBase is the time that each step takes, however small the batch. Above 0; default 6 ms.
	StepBase time.Duration
	// PerSequence is the time that each sequence adds to its step. Above 0; default 100 µs.
	PerSequence time.Duration
	// Jitter is the largest relative deviation of a step's duration, drawn uniformly from the seeded generator. From 0
	// (the default: none) to below 1.
	Jitter float64
	// Speed divides every step's duration: 2 is twice as fast. Above 0; default 1. SetSpeed changes it while running.
	Speed float64
	// Blocks is the size of the KV cache in blocks. At least 1; default 4096.
	Blocks int
	// BlockTokens is the number of tokens in one block. At least 1; default 16.
	BlockTokens int
	// DisablePrefixCache switches prefix reuse off: nothing is published, queried or hit.
	DisablePrefixCache bool
}

// WithDefaults returns the configuration with each zero field replaced by its default.
func (c Config) WithDefaults() Config {
	setDefault(&c.MaxRunning, DefaultMaxRunning)
	setDefault(&c.MaxBatchedTokens, max(DefaultMaxBatchedTokens, c.MaxRunning))
	setDefault(&c.PrefillRate, DefaultPrefillRate)
	setDefault(&c.StepBase, DefaultStepBase)
	setDefault(&c.PerSequence, DefaultPerSequence)
	setDefault(&c.Speed, 1)
	setDefault(&c.Blocks, DefaultBlocks)
	setDefault(&c.BlockTokens, DefaultBlockTokens)
	return c
}

// Validate checks the configuration as it stands; call it on WithDefaults if zero fields are meant as defaults. The error
// joins one error per bad field, each with the field, its value and what is allowed.
func (c Config) Validate() error {
	var bad []error
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			bad = append(bad, refusal(field, value, allowed))
		}
	}
	// Comparisons are written so that NaN fails them.
	check(c.MaxRunning >= 1, "MaxRunning", c.MaxRunning, "at least 1")
	check(c.MaxBatchedTokens >= max(1, c.MaxRunning), "MaxBatchedTokens", c.MaxBatchedTokens,
		fmt.Sprintf("at least MaxRunning (%d)", c.MaxRunning))
	check(c.PrefillRate > 0 && c.PrefillRate <= maxRate, "PrefillRate", c.PrefillRate, "above 0 and at most 1e+09 tokens/s")
	check(c.StepBase > 0 && c.StepBase <= maxStep, "StepBase", c.StepBase, "above 0 and at most 1h")
	check(c.PerSequence > 0 && c.PerSequence <= maxStep, "PerSequence", c.PerSequence, "above 0 and at most 1h")
	check(c.Jitter >= 0 && c.Jitter < 1, "Jitter", c.Jitter, "at least 0 and below 1")
	check(validSpeed(c.Speed), "Speed", c.Speed, allowedSpeed)
	check(c.Blocks >= 1 && c.Blocks <= maxBlocks, "Blocks", c.Blocks, "from 1 to 16777216")
	check(c.BlockTokens >= 1 && c.BlockTokens <= maxBlockTokens, "BlockTokens", c.BlockTokens, "from 1 to 65536")
	return errors.Join(bad...)
}

// Upper bounds keep every product of them far from overflow.
const (
	maxRate        = 1e9
	maxStep        = time.Hour
	maxBlocks      = 1 << 24
	maxBlockTokens = 1 << 16
)

const allowedSpeed = "from 1e-06 to 1e+06"

func validSpeed(s float64) bool { return s >= 1e-6 && s <= 1e6 }

// refusal is the error of one field.
func refusal(field string, value any, allowed string) error {
	return fmt.Errorf("%s: %v: must be %s", field, value, allowed)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
