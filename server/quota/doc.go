// Package quota bounds the GPU memory of a session, and of all sessions that share a limit. A [GPU] stands between the
// executor and the driver, counts what the driver allocates for the session, and refuses what would be too much with
// CUDA_ERROR_OUT_OF_MEMORY, as a smaller GPU would. The executor makes one where there is such a limit. What the others
// have it learns from an [Account] (package commons has one for the sessions of a tenant).
//
// It counts linear memory, arrays, physical memory for mappings (which carries unified and pinned memory as well), and
// what memory pools and graphs have reserved. It does not count what the driver needs for contexts, modules and
// streams, nor tiles of sparse arrays. Memory that was exported counts until the session ends: others may have it.
//
// A GPU may be called by several threads. Its lock is held while the driver allocates, and taken before any other, that
// of the account included.
package quota
