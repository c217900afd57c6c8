#include "functions.h"
#define KERNEL(f) kernel void k_##f(global u32 *out, u32 seed) { \
	u32 i = __nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x(); out[i] = f(i * 2654435761u + seed); }
FUNCTIONS(KERNEL)
