package enginesim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// Defaults of Config.
const (
	DefaultName         = "sim"
	DefaultModel        = "sim-model"
	DefaultMaxModelLen  = 8192
	DefaultOutputTokens = 48
)

// Config describes one simulated engine. The zero value of a field means its default.
type Config struct {
	// Name is what x-sim-engine says. Printable ASCII; default "sim".
	Name string
	// Models are the names under which the one model is served; the first is the one on the telemetry page (Triton's names none of them). None empty;
	// default one, "sim-model".
	Models []string
	// Root is what /v1/models calls the model itself. Default: the first of Models.
	Root string
	// MaxModelLen is the largest sum of prompt and output tokens. At least 2 and no more than the KV cache holds; default
	// 8192, or what the KV cache holds if that is less.
	MaxModelLen int
	// OutputTokens is the length of an answer without a limit. At least 1; default 48.
	OutputTokens int
	// Speed multiplies Engine.Speed. Above 0; default 1.
	Speed float64
	// Seed is the model's; it matters only if Engine.Jitter is set.
	Seed uint64
	// Engine describes the engine behind the API. Its defaults give a time to first token of tens of milliseconds for a short
	// prompt, and 6 to 10 ms for each further token.
	Engine enginemodel.Config
	// Background is the Load that each process starts with.
	Background Load
	// Dialect decides what everything but inference looks like. Default VLLM.
	Dialect Dialect
	// Clock is the time. Default: the real one.
	Clock Clock
}

func (c Config) withDefaults() Config {
	c.Engine = c.Engine.WithDefaults()
	if c.Name == "" {
		c.Name = DefaultName
	}
	c.Models = slices.Clone(c.Models)
	if len(c.Models) == 0 {
		c.Models = []string{DefaultModel}
	}
	if c.Root == "" {
		c.Root = c.Models[0]
	}
	if c.MaxModelLen == 0 {
		c.MaxModelLen = min(DefaultMaxModelLen, capacity(c.Engine))
	}
	if c.OutputTokens == 0 {
		c.OutputTokens = DefaultOutputTokens
	}
	if c.Speed == 0 {
		c.Speed = 1
	}
	c.Engine.Speed *= c.Speed
	if c.Dialect == nil {
		c.Dialect = VLLM{}
	}
	if c.Clock == nil {
		c.Clock = realClock{}
	}
	return c
}

// validate checks a configuration with its defaults filled in.
func (c Config) validate() error {
	var bad []error
	refuse := func(field string, err error) { bad = append(bad, fmt.Errorf("%s: %w", field, err)) }
	if i := indexFunc(c.Name, func(b byte) bool { return b < ' ' || b > '~' }); i >= 0 {
		refuse("Name", fmt.Errorf("%q: must be printable ASCII", c.Name))
	}
	if i := slices.Index(c.Models, ""); i >= 0 {
		refuse(fmt.Sprintf("Models[%d]", i), errors.New("empty: must not be empty"))
	}
	if room := capacity(c.Engine); c.MaxModelLen < 2 || c.MaxModelLen > room {
		refuse("MaxModelLen", fmt.Errorf("%d: must be from 2 to the %d tokens of the KV cache", c.MaxModelLen, room))
	}
	if c.OutputTokens < 1 {
		refuse("OutputTokens", fmt.Errorf("%d: must be at least 1", c.OutputTokens))
	}
	if !(c.Speed > 0) {
		refuse("Speed", fmt.Errorf("%v: must be above 0", c.Speed))
	}
	if err := c.Engine.Validate(); err != nil {
		refuse("Engine", err)
	}
	if err := c.Background.validate(c.Engine.MaxRunning); err != nil {
		refuse("Background", err)
	}
	return errors.Join(bad...)
}

func capacity(e enginemodel.Config) int { return e.Blocks * e.BlockTokens }

func indexFunc(s string, f func(byte) bool) int {
	for i := range len(s) {
		if f(s[i]) {
			return i
		}
	}
	return -1
}

// Load is work that the engine gives itself: long requests without a client, replaced as they end, so that a batch and a queue
// stay full.
type Load struct {
	// Running is how many of them are meant to run. From 0 to Engine.MaxRunning.
	Running int `json:"running"`
	// Waiting is how many more are meant to wait. At least 0; since an engine queues only when its batch is full, more
	// than 0 needs Running at Engine.MaxRunning.
	Waiting int `json:"waiting"`
}

const maxLoadWaiting = 1 << 20

func (l Load) validate(maxRunning int) error {
	switch {
	case l.Running < 0 || l.Running > maxRunning:
		return fmt.Errorf("running: %d: must be from 0 to the largest batch, %d", l.Running, maxRunning)
	case l.Waiting < 0 || l.Waiting > maxLoadWaiting:
		return fmt.Errorf("waiting: %d: must be from 0 to %d", l.Waiting, maxLoadWaiting)
	case l.Waiting > 0 && l.Running < maxRunning:
		return fmt.Errorf("waiting: %d: must be 0 unless running is %d: an engine queues only when its batch is full",
			l.Waiting, maxRunning)
	}
	return nil
}

// request is one background request. Its length is such that a full batch of them takes half of the KV cache at most.
func (l Load) request(id string, cfg Config) enginemodel.Request {
	share := min(capacity(cfg.Engine)/cfg.Engine.MaxRunning/2, cfg.MaxModelLen)
	prompt := max(1, min(64, share/4))
	return enginemodel.Request{ID: id, PromptTokens: prompt, OutputTokens: max(1, share-prompt)}
}
