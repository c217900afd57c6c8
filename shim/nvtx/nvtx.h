/* The interface by which a program's NVTX calls come to a tool, as far as it is used here. Written from NVIDIA's public
 * documentation of NVTX 3 (docs/profiling.md has the facts); the header of NVIDIA's is not needed.
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
enum { NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };
enum {
  NVTX_MARK_EX = 1, NVTX_MARK_A, NVTX_MARK_W, NVTX_START_EX, NVTX_START_A, NVTX_START_W, NVTX_END, NVTX_PUSH_EX,
  NVTX_PUSH_A, NVTX_PUSH_W, NVTX_POP, NVTX_CATEGORY_A, NVTX_CATEGORY_W, NVTX_THREAD_A, NVTX_THREAD_W
};
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
#endif
