// Cooperative groups: a grid that waits for itself, clusters with distributed shared memory, tiles of a warp.
#include "check.cuh"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

__global__ void rounds(unsigned *a, int n, int times) {
  cg::grid_group grid = cg::this_grid();
  for (int t = 0; t < times; t++) {
    for (int i = grid.thread_rank(); i < n; i += grid.size())
      a[(t + 1) % 2 * n + i] = a[t % 2 * n + i] + a[t % 2 * n + (i + 1) % n];
    grid.sync();
  }
}

__global__ void __cluster_dims__(4, 1, 1) neighbours(int *out) {
  __shared__ int mine;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) mine = 100 * blockIdx.x;
  cluster.sync();
  int *theirs = cluster.map_shared_rank(&mine, (cluster.block_rank() + 1) % cluster.num_blocks());
  if (threadIdx.x == 0) out[blockIdx.x] = *theirs + cluster.block_rank();
  cluster.sync();
}

__global__ void tiles(int *out) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int sum = cg::reduce(tile, (int)threadIdx.x, cg::plus<int>());
  if (tile.thread_rank() == 0) out[threadIdx.x / 8] = sum;
}

int main() {
  int blocks, n = 4096, times = 6;
  cudaDeviceProp p;
  CK(cudaGetDeviceProperties(&p, 0));
  CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, rounds, 256, 0));
  unsigned *a, sum = 0;
  CK(cudaMalloc(&a, 8 * n));
  unsigned *host = new unsigned[n];
  for (int i = 0; i < n; i++) host[i] = i;
  CK(cudaMemcpy(a, host, 4 * n, cudaMemcpyHostToDevice));
  void *args[] = {&a, &n, &times};
  CK(cudaLaunchCooperativeKernel((void *)rounds, 16, 256, args, 0, 0));
  CK(cudaMemcpy(host, a, 4 * n, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; i++) sum = sum * 31 + host[i];
  printf("grid: %u\n", sum);
  cudaError_t big = cudaLaunchCooperativeKernel((void *)rounds, blocks * p.multiProcessorCount + 1, 256, args, 0, 0);
  printf("too large: %s\n", cudaGetErrorName(big));
  cudaGetLastError();
  int *out, o[16];
  CK(cudaMalloc(&out, sizeof o));
  neighbours<<<8, 32>>>(out);
  CK(cudaMemcpy(o, out, sizeof o, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 8; i++) printf("block %d: %d\n", i, o[i]);
  cudaLaunchConfig_t config = {};
  config.gridDim = 8;
  config.blockDim = 32;
  cudaLaunchAttribute at[1];
  at[0].id = cudaLaunchAttributeClusterDimension;
  at[0].val.clusterDim = {2, 1, 1};
  config.attrs = at;
  config.numAttrs = 1;
  int clusters = 0;
  CK(cudaOccupancyMaxActiveClusters(&clusters, tiles, &config));
  CK(cudaLaunchKernelEx(&config, tiles, out));
  CK(cudaMemcpy(o, out, 16, cudaMemcpyDeviceToHost));
  printf("clusters %d, tiles %d %d %d %d\n", clusters, o[0], o[1], o[2], o[3]);
  return 0;
}
