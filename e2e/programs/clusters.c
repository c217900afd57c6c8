// Clusters of blocks: shared memory of other blocks, barriers of a cluster, mbarriers, bulk copies, and which clusters
// can be launched.
#include "check.h"

static const char *ptx =
  ".version 8.1\n.target sm_90\n.address_size 64\n"
  // Every block reads a number of the next one by both kinds of address, and all add to the first one's.
  ".visible .entry neighbours(.param .u64 out) .explicitcluster .reqnctapercluster 4, 1, 1 {\n"
  "  .shared .align 4 .u32 mine; .shared .align 4 .u32 sum;\n"
  "  .reg .u32 %r<20>; .reg .u64 %l<12>; .reg .pred %p<8>;\n"
  "  mov.u32 %r1, %ctaid.x; mul.lo.u32 %r2, %r1, 100; mov.u32 %r3, %tid.x; setp.ne.u32 %p1, %r3, 0;\n"
  "  mov.u32 %r4, %cluster_ctarank; mov.u32 %r5, %cluster_nctarank; mov.u32 %r13, 0;\n"
  "  @!%p1 st.shared.u32 [mine], %r2; @!%p1 st.shared.u32 [sum], %r13;\n"
  "  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
  "  add.u32 %r6, %r4, 1; rem.u32 %r6, %r6, %r5;\n"
  "  mov.u32 %r7, mine; mapa.shared::cluster.u32 %r8, %r7, %r6; ld.shared::cluster.u32 %r9, [%r8];\n"
  "  mov.u64 %l0, mine; cvta.shared.u64 %l1, %l0; mapa.u64 %l2, %l1, %r6; ld.u32 %r10, [%l2];\n"
  "  mov.u32 %r11, sum; mapa.shared::cluster.u32 %r11, %r11, 0; add.u32 %r12, %r3, 1; red.shared::cluster.add.u32 "
  "[%r11], %r12;\n"
  "  barrier.cluster.arrive.release; barrier.cluster.wait.acquire;\n"
  "  ld.shared.u32 %r14, [sum];\n"
  "  getctarank.shared::cluster.u32 %r15, %r8; getctarank.u64 %r16, %l1;\n"
  "  isspacep.shared::cta %p2, %l2; isspacep.shared::cluster %p3, %l2; isspacep.shared::cta %p4, %l1; "
  "isspacep.global %p5, %l2;\n"
  "  selp.u32 %r17, 1, 0, %p2; @%p3 add.u32 %r17, %r17, 2; @%p4 add.u32 %r17, %r17, 4; @%p5 add.u32 %r17, %r17, 8;\n"
  "  @%p1 bra end;\n"
  "  ld.param.u64 %l3, [out]; mul.wide.u32 %l4, %r1, 32; add.u64 %l3, %l3, %l4;\n"
  "  mov.u32 %r18, %clusterid.x; mov.u32 %r19, %nclusterid.x;\n"
  "  st.global.v4.u32 [%l3], {%r9, %r10, %r14, %r17}; st.global.v4.u32 [%l3+16], {%r15, %r16, %r18, %r19};\n"
  "end: barrier.cluster.arrive; barrier.cluster.wait; ret;\n}\n"
  // Where a block is in its cluster and the cluster in the grid.
  ".visible .entry places(.param .u64 out) {\n"
  "  .reg .u32 %r<20>; .reg .u64 %l<4>; .reg .pred %p;\n"
  "  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %ctaid.z; mov.u32 %r3, %nctaid.x; mov.u32 %r4, "
  "%nctaid.y;\n"
  "  mad.lo.u32 %r5, %r2, %r4, %r1; mad.lo.u32 %r5, %r5, %r3, %r0;\n"
  "  mov.u32 %r6, %cluster_ctaid.x; mov.u32 %r7, %cluster_ctaid.y; mov.u32 %r8, %cluster_ctaid.z; mov.u32 %r9, "
  "%cluster_ctarank;\n"
  "  mov.u32 %r10, %clusterid.x; mov.u32 %r11, %clusterid.y; mov.u32 %r12, %clusterid.z; mov.u32 %r13, "
  "%cluster_nctarank;\n"
  "  mov.pred %p, %is_explicit_cluster; @%p add.u32 %r13, %r13, 100;\n"
  "  ld.param.u64 %l0, [out]; mul.wide.u32 %l1, %r5, 32; add.u64 %l0, %l0, %l1;\n"
  "  st.global.v4.u32 [%l0], {%r6, %r7, %r8, %r9}; st.global.v4.u32 [%l0+16], {%r10, %r11, %r12, %r13}; ret;\n}\n"
  // Ten rounds of a sum over the neighbours in a block, by an mbarrier of as many arrivals as threads; then half of
  // them leave for good.
  ".visible .entry rounds(.param .u64 out) {\n"
  "  .shared .align 8 .b64 bar; .shared .align 4 .u32 a[256];\n"
  "  .reg .u32 %r<20>; .reg .u64 %l<8>; .reg .pred %p<4>;\n"
  "  mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; setp.eq.u32 %p0, %r1, 0;\n"
  "  @%p0 mbarrier.init.shared.b64 [bar], %r2;\n"
  "  fence.mbarrier_init.release.cluster; bar.sync 0;\n"
  "  shl.b32 %r3, %r1, 2; mov.u32 %r4, a; add.u32 %r5, %r4, %r3; st.shared.u32 [%r5], %r1;\n"
  "  add.u32 %r6, %r1, 1; rem.u32 %r6, %r6, %r2; shl.b32 %r6, %r6, 2; add.u32 %r6, %r4, %r6;\n"
  "  mov.u32 %r7, 0; mov.u32 %r8, 0;\n"
  "again: mbarrier.arrive.shared.b64 %l1, [bar];\n"
  "wait1: mbarrier.test_wait.shared.b64 %p1, [bar], %l1; @!%p1 bra wait1;\n"
  "  ld.shared.u32 %r9, [%r6]; ld.shared.u32 %r10, [%r5];\n"
  "  mbarrier.arrive.shared.b64 _, [bar];\n"
  "wait2: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 1; @!%p1 bra wait2;\n"
  "  mad.lo.u32 %r10, %r10, 3, %r9; st.shared.u32 [%r5], %r10;\n"
  "  add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 10; @%p2 bra again;\n"
  "  and.b32 %r11, %r1, 1; setp.eq.u32 %p3, %r11, 1;\n"
  "  @%p3 mbarrier.arrive_drop.shared.b64 %l2, [bar]; @%p3 bra store;\n"
  "  mbarrier.arrive.shared.b64 %l2, [bar];\n"
  "wait3: mbarrier.test_wait.shared.b64 %p1, [bar], %l2; @!%p1 bra wait3;\n"
  "  mbarrier.arrive.shared.b64 %l2, [bar];\n" // those that are left complete it
  "wait4: mbarrier.try_wait.shared.b64 %p1, [bar], %l2, 1000; @!%p1 bra wait4;\n"
  "  add.u32 %r10, %r10, 7;\n"
  "store: ld.param.u64 %l3, [out]; mul.wide.u32 %l4, %r1, 4; add.u64 %l3, %l3, %l4; st.global.u32 [%l3], %r10; ret;\n"
  "}\n"
  // What the states of one thread's arrivals say, with counts.
  ".visible .entry counts(.param .u64 out) {\n"
  "  .shared .align 8 .b64 bar; .reg .u32 %r<8>; .reg .u64 %l<8>; .reg .pred %p<4>;\n"
  "  mbarrier.init.shared::cta.b64 [bar], 10;\n"
  "  mbarrier.arrive.shared.b64 %l1, [bar]; mbarrier.pending_count.b64 %r1, %l1;\n"
  "  mbarrier.arrive.shared.b64 %l1, [bar], 4; mbarrier.pending_count.b64 %r2, %l1;\n"
  "  mbarrier.arrive.noComplete.shared.b64 %l1, [bar], 2; mbarrier.pending_count.b64 %r3, %l1;\n"
  "  mbarrier.test_wait.shared.b64 %p1, [bar], %l1; selp.u32 %r4, 1, 0, %p1;\n"
  "  mbarrier.arrive.shared.b64 %l1, [bar], 3; mbarrier.test_wait.shared.b64 %p1, [bar], %l1; selp.u32 %r5, 1, 0, "
  "%p1;\n"
  "  mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0; @%p1 add.u32 %r5, %r5, 2;\n"
  "  mbarrier.test_wait.parity.shared.b64 %p1, [bar], 1; @%p1 add.u32 %r5, %r5, 4;\n"
  "  mbarrier.arrive_drop.shared.b64 %l1, [bar]; mbarrier.pending_count.b64 %r6, %l1; mbarrier.arrive.shared.b64 "
  "%l1, [bar], 9;\n"
  "  mbarrier.arrive.shared.b64 %l1, [bar]; mbarrier.pending_count.b64 %r7, %l1;\n"
  "  mbarrier.inval.shared.b64 [bar];\n"
  "  ld.param.u64 %l2, [out]; st.global.v4.u32 [%l2], {%r1, %r2, %r3, %r4}; st.global.v2.u32 [%l2+16], {%r5, %r6}; "
  "st.global.u32 [%l2+24], %r7; ret;\n}\n"
  // The second block of a pair stores into the first one's memory, and arrives there; the first one waits for bytes and
  // for it.
  ".visible .entry pair(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 {\n"
  "  .shared .align 8 .b64 bar; .shared .align 16 .b32 box[68];\n"
  "  .reg .u32 %r<16>; .reg .u64 %l<8>; .reg .pred %p<4>;\n"
  "  mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r2, 0;\n"
  "  @%p0 mbarrier.init.shared::cta.b64 [bar], 33;\n"
  "  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;\n"
  "  fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;\n"
  "  mov.u32 %r3, bar; mapa.shared::cluster.u32 %r3, %r3, 0; mov.u32 %r4, box; mapa.shared::cluster.u32 %r4, %r4, 0;\n"
  "  @%p1 bra first;\n"
  "  mad.lo.u32 %r5, %r1, 8, %r4; mul.lo.u32 %r6, %r1, 3; mul.lo.u32 %r7, %r1, 5;\n"
  "  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5], {%r6, %r7}, [%r3];\n"
  "  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];\n"
  "  bra end;\n"
  "first: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0; @!%p2 bra first;\n"
  "  mov.u32 %r4, box; mad.lo.u32 %r5, %r1, 8, %r4; ld.shared.v2.u32 {%r6, %r7}, [%r5];\n"
  "  ld.param.u64 %l3, [out]; mul.wide.u32 %l4, %r1, 8; add.u64 %l3, %l3, %l4; st.global.v2.u32 [%l3], {%r6, %r7};\n"
  "end: barrier.cluster.arrive; barrier.cluster.wait; ret;\n}\n"
  // One thread of each block fetches 1 KiB, half of it for both blocks of the pair; the block changes it and sends it
  // back.
  ".visible .entry bulk(.param .u64 in, .param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 {\n"
  "  .shared .align 8 .b64 bar; .shared .align 128 .b32 a[256];\n"
  "  .reg .u16 %h; .reg .u32 %r<16>; .reg .u64 %l<8>; .reg .pred %p<4>;\n"
  "  mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r9, %ctaid.x; setp.eq.u32 %p0, %r1, 0; setp.eq.u32 "
  "%p1, %r2, 0;\n"
  "  ld.param.u64 %l1, [in]; ld.param.u64 %l2, [out]; mul.wide.u32 %l3, %r9, 1024; add.u64 %l2, %l2, %l3; add.u64 "
  "%l1, %l1, %l3;\n"
  "  mov.u32 %r3, a; mov.u32 %r4, bar; mov.u16 %h, 3; add.u32 %r5, %r3, 512; add.u64 %l4, %l1, 512;\n"
  "  @%p0 mbarrier.init.shared::cta.b64 [bar], 1;\n"
  "  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 1024;\n"
  "  fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;\n"
  "  @!%p0 bra wait;\n"
  "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%l1], 512, [%r4];\n"
  "  @!%p1 bra wait;\n"
  "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r5], [%l4], 512, [%r4], "
  "%h;\n"
  "wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra wait;\n"
  "  mad.lo.u32 %r6, %r1, 4, %r3; ld.shared.u32 %r7, [%r6]; mad.lo.u32 %r7, %r7, 2, 1; st.shared.u32 [%r6], %r7;\n"
  "  fence.proxy.async.shared::cta; bar.sync 0; @!%p0 bra end;\n"
  "  cp.async.bulk.global.shared::cta.bulk_group [%l2], [%r3], 1024; cp.async.bulk.commit_group; "
  "cp.async.bulk.wait_group 0;\n"
  "end: barrier.cluster.arrive; barrier.cluster.wait; ret;\n}\n"
  // Threads wait for copies of their own by an mbarrier.
  ".visible .entry copied(.param .u64 in, .param .u64 out) {\n"
  "  .shared .align 8 .b64 bar; .shared .align 16 .b32 a[256];\n"
  "  .reg .u32 %r<8>; .reg .u64 %l<8>; .reg .pred %p<4>;\n"
  "  mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; setp.eq.u32 %p0, %r1, 0; @%p0 mbarrier.init.shared.b64 [bar], %r2; "
  "bar.sync 0;\n"
  "  ld.param.u64 %l1, [in]; ld.param.u64 %l2, [out]; mul.wide.u32 %l3, %r1, 4; add.u64 %l1, %l1, %l3; add.u64 %l2, "
  "%l2, %l3;\n"
  "  mov.u32 %r3, a; mad.lo.u32 %r3, %r1, 4, %r3; cp.async.ca.shared.global [%r3], [%l1], 4;\n"
  "  cp.async.mbarrier.arrive.noinc.shared.b64 [bar];\n"
  "wait: mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra wait;\n"
  "  mov.u32 %r4, a; xor.b32 %r5, %r1, 1; mad.lo.u32 %r4, %r5, 4, %r4; ld.shared.u32 %r6, [%r4]; st.global.u32 "
  "[%l2], %r6; ret;\n}\n";

static CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y, unsigned z,
                       CUdeviceptr out) {
  CUlaunchAttribute at = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
  at.value.clusterDim.x = x, at.value.clusterDim.y = y, at.value.clusterDim.z = z;
  CUlaunchConfig config = {.gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = 32, .blockDimY = 1,
                           .blockDimZ = 1, .attrs = &at, .numAttrs = 1};
  void *args[] = {&out};
  CUresult r = cuLaunchKernelEx(&config, f, args, NULL);
  CUresult s = cuCtxSynchronize();
  return r ? r : s;
}

static int clusters(CUfunction f, unsigned x, CUresult *r, int active) {
  CUlaunchAttribute at = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
  at.value.clusterDim.x = x, at.value.clusterDim.y = 1, at.value.clusterDim.z = 1;
  CUlaunchConfig config = {.gridDimX = 16, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1,
                           .blockDimZ = 1, .attrs = &at, .numAttrs = 1};
  int n = -1;
  *r = active ? cuOccupancyMaxActiveClusters(&n, f, &config) : cuOccupancyMaxPotentialClusterSize(&n, f, &config);
  return n;
}

int main(int argc, char **argv) {
  start(argc, argv);
  int v;
  CUresult r;
  CK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0));
  printf("clusters: %d\n", v);
  CUmodule m;
  CK(cuModuleLoadData(&m, ptx));
  CUfunction places = function(m, "places"), neighbours = function(m, "neighbours");
  CUdeviceptr in, out;
  static uint32_t h[4096];
  CK(cuMemAlloc(&in, sizeof h));
  CK(cuMemAlloc(&out, sizeof h));
