// Unified memory in the usual patterns: a list, a tree, a grid whose steps the CPU and the GPU take in turn, a vector
// that the CPU adds up, a std::vector with a managed allocator, __managed__ variables, and system calls on managed
// memory.
#include "check.cuh"
#include <fcntl.h>
#include <unistd.h>

struct Node { unsigned value; Node *next; };
struct Tree { unsigned value, sum; Tree *left, *right; };

__managed__ unsigned counter = 5;
__managed__ float table[1000];
__managed__ Node *head;

template <typename T> T *managed(size_t n = 1) {
  T *p;
  CK(cudaMallocManaged(&p, n * sizeof(T)));
  return p;
}

template <typename T> struct Managed {
  using value_type = T;
  Managed() = default;
  template <typename U> Managed(const Managed<U> &) {}
  T *allocate(size_t n) { return managed<T>(n); }
  void deallocate(T *p, size_t) { CK(cudaFree(p)); }
  template <typename U> bool operator==(const Managed<U> &) const { return true; }
  template <typename U> bool operator!=(const Managed<U> &) const { return false; }
};

__global__ void walk(Node *n, unsigned add, unsigned long long *sum) {
  for (; n; n = n->next) *sum += n->value += add;
}
__global__ void walk_head(unsigned add) {
  for (Node *n = head; n; n = n->next) counter += n->value + add;
}
__device__ unsigned sum_of(Tree *t) {
  if (!t) return 0;
  return t->sum = t->value + sum_of(t->left) + sum_of(t->right);
}
__global__ void sums(Tree *t) { sum_of(t); }
__global__ void step(const float *a, float *b, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * n; i += gridDim.x * blockDim.x) {
    int x = i % n, y = i / n;
    b[i] = x && y && x < n - 1 && y < n - 1 ? (a[i - 1] + a[i + 1] + a[i - n] + a[i + n]) * 0.25f : a[i];
  }
}
__global__ void square(unsigned *p, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
    p[i] = p[i] * p[i] + 1;
}
__global__ void scale_table(float f) { table[threadIdx.x] *= f; }

static Tree *build(Tree *&pool, int depth, unsigned &seed) {
  if (!depth) return nullptr;
  Tree *t = pool++;
  seed = seed * 1664525 + 1013904223;
  t->value = seed >> 20;
  t->left = build(pool, depth - 1, seed);
  t->right = build(pool, depth - 1, seed);
  return t;
}

static void list() {
  Node *first = nullptr;
  for (unsigned i = 0; i < 2000; i++) {
    Node *n = managed<Node>();
    n->value = i, n->next = first, first = n;
  }
  auto *sum = managed<unsigned long long>();
  for (unsigned round = 0; round < 3; round++) {
    walk<<<1, 1>>>(first, round, sum);
    RAN();
    printf("list %llu\n", *sum);
    first->value *= 3;
  }
  while (first) {
    Node *next = first->next;
    CK(cudaFree(first));
    first = next;
  }
  CK(cudaFree(sum));
}

static void tree() {
  Tree *pool = managed<Tree>(1 << 14), *end = pool;
  unsigned seed = 1;
  Tree *root = build(end, 13, seed);
  CK(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
  sums<<<1, 1>>>(root);
  RAN();
  printf("tree %u %u %u\n", root->sum, root->left->sum, root->right->right->sum);
  CK(cudaFree(pool));
}

static void grid() {
  const int n = 700;
  float *a = managed<float>(n * n), *b = managed<float>(n * n);
  for (int i = 0; i < n * n; i++) a[i] = (float)(i % 1000);
  for (int k = 0; k < 10; k++) {
    step<<<64, 256>>>(a, b, n);
    RAN();
    for (int i = 1; i < n - 1; i++) b[i * n + i] += (float)k; // the CPU's part
    std::swap(a, b);
  }
  printf("grid %016llx\n", (unsigned long long)digest(a, sizeof *a * n * n));
  CK(cudaFree(a));
  CK(cudaFree(b));
}

static void vectors() {
  std::vector<unsigned, Managed<unsigned>> v;
  for (unsigned i = 0; i < 300000; i++) v.push_back(i); // grows, moving
  square<<<32, 256>>>(v.data(), v.size());
  RAN();
  unsigned long long total = 0;
  for (unsigned x : v) total += x;
  printf("vector %llu\n", total);
  v.insert(v.begin() + 1000, 7777, 42u);
  square<<<32, 256>>>(v.data(), v.size());
  RAN();
  printf("vector %016llx\n", (unsigned long long)digest(v.data(), v.size() * sizeof v[0]));
}

static void variables() {
  printf("variables at first %u %g\n", counter, table[999]);
  for (int i = 0; i < 1000; i++) table[i] = i * 0.5f;
  Node *n = managed<Node>(3);
  for (int i = 0; i < 3; i++) n[i] = {10u * i, i < 2 ? &n[i + 1] : nullptr};
  head = n;
  counter++;
  walk_head<<<1, 1>>>(1);
  scale_table<<<1, 1000>>>(3);
  RAN();
  printf("variables %u %g %g\n", counter, table[1], table[999]);
  counter = 100;
  walk_head<<<1, 1>>>(2);
  RAN();
  printf("variables again %u\n", counter);
  unsigned there;
  CK(cudaMemcpyFromSymbol(&there, counter, sizeof there));
  printf("copied %u\n", there);
  CK(cudaFree(n));
}

static void system_calls() { // that touch memory which a kernel wrote last
  const size_t bytes = 1 << 20;
  auto *p = managed<unsigned>(bytes / 4);
  for (size_t i = 0; i < bytes / 4; i++) p[i] = (unsigned)i;
  square<<<32, 256>>>(p, bytes / 4);
  RAN();
  char name[] = "/tmp/managed-XXXXXX";
  int f = mkstemp(name);
  unlink(name);
  bool wrote = write(f, p, bytes) == (ssize_t)bytes;
  square<<<32, 256>>>(p, bytes / 4);
  RAN();
  bool read_back = pread(f, p, bytes, 0) == (ssize_t)bytes;
  square<<<32, 256>>>(p, bytes / 4);
  RAN();
  printf("write %d, read %d, %016llx\n", wrote, read_back, (unsigned long long)digest(p, bytes));
  close(f);
  CK(cudaFree(p));
}

static void about() {
  char *p = managed<char>(3 << 20);
  cudaPointerAttributes a;
  CK(cudaPointerGetAttributes(&a, p + 100));
  printf("type %d, pointers %d %d\n", a.type, a.devicePointer == p + 100, a.hostPointer == p + 100);
  memset(p, 1, 3 << 20);
  CK(cudaMemset(p + 5, 2, 100));
  CK(cudaDeviceSynchronize());
  printf("set %d %d %d\n", p[4], p[5], p[105]);
  std::vector<char> h(3 << 20, 9);
  CK(cudaMemcpy(p, h.data(), 1 << 20, cudaMemcpyDefault));
  CK(cudaMemcpy(h.data(), p, h.size(), cudaMemcpyDeviceToHost));
  printf("copied %016llx\n", (unsigned long long)digest(h.data(), h.size()));
  for (int i = 0; i < 10000; i++) {
    char *q = managed<char>(1 + i * 7 % 5000);
    if (i % 100 == 0) *q = 1;
    CK(cudaFree(q));
  }
  CK(cudaFree(p));
  SHOW(cudaFree(p));
}

int main() {
  list();
  tree();
  grid();
  vectors();
  variables();
  system_calls();
  about();
  return 0;
}
