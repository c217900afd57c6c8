/* Calls every function that the file argv[2] names in the library argv[1] with zeros for all arguments and prints "NAME
 * RESULT" lines. argv[3]: "" before cuInit, "init" after it, "context" with the primary context current, "fork" in a
 * child of a process with a session. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef long (*fn)(long, long, long, long, long, long, long, long, long, long, long, long);

static void *lib;

static int must(const char *name, int result) {
  if (result) fprintf(stderr, "%s: %d\n", name, result);
  return result;
}

static int make_current(void) {
  void *ctx;
  if (must("cuDevicePrimaryCtxRetain", ((int (*)(void **, int))dlsym(lib, "cuDevicePrimaryCtxRetain"))(&ctx, 0)))
    return 1;
  return must("cuCtxSetCurrent", ((int (*)(void *))dlsym(lib, "cuCtxSetCurrent"))(ctx));
}

static int prepare(const char *when) {
  if (!*when) return 0;
  if (must("cuInit", ((int (*)(unsigned))dlsym(lib, "cuInit"))(0))) return 1;
  return strcmp(when, "init") ? make_current() : 0;
}

int main(int argc, char **argv) {
  char name[256];
  if (argc != 4) return 2;
  lib = dlopen(argv[1], RTLD_NOW);
  FILE *names = fopen(argv[2], "r");
  if (!lib || !names) {
    fprintf(stderr, "%s\n", lib ? argv[2] : dlerror());
    return 2;
  }
  if (prepare(argv[3])) return 3;
  if (!strcmp(argv[3], "fork")) {
    int status;
    pid_t child = fork();
    if (child < 0) return 2;
    if (child > 0) {
      if (waitpid(child, &status, 0) != child) return 4;
      if (WIFSIGNALED(status)) fprintf(stderr, "signal %d\n", WTERMSIG(status));
      return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
    }
  }
  while (fscanf(names, "%255s", name) == 1) {
    fn f = (fn)dlsym(lib, name);
    if (!strcmp(argv[3], "context") && make_current()) return 3;   /* some functions take it away */
    /* the calls before it may have ended or popped the context */
    if (!strcmp(argv[3], "context") && prepare(argv[3])) return 3;
    printf("%s", name);
    fflush(stdout);                      /* a crash leaves the name of the function that crashed */
    if (!f) printf(" missing\n");
    else printf(" %d\n", (int)f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  }
  fflush(stdout);
  _exit(0);
}
