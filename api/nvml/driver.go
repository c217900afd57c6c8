// Package nvml is the NVIDIA management library in Go terms: its types, constants and operation numbers, and the
// interfaces that the machine's own library (driver/real) and the simulated GPU (sim) implement. All but this
// file is generated from the description in package api; names are the C names with a capital first letter, types
// without their trailing _t.
package nvml

// Return is the status of every call.
type Return = NvmlReturn

// Words are the arguments of a call, one for each parameter, as in package cuda; no parameter is a float or a structure
// by value.
type Words = [16]uint64

// Caller is a library that takes calls as words: any function, by the number of its operation. A Driver that is no
// Caller is called by its methods (driver/invoke).
type Caller interface {
	Call(op uint16, args *Words) Return
}
