package intent

import (
	"errors"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Reason tokens of [Error], as clients see them in x-berth-reason. The first two
// are answered with 400, the others with 403.
const (
	TokenMalformed = v1alpha1.ReasonIntentMalformed
	TokenVersion   = v1alpha1.ReasonIntentVersion
	TokenExpired   = "intent_expired"
	TokenUntrusted = "intent_untrusted"
	TokenRequired  = "intent_required"
)

// Error says why a request was refused for its intent.
type Error struct {
	Token string
	// Message names the channel, the field and what is allowed. It quotes no token,
	// no key, and of other values at most 64 bytes.
	Message string
	// Source is the channel that brought it; none where one is required and there is
	// none.
	Source Source
}

func (e *Error) Error() string { return e.Token + ": " + e.Message }

func malformed(channel, problem string) *Error {
	return &Error{Token: TokenMalformed, Message: channel + ": " + problem}
}

// decoding is the error for what package v1alpha1 refused.
func decoding(channel string, err error) *Error {
	wrong, ok := errors.AsType[*v1alpha1.IntentError](err)
	if !ok {
		return malformed(channel, "must be a routing intent")
	}
	return &Error{Token: wrong.Token, Message: channel + ": " + wrong.Error()}
}
