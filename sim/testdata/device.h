// What these kernels need of CUDA's headers, which they do without.
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define KERNEL extern "C" __global__ void
#define tid ((int)__nvvm_read_ptx_sreg_tid_x())
#define tid_y ((int)__nvvm_read_ptx_sreg_tid_y())
#define block ((int)__nvvm_read_ptx_sreg_ctaid_x())
#define block_y ((int)__nvvm_read_ptx_sreg_ctaid_y())
#define threads ((int)__nvvm_read_ptx_sreg_ntid_x())
#define blocks ((int)__nvvm_read_ptx_sreg_nctaid_x())
#define sync() __syncthreads()
