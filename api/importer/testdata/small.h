/* A header with everything that the driver's headers do. */
#ifndef SMALL_H
#define SMALL_H
#include <stddef.h>
#include <stdint.h>

typedef uint32_t cuuint32_t;
typedef unsigned long long smallptr_v2;
typedef smallptr_v2 smallptr;
typedef struct ctx_st *ctx;
typedef enum color_enum { RED = 1, GREEN = 2 * RED, BLUE, NONE = -1, LAST = 0x7fffffff } color;
typedef enum { ALPHA = 7 } nameless;
typedef struct uuid_st { char bytes[16]; } uuid;
typedef void (*callback)(ctx c, color, void *data);
typedef struct box_st {
  unsigned char kind;
  union {
    struct { ctx owner; size_t n; } array;
    struct { const void *p; float f[2][3]; } linear;
    long long reserved[8];
  } res;
  struct { int inner; };
  uuid ids[2];
  callback fn;
  color c;
} box_v1;
typedef box_v1 box;
typedef struct { unsigned int version; struct { short a, b; } pairs[3]; } plain_t;

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define PTSZ(f) f##_ptsz
#else
#define PTSZ(f) f
#endif
#define smallAlloc smallAlloc_v2
#define smallSync PTSZ(smallSync)

color smallInit(void);
color smallAlloc(smallptr *p, size_t n, const box *b, const char *const *names);
color smallSync(ctx);
const char *smallName(const uuid id[2], void **out, unsigned int (*sizes)(int));
int other(int);

#ifdef __CUDA_API_VERSION_INTERNAL
#undef smallAlloc
typedef struct old_st { unsigned int n; } old_v1;
color smallAlloc(old_v1 *p);
#endif
#endif
