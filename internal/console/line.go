package console

// Line is text as it may stand on a line of a terminal: what would act on the terminal
// or end the line is replaced.
func Line(text string) string { return plain(text) }
