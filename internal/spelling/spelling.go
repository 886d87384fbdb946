// Package spelling compares names that people may have misspelt.
package spelling

// Distance is Levenshtein's: the number of bytes to insert, delete or replace to make
// one of two names the other.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(above+1, row[j]+1, replaced)
			diagonal = above
		}
	}
	return row[len(b)]
}
