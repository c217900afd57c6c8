/* The interface by which a program's NVTX calls come to a tool, as far as it is used here: libscuda-nvtx.so and
 * libcupti.so are such tools. Written from NVIDIA's public documentation of NVTX 3 (docs/profiling.md has the facts);
 * the header of NVIDIA's is not needed.
 *
 * NVTX is code in the program. Its first call looks for a tool: it opens the library that NVTX_INJECTION64_PATH names
 * and calls InitializeInjectionNvtx2 with a function that gives tables by number. The table CALLBACKS has a function
 * that gives, for a module, an array of places for the tool's functions. */
#ifndef SCUDA_NVTX_H
#define SCUDA_NVTX_H
#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

enum { NVTX_TABLE_CALLBACKS = 1 };
enum { NVTX_MODULE_CORE = 1, NVTX_MODULE_CUDA, NVTX_MODULE_CUDART = 4, NVTX_MODULE_CORE2 };
enum {
  NVTX_MARK_EX = 1, NVTX_MARK_A, NVTX_MARK_W, NVTX_START_EX, NVTX_START_A, NVTX_START_W, NVTX_END, NVTX_PUSH_EX,
  NVTX_PUSH_A, NVTX_PUSH_W, NVTX_POP, NVTX_CATEGORY_A, NVTX_CATEGORY_W, NVTX_THREAD_A, NVTX_THREAD_W
};
enum { /* names that the program gives by the driver's handles, and by the runtime's */
  NVTX_CUDA_DEVICE_A = 1, NVTX_CUDA_DEVICE_W, NVTX_CUDA_CONTEXT_A, NVTX_CUDA_CONTEXT_W, NVTX_CUDA_STREAM_A,
  NVTX_CUDA_STREAM_W, NVTX_CUDA_EVENT_A, NVTX_CUDA_EVENT_W
};
enum { NVTX_CUDART_DEVICE_A = 1, NVTX_CUDART_DEVICE_W, NVTX_CUDART_STREAM_A, NVTX_CUDART_STREAM_W };
enum {
  NVTX_DOMAIN_MARK = 1, NVTX_DOMAIN_START, NVTX_DOMAIN_END, NVTX_DOMAIN_PUSH, NVTX_DOMAIN_POP, NVTX_DOMAIN_RESOURCE,
  NVTX_DOMAIN_RESOURCE_GONE, NVTX_DOMAIN_CATEGORY_A, NVTX_DOMAIN_CATEGORY_W, NVTX_DOMAIN_STRING_A,
  NVTX_DOMAIN_STRING_W, NVTX_DOMAIN_CREATE_A, NVTX_DOMAIN_CREATE_W, NVTX_DOMAIN_DESTROY
};
struct nvtx_callbacks {
  size_t bytes;
  int (*functions)(uint32_t module, void ***places, uint32_t *count);
};
typedef const void *(*nvtx_tables)(uint32_t table);

enum { NVTX_COLOR_ARGB = 1, NVTX_MESSAGE_ASCII = 1, NVTX_MESSAGE_UNICODE, NVTX_MESSAGE_REGISTERED };
struct nvtx_attributes {       /* of an event */
  uint16_t version, bytes;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  uint32_t padding;
  const void *message;         /* a text, a wide text, or what registering one gave */
};
_Static_assert(sizeof(struct nvtx_attributes) == 48, "as programs have it");

/* A tool's function. */
struct nvtx_function { uint32_t id; void *own; };

/* Puts a tool's functions into a module of the program's, as far as it has places for them; 0: it has none such. */
static inline int nvtx_fill(const struct nvtx_callbacks *c, uint32_t module, const struct nvtx_function *list,
                            size_t n) {
  void **places = NULL; /* each is the address of the program's variable, which has the function */
  uint32_t count = 0;
  if (!c->functions(module, &places, &count) || !places) return 0;
  for (size_t i = 0; i < n; i++)
    if (list[i].id < count && places[list[i].id]) *(void **)places[list[i].id] = list[i].own;
  return 1;
}

/* A character as UTF-8, whatever the locale is: how many of the four bytes of to it takes. */
static inline uint32_t nvtx_utf8(char *to, uint32_t c) {
  if (c < 0x80) {
    to[0] = (char)c;
    return 1;
  }
  uint32_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3, n = 0;
  to[n++] = (char)(0xff00u >> (more + 1) | (c >> 6 * more & (0x3fu >> more)));
  while (more--) to[n++] = (char)(0x80 | (c >> 6 * more & 0x3f));
  return n;
}
#endif
