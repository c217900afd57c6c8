package nccl

import (
	"slices"
	"strconv"
	"strings"
)

// setting is what a variable of NCCL's may be: a number between two, one of some words, or words in the form that lists
// of algorithms have. No path can be one of them.
type setting struct{ kind, may string }

// mostSetting bounds what a setting may be.
const mostSetting = 256

// Setting says whether a program may set a variable of NCCL's to a value where its calls are carried out.
func Setting(name, value string) bool {
	s, ok := settings[name]
	if !ok || value == "" || len(value) > mostSetting {
		return false
	}
	switch may := strings.Fields(s.may); s.kind {
	case "number":
		n, err := strconv.ParseUint(value, 10, 32)
		least, _ := strconv.ParseUint(may[0], 10, 32)
		most, _ := strconv.ParseUint(may[1], 10, 32)
		return err == nil && least <= n && n <= most
	case "one":
		return slices.ContainsFunc(may, func(word string) bool { return strings.EqualFold(word, value) })
	default:
		return strings.Trim(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_,;:^") == ""
	}
}
