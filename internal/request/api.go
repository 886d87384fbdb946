package request

import "strings"

// API is the inference API that a request calls.
type API uint8

const (
	// Unknown is any path that is not listed below. Such a request is still
	// routed, as opaque traffic.
	Unknown API = iota
	// ChatCompletions is POST /v1/chat/completions; its prompt is "messages".
	ChatCompletions
	// Completions is POST /v1/completions; its prompt is "prompt".
	Completions
)

// String returns a stable lower-case name that is fit for metric labels and
// records.
func (a API) String() string {
	switch a {
	case ChatCompletions:
		return "chat_completions"
	case Completions:
		return "completions"
	default:
		return "unknown"
	}
}

// APIOf tells which API a request path (the :path pseudo-header) calls.
//
// Only the path part counts: a query or fragment is cut off, and one trailing
// slash is allowed. A prefix in front of the API's path is allowed, since
// gateways and vendors mount the API below one; anything behind it, such as
// /v1/chat/completions/render, is another operation and Unknown. The match is
// case sensitive and percent-encoding is not decoded. APIOf never allocates.
func APIOf(path string) API {
	if end := strings.IndexAny(path, "?#"); end >= 0 {
		path = path[:end]
	}
	path = strings.TrimSuffix(path, "/")
	switch {
	case strings.HasSuffix(path, "/v1/chat/completions"):
		return ChatCompletions
	case strings.HasSuffix(path, "/v1/completions"):
		return Completions
	default:
		return Unknown
	}
}

// isJSON reports whether a Content-Type value announces JSON. An absent one
// does too: engines parse bodies on the known paths without asking for it.
func isJSON(contentType string) bool {
	if trimSpace(contentType) == "" {
		return true
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	const tree, suffix = "application/", "+json"
	mediaType = trimSpace(mediaType)
	if len(mediaType) < len(tree) || !strings.EqualFold(mediaType[:len(tree)], tree) {
		return false
	}
	subtype := mediaType[len(tree):]
	if strings.EqualFold(subtype, "json") {
		return true
	}
	// A media type holds no blanks or commas: "application/x, text/y+json" is
	// two header values that a proxy joined.
	return len(subtype) > len(suffix) && strings.EqualFold(subtype[len(subtype)-len(suffix):], suffix) &&
		!strings.ContainsAny(subtype, " \t,")
}

// isIdentity reports whether a Content-Encoding value leaves the body as it
// is. The value is a list; empty entries count for nothing (RFC 9110, 5.6.1).
func isIdentity(contentEncoding string) bool {
	for rest, more := contentEncoding, true; more; {
		var coding string
		coding, rest, more = strings.Cut(rest, ",")
		coding = trimSpace(coding)
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return false
		}
	}
	return true
}

// trimSpace trims what HTTP calls optional white space.
func trimSpace(s string) string { return strings.Trim(s, " \t") }
