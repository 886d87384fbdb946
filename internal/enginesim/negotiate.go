package enginesim

import (
	"bytes"
	"strings"
)

// negotiated is a page in the text format as Python's client library, 0.23 to 0.26, gives it to a scraper with an Accept header. The
// first media type that it can serve counts, whatever their weights.
//
// Asked for OpenMetrics without escaping=allow-utf-8, it puts an underscore in the place of the colon in the names of samples, while
// HELP and TYPE keep it, and nothing says that a name has changed. Asked for text of version 0.0.4, or for anything, it leaves names alone.
func negotiated(c Content, accept string) Content {
	for accepted := range strings.SplitSeq(accept, ",") {
		mediaType, parameters, _ := strings.Cut(accepted, ";")
		version, escaping := "", "underscores"
		for parameter := range strings.SplitSeq(parameters, ";") {
			switch name, value, _ := strings.Cut(strings.TrimSpace(parameter), "="); {
			case name == "version":
				version = value
			case name == "escaping" && value == "allow-utf-8":
				escaping = value
			}
		}
		switch mediaType = strings.TrimSpace(mediaType); {
		case mediaType == "application/openmetrics-text" && version == "":
			return Content{ContentType: mediaType + "; version=1.0.0; charset=utf-8", Body: openMetrics(c.Body, "underscores")}
		case mediaType == "application/openmetrics-text" && version >= "1.":
			return Content{ContentType: mediaType + "; version=" + version + "; charset=utf-8; escaping=" + escaping,
				Body: openMetrics(c.Body, escaping)}
		case mediaType == "text/plain" && version >= "1.":
			return Content{ContentType: "text/plain; version=1.0.0; charset=utf-8; escaping=" + escaping, Body: c.Body}
		}
	}
	return Content{ContentType: "text/plain; version=0.0.4; charset=utf-8", Body: c.Body}
}

// openMetrics writes a page in the other format: a counter's HELP and TYPE do without _total, the time of creation of a family is a
// sample of it, and an end is marked.
func openMetrics(page []byte, escaping string) []byte {
	var out bytes.Buffer
	for line := range strings.Lines(string(page)) {
		name, rest := sampleName(line)
		if kind, family, ok := header(line); ok {
			if !strings.HasSuffix(family, "_created") {
				out.WriteString(kind + strings.TrimSuffix(family, "_total") + strings.TrimPrefix(line, kind+family))
			}
			continue
		}
		if escaping == "underscores" {
			name = strings.ReplaceAll(name, ":", "_")
		}
		out.WriteString(name + rest)
	}
	out.WriteString("# EOF\n")
	return out.Bytes()
}

// header takes a HELP or TYPE line apart: what is before the name, and the name.
func header(line string) (kind, family string, ok bool) {
	for _, kind := range []string{"# HELP ", "# TYPE "} {
		if rest, found := strings.CutPrefix(line, kind); found {
			family, _, _ := strings.Cut(rest, " ")
			return kind, family, true
		}
	}
	return "", "", false
}

// sampleName takes the line of a sample apart, where its labels or its value begin.
func sampleName(line string) (name, rest string) {
	end := max(strings.IndexAny(line, "{ "), 0)
	return line[:end], line[end:]
}
