// Package nvmldispatch carries out the NVML calls of one client session on an nvml.Driver.
//
// Requests and replies have the generic form of docs/protocol.md. What travels how is said by a table that api/gen
// writes from api/nvml.semantics (zz_nvml_gen.go); this package decodes a request by that table, checks every length
// against the counts that the driver will see, calls the driver, and encodes what came back.
//
// Handles on the wire are small numbers of a session's own table, never the driver's addresses. A device's number is
// its NVML index + 1, so that handles which a client kept over a reconnection (nvmlShutdown and nvmlInit, or a fork)
// stay good.
package nvmldispatch
