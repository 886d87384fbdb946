package finding

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
)

// Exit codes of commands that print findings; 0 where none is short.
const (
	// ExitShort is for a finding that is short, and for what keeps a command from
	// measuring at all.
	ExitShort = 1
	ExitUsage = 2
)

// Part is one of the things that a command measures.
type Part interface {
	// Describe returns the part's name, a word without a slash that is unique in
	// its command, and what it measures, in a line.
	Describe() (name, what string)
}

// Command is the command line of a command that measures parts:
//
//	NAME [-run REGEX] [-v] [FLAGS]
//	NAME -list [-run REGEX]
//
// It is for one goroutine, and for one call of Choose.
type Command[P Part] struct {
	// Flags are -run, -list and -v; others may be defined before Choose.
	Flags          *flag.FlagSet
	parts          []P
	pattern        string
	list, verbose  bool
	stdout, stderr io.Writer
}

// NewCommand returns the command line of the command of that name. Parts are in
// the order in which they are measured; at least one.
func NewCommand[P Part](name string, parts []P, stdout, stderr io.Writer) *Command[P] {
	c := &Command[P]{Flags: flag.NewFlagSet(name, flag.ContinueOnError), parts: parts, stdout: stdout, stderr: stderr}
	c.Flags.SetOutput(stderr)
	c.Flags.StringVar(&c.pattern, "run", "", "measure only what matches this `regex`")
	c.Flags.BoolVar(&c.list, "list", false, "print the names and what they measure, and exit")
	c.Flags.BoolVar(&c.verbose, "v", false, "tell on standard error what is being done")
	return c
}

// Choose parses the arguments and returns the parts to measure. Where that is
// none, the command is to end with the exit code: what was asked for is printed,
// or what is wrong with the arguments.
func (c *Command[P]) Choose(args []string) (chosen []P, exit int) {
	if err := c.Flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, 0
		}
		return nil, ExitUsage
	}
	if c.Flags.NArg() > 0 {
		return nil, c.misused("%q: no arguments are taken", c.Flags.Args())
	}
	wanted, err := regexp.Compile(c.pattern)
	if err != nil {
		return nil, c.misused("-run: %v", err)
	}
	for _, p := range c.parts {
		if name, _ := p.Describe(); wanted.MatchString(name) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, c.misused("-run %q: matches none of the names that -list prints", c.pattern)
	}
	if c.list {
		for _, p := range chosen {
			name, what := p.Describe()
			fmt.Fprintf(c.stdout, "%-16s %s\n", name, what)
		}
		return nil, 0
	}
	return chosen, 0
}

func (c *Command[P]) misused(format string, args ...any) (exit int) {
	fmt.Fprintf(c.stderr, c.Flags.Name()+": "+format+"\n", args...)
	return ExitUsage
}

// Verbose takes what -v asks for; nil without it, and before Choose.
func (c *Command[P]) Verbose() io.Writer {
	if !c.verbose {
		return nil
	}
	return c.stderr
}

// Fail says why nothing can be measured, and returns the exit code.
func (c *Command[P]) Fail(err error) (exit int) {
	fmt.Fprintf(c.stderr, "%s: %v\n", c.Flags.Name(), err)
	return ExitShort
}

// Measure measures the parts one after the other, prints what each reports as it
// comes, and returns the exit code. An error of one is told as [Unmeasured], and
// the next one has its turn; once ctx is done, none has, and the exit code is
// ExitShort.
//
// report is for one goroutine at a time, and only until one returns.
func Measure[P Part](ctx context.Context, parts []P, w io.Writer, one func(part P, report func(Finding)) error) (exit int) {
	report := func(f Finding) {
		fmt.Fprintln(w, f)
		if f.Verdict() == Short {
			exit = ExitShort
		}
	}
	for _, p := range parts {
		if ctx.Err() != nil {
			return ExitShort
		}
		if err := one(p, report); err != nil {
			name, _ := p.Describe()
			report(Unmeasured(name, err))
		}
	}
	return exit
}
