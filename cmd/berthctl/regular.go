package main

import (
	"errors"
	"os"

	"github.com/berth-dev/berth/internal/policy"
)

// openRegular is policy.OpenRegular with the path in every error.
func openRegular(path string) (*os.File, error) {
	f, err := policy.OpenRegular(path)
	if err != nil && !errors.As(err, new(*os.PathError)) {
		err = &os.PathError{Op: "open", Path: path, Err: err}
	}
	return f, err
}
