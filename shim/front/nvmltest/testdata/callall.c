/* Calls every symbol that the file argv[2] names in the library argv[1], with zeros for all arguments, and prints "NAME
 * RESULT" lines. argv[3]: "" before initialisation, "init" after nvmlInit_v2, "fork" in a child that forks after
 * nvmlInit_v2, "again" in one that initialises for itself. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef long (*fn)(long, long, long, long, long, long, long, long);

int main(int argc, char **argv) {
  char name[256];
  if (argc != 4) return 2;
  void *lib = dlopen(argv[1], RTLD_NOW);
  FILE *names = fopen(argv[2], "r");
  if (!lib || !names) {
    fprintf(stderr, "%s\n", lib ? argv[2] : dlerror());
    return 2;
  }
  if (*argv[3]) {
    int r = ((int (*)(void))dlsym(lib, "nvmlInit_v2"))();
    if (r) { fprintf(stderr, "nvmlInit_v2: %d\n", r); return 3; }
  }
  int again = !strcmp(argv[3], "again");
  if (again || !strcmp(argv[3], "fork")) {
    int status;
    pid_t child = fork();
    if (child < 0) return 2;
    if (child > 0) {
      if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 4;
      int n = ((int (*)(void))dlsym(lib, "nvmlShutdown"))();   /* the parent's session lives on */
      return n ? 5 : WEXITSTATUS(status);
    }
    int r = again ? ((int (*)(void))dlsym(lib, "nvmlInit_v2"))() : 0;
    if (r) return 6;
  }
  while (fscanf(names, "%255s", name) == 1) {
    fn f = (fn)dlsym(lib, name);
    if (!f) { printf("%s missing\n", name); continue; }
    int initialises = !strncmp(name, "nvmlInit", 8) && strcmp(name, "nvmlInternalGetExportTable");
    if (!strcmp(name, "nvmlShutdown") || (initialises && *argv[3])) continue;
    fflush(stdout);                      /* a crash leaves the name of the last function that returned */
    long r = f(0, 0, 0, 0, 0, 0, 0, 0);
    if (!strcmp(name, "nvmlErrorString")) printf("%s %s\n", name, (const char *)r);
    else printf("%s %d\n", name, (int)r);
  }
  fflush(stdout);
  if (!strcmp(argv[3], "init")) return 0; /* as programs do that never call nvmlShutdown */
  _exit(0);
}
