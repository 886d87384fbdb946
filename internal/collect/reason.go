package collect

// reasons are the reasons of the package documentation that are words, in its order;
// the others are statuses, status_NNN and status_other.
var reasons = [...]string{
	"refused", "reset", "unreachable", "timeout", "redirect", "too_large", "truncated", "not_text", "empty", "joined",
	"no_engine_families", "several_engines", "no_text_page", "profile_unknown", "tls", "malformed", "panic",
}

// Reasons are the reasons for which a scrape may fail, in the order of the package
// documentation, but for the statuses of answers: status_NNN, where HTTP has a name
// for NNN, and status_other.
func Reasons() []string { return append([]string(nil), reasons[:]...) }
