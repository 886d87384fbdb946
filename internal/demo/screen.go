package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A screen is where the demo tells its story: lines that stay, and a table that
// is drawn again and again. On a terminal the table stays below the lines and
// is redrawn in place; elsewhere each table follows the one before. All methods
// may be called from any goroutine.
type screen struct {
	w io.Writer
	// width is the terminal's in columns; nil means that there is no terminal.
	width func() int
	start time.Time

	mu sync.Mutex
	// table is what stands below the last line, drawn its lines on the terminal.
	table string
	drawn int
}

// say writes lines that stay.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	fmt.Fprintf(s.w, format+"\n", args...)
	s.draw()
}

// event is a line that begins with the time since the start of the run.
func (s *screen) event(format string, args ...any) {
	s.say("%5.1fs  %s", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// show replaces the table.
func (s *screen) show(table string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.table = table
	s.draw()
	if s.width == nil {
		s.table = ""
	}
}

// keep leaves the table where it is; lines and tables follow it.
func (s *screen) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table, s.drawn = "", 0
}

// erase takes the table off the terminal: cursor up, clear to the end.
func (s *screen) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.w, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
}

func (s *screen) draw() {
	if s.table == "" {
		return
	}
	if s.width == nil {
		fmt.Fprint(s.w, s.table)
		return
	}
	width := s.width()
	for line := range strings.Lines(s.table) {
		line = strings.TrimSuffix(line, "\n")
		// A line that wraps would take two rows of the terminal.
		if r := []rune(line); width > 0 && len(r) >= width {
			line = string(r[:width-1])
		}
		fmt.Fprintln(s.w, line)
		s.drawn++
	}
}
