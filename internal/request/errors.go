package request

import (
	"errors"
	"fmt"
)

// Reason tokens of [Error], as clients see them in x-berth-reason.
const (
	TokenBodyMalformed  = "body_malformed"
	TokenModelAmbiguous = "model_ambiguous"
)

var (
	// ErrBodyMalformed matches (errors.Is) a body that is not one valid JSON
	// object, or whose model is not a usable name.
	ErrBodyMalformed = errors.New("request body is malformed")
	// ErrPathMalformed matches (errors.Is) a path whose model is not a usable
	// name.
	ErrPathMalformed = errors.New("request path is malformed")
	// ErrModelAmbiguous matches (errors.Is) a body from which two parsers could
	// read two different models.
	ErrModelAmbiguous = errors.New("request body names its model ambiguously")
)

// Error says why a request was refused. It holds no part of the request.
type Error struct {
	// Token is TokenBodyMalformed or TokenModelAmbiguous. A malformed path has
	// the former: there is no token of its own for what clients get wrong so
	// rarely, and Error names the path.
	Token string
	// InPath is true if the path was refused, not the body.
	InPath bool
	// Offset is the byte of the body or path, counted from 0, that does not fit;
	// it is the body's length if the body ends too early.
	Offset int
	// Detail says what was expected at Offset.
	Detail string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: byte %d: %s", e.Unwrap(), e.Offset, e.Detail)
}

// Unwrap returns ErrModelAmbiguous, ErrPathMalformed or ErrBodyMalformed.
func (e *Error) Unwrap() error {
	switch {
	case e.Token == TokenModelAmbiguous:
		return ErrModelAmbiguous
	case e.InPath:
		return ErrPathMalformed
	default:
		return ErrBodyMalformed
	}
}

// malformed builds the error for a body in which want does not stand at
// offset.
func malformed(body []byte, offset int, want string) *Error {
	detail := "expected " + want
	if offset >= len(body) {
		detail += ", but the body ends"
	}
	return &Error{Token: TokenBodyMalformed, Offset: offset, Detail: detail}
}

// malformedPath builds the error for a path in whose model want does not stand
// at offset.
func malformedPath(offset int, want string) *Error {
	return &Error{Token: TokenBodyMalformed, InPath: true, Offset: offset, Detail: "expected " + want + " in the model's name"}
}
