package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// visible are the numbers of the GPUs that the process sees, in its order. As in the driver, the list ends with the
// first entry that names none, and one that stands there twice hides all.
func (c *Config) visible() (numbers []int) {
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
	if n, err := strconv.Atoi(entry); err == nil && n >= 0 && n < c.Devices {
		return n
	}
	if len(entry) <= len("GPU-") {
		return -1
	}
	found := -1
	for i := range c.Devices {
		u := deviceUUID(c.Name, i)
		text := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
		if !strings.HasPrefix(strings.ToLower(text), strings.ToLower(entry)) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}
