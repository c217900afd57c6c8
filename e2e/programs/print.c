// Text that kernels print comes to the program's own standard output, in order with its own lines, at every kind of
// call that waits. The output is fully buffered, as into a pipe or file, so that a text written past the program's
// buffer would come out of order.
#include "check.h"
#include <unistd.h>

static CUstream stream;

static void print(CUfunction f, double value, CUstream s) { CK(LAUNCH(f, 1, 2, 0, s, &value)); }

// Much text, in whatever order blocks run.
static void many(CUfunction f) {
  fflush(stdout);
  FILE *text = tmpfile();
  int own = dup(1), lines = 0;
  CHECK(text && own >= 0 && dup2(fileno(text), 1) == 1, "%s", strerror(errno));
  double value = 6;
  CK(LAUNCH(f, 64, 128, 0, stream, &value));
  CK(cuStreamSynchronize(stream));
  fflush(stdout);
  dup2(own, 1);
  rewind(text);
  char line[100];
  static int seen[64][128];
  while (fgets(line, sizeof line, text)) {
    unsigned b, t;
    CHECK(sscanf(line, "block %u thread %u: scuda 6.00", &b, &t) == 2 && b < 64 && t < 128 && !seen[b][t]++, "%s",
          line);
    lines++;
  }
  fclose(text);
  printf("%d lines of 64 blocks\n", lines);
}

int main(int argc, char **argv) {
  start(argc, argv);
  setvbuf(stdout, NULL, _IOFBF, 1 << 16);
  CUmodule m = load("print.ptx");
  CUfunction f = function(m, "print"), check = function(m, "check");
  CUdeviceptr p;
  CK(cuMemAlloc(&p, 64));
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

  printf("before\n");
  print(f, 1, 0);
  CK(cuCtxSynchronize());
  printf("after cuCtxSynchronize\n");
  print(f, 2, stream);
  CK(cuStreamSynchronize(stream));
  printf("after cuStreamSynchronize\n");
  CUevent e;
  CK(cuEventCreate(&e, 0));
  print(f, 3, stream);
  CK(cuEventRecord(e, stream));
  CK(cuEventSynchronize(e));
  printf("after cuEventSynchronize\n");
  print(f, 3.5, stream);
  CK(cuEventRecord(e, stream));
  while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) {
  }
  CK(cuEventSynchronize(e)); // which has no reason to ask the server
  printf("after cuEventQuery and cuEventSynchronize\n");
  print(f, 4, 0);
  int value;
  CK(cuMemcpyDtoH(&value, p, sizeof value));
  printf("after cuMemcpyDtoH\n");

  CUgraph g;
  CUgraphExec x;
  CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  print(f, 5, stream);
  CK(cuStreamEndCapture(stream, &g));
  CK(cuGraphInstantiate(&x, g, 0));
  for (int i = 0; i < 2; i++) {
    CK(cuGraphLaunch(x, stream));
    CK(cuStreamSynchronize(stream));
    printf("after graph %d\n", i);
  }

  many(f);

  print(f, 7, 0);
  CK(cuModuleUnload(m));
  CK(cuCtxSynchronize());
  printf("after cuModuleUnload\n");

  m = load("print.ptx");
  check = function(m, "check");
  unsigned x1 = 1, x0 = 0;
  CK(LAUNCH(check, 1, 1, 0, 0, &x1));
  CK(cuCtxSynchronize());
  printf("assertion holds\n");
  CK(LAUNCH(check, 1, 1, 0, 0, &x0));
  WANT(cuCtxSynchronize(), CUDA_ERROR_ASSERT);
  printf("assertion failed\n");
  return 0;
}
