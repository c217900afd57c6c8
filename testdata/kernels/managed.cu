// Kernels for the tests of unified memory; managed.ptx is made from this file by Debian's clang 14:
//   clang -x cuda -nocudainc -nocudalib --cuda-device-only --cuda-gpu-arch=sm_70 -O2 -S managed.cu -o managed.ptx
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ u32 thread_index() {
  return __nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
}

struct list { u32 value; u32 pad; list *next; };
struct tree { u32 value, sum; tree *left, *right; };

extern "C" {
// Adds n to every value of a list, and their sum to *sum.
__global__ void walk_list(list *l, u32 n, u64 *sum) {
  u64 s = 0;
  for (; l; l = l->next) s += l->value += n;
  *sum += s;
}

// Depth first with a stack in local memory: sum = value of a node and all below it, for full trees of at most 2^16
// nodes.
__global__ void sum_trees(tree **roots, u32 n) {
  u32 i = thread_index();
  if (i >= n) return;
  tree *stack[40];
  int top = 0;
  u32 total = 0;
  stack[top++] = roots[i];
  while (top) {
    tree *t = stack[--top];
    total += t->value;
    if (t->left) stack[top++] = t->left;
    if (t->right) stack[top++] = t->right;
  }
  roots[i]->sum = total;
}

// One step of diffusion in integers on a grid with fixed edges.
__global__ void stencil(const u32 *from, u32 *to, u32 width, u32 height) {
  for (u32 i = thread_index(); i < width * height;
      i += __nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x()) {
    u32 x = i % width, y = i / width;
    if (!x || !y || x == width - 1 || y == height - 1) to[i] = from[i];
    else to[i] = (from[i - 1] + from[i + 1] + from[i - width] + from[i + width]) / 4 + 1;
  }
}

// p[i] = p[i] * a + b for bytes [from, from+n).
__global__ void mix(unsigned char *p, u64 from, u64 n, u32 a, u32 b) {
  for (u64 i = thread_index(); i < n; i += __nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x())
    p[from + i] = (unsigned char)(p[from + i] * a + b);
}
}
