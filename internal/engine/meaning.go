package engine

import (
	"fmt"

	"github.com/berth-dev/berth/internal/telemetry"
)

// growthless says why the growth of a family cannot be the value of a field, with
// what is allowed; empty where it can. over: it is divided by that of others.
func growthless(f telemetry.Field, over bool) string {
	switch f.Kind() {
	case telemetry.Dist:
		return ""
	case telemetry.Bool, telemetry.Names, telemetry.Text, telemetry.Time:
		return fmt.Sprintf("%s is not a number", f)
	}
	switch f.Unit() {
	case "tokens/s", "1/s", "W":
		// What was counted in a second, and joules in a second.
		return ""
	case "util", "J/token", "requests":
		// What is counted out of what was counted: requests out of those of each second.
		if over {
			return ""
		}
		return fmt.Sprintf("%s is in %s, and a growth per second is not: want over, by whose growth it is divided, or no window", f, f.Unit())
	default:
		return fmt.Sprintf("%s does not grow: want no window", f)
	}
}

// uncombined says why the series of a family cannot become the value of a field in
// this way, with what is allowed; empty where they can. over: what is combined is
// divided by something else.
func uncombined(f telemetry.Field, c combination, over bool) string {
	adds := c == sum || c == mean
	switch {
	case c == newest:
		return ""
	case adds && f.Kind() == telemetry.Time:
		return fmt.Sprintf("times cannot be added up: %s, want max or one", f)
	case adds && f.Kind() == telemetry.Bool:
		return fmt.Sprintf("yes and no cannot be added up: %s, want max, which is yes where one says so, or one", f)
	case (c == mean || c == largest) && f.Kind() == telemetry.Names, (adds || c == largest) && f.Kind() == telemetry.Text:
		return fmt.Sprintf("texts have no %s: %s, want newest or one", [...]string{sum: "sum", mean: "mean", largest: "max"}[c], f)
	case c == sum && !over && (f.Unit() == "util" || f.Unit() == "J/token"):
		return fmt.Sprintf("shares of several ranks do not add up to that of all: %s in %s, want mean, max or one, or over", f, f.Unit())
	case adds && (f == telemetry.ContextLimit || f == telemetry.KVBlockSize):
		return fmt.Sprintf("%s is not more for more ranks: want max or one", f)
	}
	return ""
}
