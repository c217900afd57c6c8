package sim

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// visible are the numbers of the GPUs that the process sees, in its order. As in the driver, the list ends with the
// first entry that names none, and one that stands there twice hides all.
func (c *Config) visible() (numbers []int) {
	if c.MIG > 0 {
		first, _, _ := strings.Cut(cmp.Or(c.Visible, "0"), ",")
		if n := c.named(strings.TrimSpace(first)); n >= 0 {
			numbers = append(numbers, n)
		}
		return numbers
	}
	if c.Visible == "" {
		for i := range c.Devices {
			numbers = append(numbers, i)
		}
		return numbers
	}
	for entry := range strings.SplitSeq(c.Visible, ",") {
		n := c.named(strings.TrimSpace(entry))
		if n < 0 {
			break
		}
		if slices.Contains(numbers, n) {
			return nil
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// named is the GPU that an entry names by its number, or by a beginning of its UUID that no other has; -1: none.
func (c *Config) named(entry string) int {
	if n, err := strconv.Atoi(entry); err == nil && n >= 0 && n < c.numbers() {
		return n
	}
	if len(entry) <= len("GPU-") {
		return -1
	}
	found := -1
	for i := range c.numbers() {
		if !strings.HasPrefix(strings.ToLower(c.uuidText(i)), strings.ToLower(entry)) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}
