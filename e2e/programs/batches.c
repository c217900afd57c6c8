// Batches of copies, between device memory and host memory of both kinds.
#include "check.h"

enum { N = 20, BYTES = 1 << 20 };

int main(int argc, char **argv) {
  start(argc, argv);
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  unsigned char *host = malloc(BYTES), *back = malloc(BYTES), *pin;
  CUdeviceptr a, b;
  CK(cuMemAllocHost((void **)&pin, BYTES));
  CK(cuMemAlloc(&a, BYTES));
  CK(cuMemAlloc(&b, BYTES));
  fill(host, BYTES, 1);
  fill(pin, BYTES, 2);
  memset(back, 0, BYTES);
  CK(cuMemsetD8(a, 0, BYTES));
  CK(cuCtxSynchronize());

  CUdeviceptr to[N], from[N];
  size_t sizes[N], first[2] = {0, N / 2}, at = 0;
  CUmemcpyAttributes attrs[2];
  memset(attrs, 0, sizeof attrs);
  attrs[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attrs[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  for (int i = 0; i < N; i++) { // pinned, then pageable memory
    sizes[i] = 1 + i * 3001;
    to[i] = a + at;
    from[i] = (CUdeviceptr)(uintptr_t)((i < N / 2 ? pin : host) + at);
    at += sizes[i];
  }
  CK(cuMemcpyBatchAsync_v2(to, from, sizes, N, attrs, first, 2, s));
  memset(host + BYTES - 10, 0, 10);
  CK(cuStreamSynchronize(s));
  attrs[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  for (int i = 0; i < N; i++) from[i] = to[i], to[i] = b + (to[i] - a);
  CK(cuMemcpyBatchAsync_v2(to, from, sizes, N, attrs, first, 1, s));
  for (int i = 0; i < N; i++) from[i] = to[i], to[i] = (CUdeviceptr)(uintptr_t)(back + (to[i] - b));
  CK(cuMemcpyBatchAsync_v2(to, from, sizes, N, attrs, first, 1, s));
  CK(cuStreamSynchronize(s));
  at = 0;
  for (int i = 0; i < N; i++) {
    CHECK(!memcmp(back + at, (i < N / 2 ? pin : host) + at, sizes[i]), "copy %d of the batch", i);
    at += sizes[i];
  }
  printf("batch of %d: %016llx\n", N, (unsigned long long)digest(back, at));

  SHOW(cuMemcpyBatchAsync_v2(to, from, sizes, 0, attrs, first, 1, s));
  SHOW(cuMemcpyBatchAsync_v2(to, from, sizes, N, attrs, first, 0, s));
  SHOW(cuMemcpyBatchAsync_v2(to, from, sizes, N, NULL, first, 1, s));
  SHOW(cuMemcpyBatchAsync_v2(to, from, sizes, N, attrs, first, 1, NULL));
  first[0] = 1;
  SHOW(cuMemcpyBatchAsync_v2(to, from, sizes, N, attrs, first, 1, s));

  CUDA_MEMCPY3D_BATCH_OP ops[2];
  memset(ops, 0, sizeof ops);
  for (int i = 0; i < 2; i++) {
    ops[i].src.type = ops[i].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    ops[i].src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)(i ? host : pin);
    ops[i].src.op.ptr.rowLength = 300;
    ops[i].src.op.ptr.layerHeight = 20;
    ops[i].dst.op.ptr.ptr = a + i * 100000;
    ops[i].extent.width = 200, ops[i].extent.height = 10, ops[i].extent.depth = 4;
    ops[i].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  }
  CK(cuMemcpy3DBatchAsync_v2(2, ops, 0, s));
  CK(cuMemcpyDtoHAsync(back, a, 108000, s));
  CK(cuStreamSynchronize(s));
  for (int i = 0; i < 2; i++)
    for (int row = 0; row < 40; row++)
      CHECK(!memcmp(back + i * 100000 + row * 200, (i ? host : pin) + (row / 10 * 20 + row % 10) * 300, 200),
            "row %d of box %d", row, i);
  printf("boxes ok\n");
  SHOW(cuMemcpy3DBatchAsync_v2(0, ops, 0, s));
  SHOW(cuMemcpy3DBatchAsync_v2(2, ops, 1, s));
  SHOW(cuMemcpy3DBatchAsync_v2(2, ops, 0, NULL));
  return 0;
}
