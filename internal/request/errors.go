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
	// ErrModelAmbiguous matches (errors.Is) a body from which two parsers could
	// read two different models.
	ErrModelAmbiguous = errors.New("request body names its model ambiguously")
)

// Error says why a body was refused. It holds no part of the body.
type Error struct {
	// Token is TokenBodyMalformed or TokenModelAmbiguous.
	Token string
	// Offset is the byte of the body, counted from 0, that does not fit; it is
	// the body's length if the body ends too early.
	Offset int
	// Detail says what was expected at Offset.
	Detail string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: byte %d: %s", e.Unwrap(), e.Offset, e.Detail)
}

// Unwrap returns ErrModelAmbiguous or ErrBodyMalformed, by the token.
func (e *Error) Unwrap() error {
	if e.Token == TokenModelAmbiguous {
		return ErrModelAmbiguous
	}
	return ErrBodyMalformed
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
