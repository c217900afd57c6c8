package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// operationsFile has the number of each function's operation. Numbers never change and are never used again: programs
// of other releases send them.
const operationsFile = "facts/operations.tsv"

// Operation is the number of a function of one of the libraries, whether or not it travels.
type Operation struct {
	Library string // "cuda" or "nvml"
	Number  uint16
	Name    string
	Removed bool // there is no such function any more; its number stays reserved
}

// String is the operation's line in the file.
func (o Operation) String() string {
	line := fmt.Sprintf("%s\t%d\t%s", o.Library, o.Number, o.Name)
	if o.Removed {
		line += "\tremoved"
	}
	return line
}

// key is a number or a name of a library.
type key[T uint64 | string] struct {
	library string
	what    T
}

// parseOperations reads lines "LIBRARY NUMBER NAME [removed]" with tabs between.
func parseOperations(text string) ([]Operation, error) {
	var out []Operation
	numbers, names := map[key[uint64]]bool{}, map[key[string]]bool{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		fail := func(why string) error { return &InputError{operationsFile, "line " + strconv.Itoa(i+1), why} }
		f := strings.Split(line, "\t")
		if len(f) < 3 || len(f) > 4 || len(f) == 4 && f[3] != "removed" || f[2] == "" || f[0] != "cuda" && f[0] != "nvml" {
			return nil, fail("want: cuda or nvml, NUMBER, NAME [, removed] with tabs between")
		}
		n, err := strconv.ParseUint(f[1], 10, 16)
		if err != nil || n == 0 || n >= FirstWireOp {
			return nil, fail(fmt.Sprintf("%q is no number from 1 to %d", f[1], FirstWireOp-1))
		}
		if numbers[key[uint64]{f[0], n}] || names[key[string]{f[0], f[2]}] {
			return nil, fail("number or name stand in a line above")
		}
		numbers[key[uint64]{f[0], n}], names[key[string]{f[0], f[2]}] = true, true
		out = append(out, Operation{f[0], uint16(n), f[2], len(f) == 4})
	}
	return out, nil
}

// numberOperations gives each base function of lib its number; those that have none get the next ones. It returns the
// library's operations, by number.
func numberOperations(library string, lib *Library, all []Operation) ([]Operation, error) {
	var own []Operation
	known, next := map[string]uint16{}, uint16(1)
	for _, o := range all {
		if o.Library != library {
			continue
		}
		own = append(own, o)
		next = max(next, o.Number+1)
		fn := lib.ByName[o.Name]
		switch base := fn != nil && !fn.PTSZ; {
		case o.Removed && base:
			return nil, &InputError{operationsFile, o.Name, "is marked as removed, but there is such a function"}
		case !o.Removed && !base:
			return nil, &InputError{
				operationsFile, o.Name,
				"is no base function; if there is none any more, write \"removed\" behind its name: the number stays reserved",
			}
		}
		known[o.Name] = o.Number
	}
	for _, fn := range lib.Funcs {
		if fn.PTSZ {
			continue
		}
		if known[fn.Name] == 0 {
			if next >= FirstWireOp {
				return nil, &InputError{operationsFile, fn.Name, "there is no number left"}
			}
			known[fn.Name] = next
			own = append(own, Operation{library, next, fn.Name, false})
			next++
		}
		fn.number = known[fn.Name]
	}
	slices.SortFunc(own, func(a, b Operation) int { return int(a.Number) - int(b.Number) })
	return own, nil
}

// Number is the number of the function's operation, whether or not it travels; a _ptsz form has none of its own.
func (f *Func) Number() uint16 { return f.number }
