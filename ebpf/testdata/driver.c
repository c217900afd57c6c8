// A driver library for tests: functions with names that the driver has. Callers compile with frame pointers.
#include <stddef.h>
#include <unistd.h>

int cuDriverGetVersion(int *v) { return *v = 1; }
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t n) { return to == 0 && from == NULL && n == 0; }
int cuMemcpy2D_v2(const void *copy) { return copy == NULL; }
int cuCtxSynchronize(void) { return usleep(30000); }
// Waits until standard input ends.
int cuEventSynchronize(void *e) {
  char c;
  return (int)read(0, &c, 1) + (e != NULL);
}
int cuInit(unsigned n) { return n == 0 ? 0 : cuInit(n - 1) + 1; } // calls itself, and so nests
