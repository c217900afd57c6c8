// Command importer reads a driver header (cuda.h, nvml.h) and writes the facts that package api loads: prototypes,
// enums, typedefs, sizes and record layouts as JSON. It is run by hand when a new version of a header is to be
// described:
//
//	go run ./api/importer -header /usr/local/cuda/include/cuda.h -out api/facts/cuda-driver-api.json
//
// A header hides functions behind macros, so it is read in several passes with different definitions, and the union is
// taken: by default once as programs see it, once with the old versions, and once for per-thread default streams.
package main
