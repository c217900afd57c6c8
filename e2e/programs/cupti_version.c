// Which CUPTI a program gets: cupti_version [LIBRARY...]: of each library that it opens, which is a CUPTI or (made of
// this file with -DWHEEL) one that is linked with it.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

extern int cuptiGetVersion(uint32_t *);

#if defined WHEEL
int wheel_version(uint32_t *version) { return cuptiGetVersion(version); }
#else
static void say(int (*version)(uint32_t *)) {
  uint32_t v = 0;
  int r = version(&v);
  if (r) printf("result %d\n", r);
  else printf("version %u\n", v);
}

int main(int argc, char **argv) {
#if defined LINKED
  extern int wheel_version(uint32_t *);
  say(LINKED);
#endif
  for (int i = 1; i < argc; i++) {
    void *library = dlopen(argv[i], RTLD_NOW), *of;
    if (!library) {
      printf("%s\n", dlerror());
      continue;
    }
    if (!(of = dlsym(library, "wheel_version"))) of = dlsym(library, "cuptiGetVersion");
    say((int (*)(uint32_t *))of);
  }
  return 0;
}
#endif
