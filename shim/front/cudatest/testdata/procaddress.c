/* Asks cuGetProcAddress_v2 of the library argv[1] for every row of the file argv[2] (name, flags, version, symbol or
 * -RESULT/STATUS) and prints the rows that get another answer. argv[3] "init": after cuInit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  char line[512], name[256], want[256], got[300];
  unsigned long long flags;
  int version, rows = 0, bad = 0;
  if (argc != 4) return 2;
  void *lib = dlopen(argv[1], RTLD_NOW);
  FILE *table = fopen(argv[2], "r");
  if (!lib || !table) return 2;
  if (*argv[3] && ((int (*)(unsigned))dlsym(lib, "cuInit"))(0)) return 3;
  int (*v2)(const char *, void **, int, uint64_t,
            int *) = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(lib, "cuGetProcAddress_v2");
  int (*v1)(const char *, void **, int, uint64_t) = (int (*)(const char *, void **, int, uint64_t))dlsym(lib,
      "cuGetProcAddress");
  while (fgets(line, sizeof line, table)) {
    if (*line == '#' || sscanf(line, "%255s %llu %d %255s", name, &flags, &version, want) != 4) continue;
    rows++;
    int status = 77, result;
    void *p = (void *)8;
    result = v2(name, &p, version, flags, &status);
    if (!p) {
      snprintf(got, sizeof got, "-%d/%d", result, status);
    } else {
      Dl_info info;
      snprintf(got, sizeof got, "%s", result == 0 && status == 0 && p == dlsym(lib, want) ? want :
               dladdr(p, &info) && info.dli_sname ? info.dli_sname : "?");
      if (result || status) snprintf(got + strlen(got), sizeof got - strlen(got), " with %d/%d", result, status);
    }
    if (strcmp(got, want)) {
      bad++;
      printf("%s flags %llu version %d: %s, want %s\n", name, flags, version, got, want);
    }
    void *q = (void *)8;                 /* the 4-argument form: the same pointer, or 500 */
    result = v1(name, &q, version, flags);
    if (p ? q != p || result : q || result != 500) {
      bad++;
      printf("%s flags %llu version %d: the 4-argument form gives %d %s\n", name, flags, version, result,
             q == p ? "the same" : "another");
    }
  }
  printf("%d rows, %d wrong\n", rows, bad);
  return 0;
}
