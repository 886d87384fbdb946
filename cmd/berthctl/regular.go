package main

import (
	"errors"
	"os"
	"syscall"
)

var errNotRegular = errors.New("it is not a regular file")

// openRegular opens a file that has an end. Opening does not wait: a pipe without
// a writer would hold the command up for ever.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = &os.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		err = &os.PathError{Op: "open", Path: path, Err: errNotRegular}
	default:
		return f, nil
	}
	_ = f.Close() // nothing was written
	return nil, err
}
