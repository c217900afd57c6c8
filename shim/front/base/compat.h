/* Binds the symbols that glibc moved or re-versioned after 2.31 to their old versions, so that libraries and programs
 * built on a newer system run on an older one. Force-included (-include) into every C file of the shim and of the
 * programs, the C parts of Go packages among them. */
#ifndef SCUDA_COMPAT_H
#define SCUDA_COMPAT_H
#if defined(__linux__) && defined(__x86_64__)
#define SCUDA_OLDEST "GLIBC_2.2.5"
#elif defined(__linux__) && defined(__aarch64__)
#define SCUDA_OLDEST "GLIBC_2.17"
#endif
#if defined(SCUDA_OLDEST) && !defined(__ASSEMBLER__)
__asm__(".symver dladdr,dladdr@" SCUDA_OLDEST);
__asm__(".symver dlclose,dlclose@" SCUDA_OLDEST);
__asm__(".symver dlerror,dlerror@" SCUDA_OLDEST);
__asm__(".symver dlopen,dlopen@" SCUDA_OLDEST);
__asm__(".symver dlsym,dlsym@" SCUDA_OLDEST);
#ifdef __x86_64__ /* elsewhere there is one version */
__asm__(".symver memcpy,memcpy@GLIBC_2.14");
__asm__(".symver dladdr1,dladdr1@GLIBC_2.3.3");
#else
__asm__(".symver dladdr1,dladdr1@" SCUDA_OLDEST);
#endif
__asm__(".symver pthread_attr_getstack,pthread_attr_getstack@" SCUDA_OLDEST);
__asm__(".symver pthread_attr_setstacksize,pthread_attr_setstacksize@" SCUDA_OLDEST);
__asm__(".symver pthread_attr_getstacksize,pthread_attr_getstacksize@" SCUDA_OLDEST);
__asm__(".symver pthread_barrier_init,pthread_barrier_init@" SCUDA_OLDEST);
__asm__(".symver pthread_barrier_wait,pthread_barrier_wait@" SCUDA_OLDEST);
__asm__(".symver pthread_create,pthread_create@" SCUDA_OLDEST);
__asm__(".symver pthread_detach,pthread_detach@" SCUDA_OLDEST);
__asm__(".symver pthread_getattr_np,pthread_getattr_np@" SCUDA_OLDEST);
__asm__(".symver pthread_getspecific,pthread_getspecific@" SCUDA_OLDEST);
__asm__(".symver pthread_join,pthread_join@" SCUDA_OLDEST);
__asm__(".symver pthread_key_create,pthread_key_create@" SCUDA_OLDEST);
__asm__(".symver pthread_kill,pthread_kill@" SCUDA_OLDEST);
__asm__(".symver pthread_once,pthread_once@" SCUDA_OLDEST);
__asm__(".symver pthread_setspecific,pthread_setspecific@" SCUDA_OLDEST);
__asm__(".symver pthread_sigmask,pthread_sigmask@" SCUDA_OLDEST);
#ifndef SCUDA_INTERPOSE /* which has one of its own */
__asm__(".symver sem_post,sem_post@" SCUDA_OLDEST);
#endif
__asm__(".symver sem_wait,sem_wait@" SCUDA_OLDEST);

#ifdef SCUDA_PROGRAM
/* The start of a program, linked with --wrap=__libc_start_main. Since 2.34 the C library runs a program's constructors
 * itself, and the start files, which are linked into the program, pass none; the start that all versions have is told
 * them. */
typedef int scuda_main(int, char **, char **);
extern scuda_main *__init_array_start[] __attribute__((visibility("hidden"))),
    *__init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);
extern int scuda_start(scuda_main *, int, char **, scuda_main *, void (*)(void), void (*)(void), void *);
__asm__(".symver scuda_start,__libc_start_main@" SCUDA_OLDEST);
static int scuda_construct(int argc, char **argv, char **env) {
  _init();
  for (scuda_main **f = __init_array_start; f < __init_array_end; f++) (*f)(argc, argv, env);
  return 0;
}
__attribute__((weak)) int __wrap___libc_start_main(scuda_main *program, int argc, char **argv, scuda_main *init,
                                                   void (*fini)(void), void (*end)(void), void *stack) {
  return scuda_start(program, argc, argv, init ? init : scuda_construct, fini, end, stack);
}
#endif
#endif
#endif
