// Package nvml is the NVIDIA management library in Go terms: its types, constants and operation numbers, and the
// interface Driver that the machine's own library (driver/real) and the simulated GPU (sim) implement. All but this
// file is generated from the description in package api; names are the C names with a capital first letter, types
// without their trailing _t.
package nvml

// Return is the status of every call.
type Return = NvmlReturn
