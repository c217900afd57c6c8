package server

import "scuda.dev/scuda/api/cuda"

// digest of the API description; both sides of a session must have the same.
const digest = cuda.Digest
