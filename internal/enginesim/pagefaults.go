package enginesim

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// PageFaults are what is wrong with the content of a telemetry page, whatever the dialect. Families are named as in their TYPE line.
// Those that a page does not have are not missed. Several faults work together, in the order of the fields.
type PageFaults struct {
	// Redirect: the page is somewhere else. The answer is 307 with this Location; empty is off.
	Redirect string `json:"redirect,omitempty"`
	// DropFamilies are left out.
	DropFamilies []string `json:"dropFamilies,omitempty"`
	// Values has for a family what stands in the place of each of its values, such as NaN, -nan, -1 or 1e300. No spaces.
	Values map[string]string `json:"values,omitempty"`
	// Duplicates are families whose series come twice, the second time with a value that is larger by 1.
	Duplicates []string `json:"duplicates,omitempty"`
	// Colon: samples have an underscore where their HELP and TYPE have a colon, as when Python's client library is asked for
	// OpenMetrics.
	Colon bool `json:"colon,omitempty"`
	// HugeLabel, from 0 (off) to 64 MiB: a family comes before all others whose one label has a value of so many bytes.
	HugeLabel int `json:"hugeLabel,omitempty"`
	// Instead, one of "html", "json" and "empty": the answer is a web page, an empty JSON list or nothing. Empty is off.
	Instead Instead `json:"instead,omitempty"`
	// ContentType is said to be this; empty is off.
	ContentType string `json:"contentType,omitempty"`
	// Truncate ends the page early; nil is off.
	Truncate *Truncation `json:"truncate,omitempty"`
}

// Truncation is a page that ends early.
type Truncation struct {
	// Bytes of the page that are sent, at least 0.
	Bytes int `json:"bytes"`
	// Clean: nothing in the transfer shows that something is missing. Otherwise Content-Length is that of the whole page, and
	// the connection breaks.
	Clean bool `json:"clean"`
}

// Instead is what comes in the place of a page.
type Instead string

// Values of Instead besides the empty one.
const (
	InsteadHTML  Instead = "html"
	InsteadJSON  Instead = "json"
	InsteadEmpty Instead = "empty"
)

const maxHugeLabel = 64 << 20

func (f PageFaults) validate() error {
	if f.Redirect != "" {
		if _, err := url.Parse(f.Redirect); err != nil {
			return fmt.Errorf("page.redirect: %q: must be a URL or a path", f.Redirect)
		}
	}
	for name, text := range f.Values {
		if text == "" || strings.ContainsAny(text, " \t\r\n") {
			return fmt.Errorf("page.values: %s: %q: must not be empty or have spaces", name, text)
		}
	}
	switch {
	case f.HugeLabel < 0 || f.HugeLabel > maxHugeLabel:
		return fmt.Errorf("page.hugeLabel: %d: must be from 0 (off) to %d", f.HugeLabel, maxHugeLabel)
	case f.Instead != "" && f.Instead != InsteadHTML && f.Instead != InsteadJSON && f.Instead != InsteadEmpty:
		return fmt.Errorf("page.instead: %q: must be empty (off), html, json or empty", f.Instead)
	case strings.ContainsAny(f.ContentType, "\r\n"):
		return fmt.Errorf("page.contentType: %q: must be one line", f.ContentType)
	case f.Truncate != nil && f.Truncate.Bytes < 0:
		return fmt.Errorf("page.truncate.bytes: %d: must be at least 0", f.Truncate.Bytes)
	}
	return nil
}

// spoil is what becomes of a page in the text format. Truncate is up to write, since it is a matter of the transfer.
func (f PageFaults) spoil(c Content) Content {
	if f.Redirect != "" {
		return Content{Status: http.StatusTemporaryRedirect}
	}
	switch f.Instead {
	case InsteadHTML:
		c = Content{ContentType: "text/html; charset=utf-8", Body: []byte("<!doctype html>\n<title>Welcome</title>\n")}
	case InsteadJSON:
		c = Content{ContentType: "application/json", Body: []byte("[]")}
	case InsteadEmpty:
		c.Body = nil
	default:
		if len(f.DropFamilies)+len(f.Values)+len(f.Duplicates) > 0 || f.Colon || f.HugeLabel > 0 {
			c.Body = f.rewrite(c.Body)
		}
	}
	if f.ContentType != "" {
		c.ContentType = f.ContentType
	}
	return c
}

// rewrite spoils one family after the other. Each begins with HELP, as the pages of all dialects are written.
func (f PageFaults) rewrite(page []byte) []byte {
	const help = "# HELP "
	var out bytes.Buffer
	out.Grow(len(page) + f.HugeLabel + 1<<10)
	if f.HugeLabel > 0 {
		out.WriteString("# HELP model_settings_info The model's configuration file.\n# TYPE model_settings_info gauge\n" +
			`model_settings_info{settings="`)
		out.Write(bytes.Repeat([]byte("x"), f.HugeLabel))
		out.WriteString("\"} 1\n")
	}
	for rest := string(page); rest != ""; {
		end := len(rest)
		if next := strings.Index(rest, "\n"+help); next >= 0 {
			end = next + 1
		}
		f.family(&out, rest[:end])
		rest = rest[end:]
	}
	return out.Bytes()
}

func (f PageFaults) family(out *bytes.Buffer, family string) {
	name := ""
	if fields := strings.Fields(family); len(fields) > 2 {
		name = fields[2]
	}
	if slices.Contains(f.DropFamilies, name) {
		return
	}
	var again []string
	for line := range strings.Lines(family) {
		if strings.HasPrefix(line, "#") {
			out.WriteString(line)
			continue
		}
		sample := f.sample(name, line)
		out.WriteString(sample)
		if slices.Contains(f.Duplicates, name) {
			again = append(again, larger(sample))
		}
	}
	for _, sample := range again {
		out.WriteString(sample)
	}
}

func (f PageFaults) sample(family, line string) string {
	// Labels may have spaces; the value has none and comes last.
	space := strings.LastIndexByte(line, ' ')
	if text, ok := f.Values[family]; ok {
		line = line[:space+1] + text + "\n"
	}
	if end := strings.IndexAny(line, "{ "); f.Colon && end >= 0 {
		line = strings.ReplaceAll(line[:end], ":", "_") + line[end:]
	}
	return line
}

// larger is a sample with a value that is larger by 1; one that is no number stays.
func larger(sample string) string {
	space := strings.LastIndexByte(sample, ' ')
	value, err := strconv.ParseFloat(strings.TrimSpace(sample[space+1:]), 64)
	if err != nil {
		return sample
	}
	return sample[:space+1] + strconv.FormatFloat(value+1, 'g', -1, 64) + "\n"
}
