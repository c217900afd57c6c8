/* cuGraphDebugDotPrint: the driver's text goes to a file of the program's. */
#include "calls/calls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int32_t scuda_hand_cuGraphDebugDotPrint(uint64_t graph, const char *path, uint32_t flags) {
  int32_t r = graph && path ? scuda_check(graph, KIND_CUgraph) : CUDA_ERROR_INVALID_VALUE;
  if (r) return r;
  struct wire_graph_dot w = {.graph = graph, .flags = flags};
  enum { TEXT_MAX = 32 << 20 };
  char *text = malloc(TEXT_MAX);
  if (!text) return CUDA_ERROR_OUT_OF_MEMORY;
  struct scuda_cmd c;
  uint32_t len = 0;
  if (!(r = scuda_begin(&c, OP_GRAPH_DOT, SCUDA_ANSWER, sizeof w))) {
    memcpy(c.payload, &w, sizeof w);
    r = scuda_call(&c, text, TEXT_MAX, &len);
  }
  if (!r) {
    FILE *f = fopen(path, "we");
    int written = f && fwrite(text, 1, len, f) == len;
    if ((f && fclose(f)) || !written) {
      scuda_log(SCUDA_WARN, "cuGraphDebugDotPrint: cannot write %s: %s", path, strerror(errno));
      r = CUDA_ERROR_OPERATING_SYSTEM;
    }
  }
  free(text);
  return r;
}
