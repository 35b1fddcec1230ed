package diag

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest returns the candidate closest to name, or "" when none is close
// enough to be a slip of the hand: a third of the name's runes, at least one,
// may differ (a swap of neighbours counts once). The answer does not depend on
// the order of the candidates.
func Suggest(name string, candidates []string) string {
	wanted := []rune(name)
	if len(wanted) == 0 || len(wanted) > 64 {
		return ""
	}
	best, least := "", max(1, len(wanted)/3)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if c == name || c == "" {
			continue
		}
		if strings.EqualFold(c, name) {
			return c
		}
		if d := distance(wanted, []rune(c), least); d < least {
			best, least = c, d
		}
	}
	return best
}

// DidYouMean gives the repair text for an unknown name, or "".
func DidYouMean(name string, candidates []string) string {
	if s := Suggest(name, candidates); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return ""
}

// distance is the optimal string alignment distance, or limit when it is not
// below it.
func distance(a, b []rune, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, above[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above, row = above, row, before
	}
	return min(above[len(b)], limit)
}
