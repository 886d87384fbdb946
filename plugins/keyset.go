package plugins

import (
	"io"

	"github.com/berth-dev/berth/internal/policy"
)

// maxKeySet is one byte more than a key set may have: its parser refuses it.
const maxKeySet = 64<<10 + 1

// readKeySet reads the file that a filter verifies intents with.
func readKeySet(path string) ([]byte, error) {
	f, err := policy.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxKeySet))
}