#define RUN(name, blocks, threads, words, ...) \
  do { \
    void *args_[] = {__VA_ARGS__}; \
    CK(cuMemsetD32(out, 0xdead, 4096)); \
    CK(cuLaunchKernel(function(m, name), blocks, 1, 1, threads, 1, 1, 0, 0, args_, NULL)); \
    CK(cuMemcpyDtoH(h, out, sizeof h)); \
    printf("%s:", name); \
    for (int i_ = 0; i_ < (words); i_++) printf("%s%u", i_ % 8 ? " " : "\n  ", h[i_]); \
    printf("\n"); \
  } while (0)
  RUN("neighbours", 8, 64, 64, &out);
  RUN("rounds", 1, 128, 128, &out);
  RUN("rounds", 1, 96, 96, &out);
  RUN("counts", 1, 1, 7, &out);
  RUN("pair", 2, 32, 64, &out);
  fill(h, sizeof h, 7);
  for (int i = 0; i < 4096; i++) h[i] &= 0xfff;
  CK(cuMemcpyHtoD(in, h, sizeof h));
  RUN("bulk", 4, 256, 0, &in, &out);
  printf("%016llx\n", (unsigned long long)digest(h, 4096));
  RUN("copied", 1, 256, 32, &in, &out);

  // Which clusters there can be.
  unsigned sizes[][6] = {{8, 1, 1, 2, 1, 1}, {4, 4, 2, 2, 2, 2}, {8, 1, 1, 8, 1, 1}, {6, 1, 1, 4, 1, 1},
                         {4, 3, 1, 2, 2, 1}, {9, 1, 1, 9, 1, 1}, {16, 1, 1, 16, 1, 1}, {32, 1, 1, 32, 1, 1},
    {4, 1, 1, 0, 1, 1}, {4, 1, 1, 0, 0, 0}, {4, 1, 1, 1, 1, 1}, {4, 4, 1, 4, 4, 1}, {3, 1, 1, 3, 1, 1}};
  for (int pass = 0; pass < 2; pass++) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      unsigned *s = sizes[i];
      CK(cuMemsetD32(out, 0, 4096));
      printf("grid %u %u %u, cluster %u %u %u: ", s[0], s[1], s[2], s[3], s[4], s[5]);
      printf("%d ", launch(places, s[0], s[1], s[2], s[3], s[4], s[5], out));
      CK(cuMemcpyDtoH(h, out, sizeof h));
      printf("%016llx\n", (unsigned long long)digest(h, sizeof h));
    }
    r = cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, places);
    printf("non-portable sizes: %d %d\n", r, v);
    v = clusters(places, 2, &r, 0);
    printf("largest size: %d %d\n", r, v);
    for (unsigned x = 1; x <= 32; x *= 2) {
      v = clusters(places, x, &r, 1);
      printf("clusters of %u: %d, %s\n", x, r, v > 0 ? "some" : v == 0 ? "none" : "unknown");
    }
    SHOW(cuFuncSetAttribute(places, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  }
  // A kernel that says which clusters it wants gets them, and no others.
  printf("required: ");
  for (int i = 0; i < 3; i++) {
    CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + i, neighbours));
    printf("%d ", v);
  }
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, neighbours));
  printf("must be set: %d\n", v);
  v = clusters(neighbours, 4, &r, 0);
  printf("largest size of it: %d %d\n", r, v);
  v = clusters(neighbours, 2, &r, 1);
  printf("clusters of 2 of it: %d %d\n", r, v > 0);
  void *args[] = {&out};
  SHOW(cuLaunchKernel(neighbours, 6, 1, 1, 32, 1, 1, 0, 0, args, NULL));
  SHOW(launch(neighbours, 8, 1, 1, 4, 1, 1, out));
  SHOW(launch(neighbours, 8, 1, 1, 2, 1, 1, out));
  SHOW(launch(neighbours, 8, 1, 1, 1, 1, 1, out));
  SHOW(cuFuncSetAttribute(neighbours, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2));
  SHOW(cuCtxSynchronize());
  // In a graph.
  CUgraph g;
  CUgraphNode node;
  CUgraphExec exec;
  CUDA_KERNEL_NODE_PARAMS p = {.func = places, .gridDimX = 8, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
                               .blockDimY = 1, .blockDimZ = 1, .kernelParams = args};
  CK(cuGraphCreate(&g, 0));
  CK(cuGraphAddKernelNode(&node, g, NULL, 0, &p));
  CUkernelNodeAttrValue value = {0};
  value.clusterDim.x = 4, value.clusterDim.y = value.clusterDim.z = 1;
  SHOW(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
  memset(&value, 0, sizeof value);
  SHOW(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
  printf("%u %u %u\n", value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
  CK(cuMemsetD32(out, 0, 4096));
  CK(cuGraphInstantiateWithFlags(&exec, g, 0));
  CK(cuGraphLaunch(exec, 0));
  CK(cuMemcpyDtoH(h, out, sizeof h));
  for (int i = 0; i < 64; i++) printf("%u%s", h[i], i % 8 == 7 ? "\n" : " ");
  SHOW(cuFuncSetAttribute(places, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2));
  SHOW(cuLaunchKernel(places, 2, 1, 1, 32, 1, 1, 0, 0, args, NULL));
  SHOW(cuCtxSynchronize());
  return 0;
}
