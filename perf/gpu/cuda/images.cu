// nvcc: -lnppif -lnppial -lnppidei -lnppist -lnppig -lnppc
// NPP: filters, arithmetic, statistics, resizing.
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <npp.h>

#define PK(call) \
  do { \
    NppStatus got_ = (call); \
    if (got_ != NPP_SUCCESS) FAIL("%s: %d", #call, (int)got_); \
  } while (0)

int main() {
  const int w = 200, h = 120;
  NppStreamContext c;
  memset(&c, 0, sizeof c);
  cudaDeviceProp p;
  CK(cudaGetDeviceProperties(&p, 0));
  c.nMultiProcessorCount = p.multiProcessorCount, c.nMaxThreadsPerMultiProcessor = p.maxThreadsPerMultiProcessor,
      c.nMaxThreadsPerBlock = p.maxThreadsPerBlock;
  c.nSharedMemPerBlock = p.sharedMemPerBlock, c.nCudaDevAttrComputeCapabilityMajor = p.major,
      c.nCudaDevAttrComputeCapabilityMinor = p.minor;
  CK(cudaStreamCreate(&c.hStream));
  std::vector<Npp8u> host(w * h);
  for (int i = 0; i < w * h; i++) host[i] = (Npp8u)(sample(i) * 255);
  Out<Npp8u> a(w * h), b(w * h), half(w * h / 4);
  CK(cudaMemcpy(a.p, host.data(), host.size(), cudaMemcpyHostToDevice));
  NppiSize all = {w, h};
  NppiPoint origin = {0, 0};
  PK(nppiFilterBoxBorder_8u_C1R_Ctx(a.p, w, all, origin, b.p, w, all, {5, 5}, {2, 2}, NPP_BORDER_REPLICATE, c));
  CK(cudaStreamSynchronize(c.hStream));
  show("box", b.get());
  PK(nppiFilterGaussBorder_8u_C1R_Ctx(a.p, w, all, origin, b.p, w, all, NPP_MASK_SIZE_5_X_5, NPP_BORDER_REPLICATE, c));
  CK(cudaStreamSynchronize(c.hStream));
  show("gauss", b.get());
  PK(nppiAddC_8u_C1RSfs_Ctx(a.p, w, 40, b.p, w, all, 0, c));
  CK(cudaStreamSynchronize(c.hStream));
  auto sums = b.get();
  for (int i = 0; i < w * h; i++) CHECK(sums[i] == std::min(host[i] + 40, 255), "pixel %d is %d", i, sums[i]);
  PK(nppiResize_8u_C1R_Ctx(a.p, w, all, {0, 0, w, h}, half.p, w / 2,
                           {w / 2, h / 2}, {0, 0, w / 2, h / 2}, NPPI_INTER_LINEAR, c));
  CK(cudaStreamSynchronize(c.hStream));
  show("half the size", half.get());
}
