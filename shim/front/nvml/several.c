/* NVML over several servers. A call is for the server of its handles. The GPUs of the servers stand one behind the
 * other: a GPU's number is that of its server plus those of the servers before. What looks a GPU up by a name asks the
 * servers in their order. What is of no GPU (the system, units) is of the first server.
 *
 * Machines number their PCI domains alike, so each server but the first has domains of its own in what NVML says:
 * those of its machine, changed in the topmost four of sixteen bits. */
#include "nvml/nvml.h"
#include "base/common.h"
#include "nvml/gen/nvml_gen.h"
#include <stdio.h>
#include <string.h>

enum { TOPOLOGY_SYSTEM = 50, P2P_NOT_SUPPORTED = 5 };
enum { ID_BITS = 12, IDS = 1 << ID_BITS };

static int to_server(uint32_t index, const uint64_t *args, uint32_t server) {
  return nvml_forward(index, args, &(struct nvml_route){.server = server, .known = 1});
}

/* ---- numbers ---- */

static uint32_t before(uint32_t server) {
  uint32_t n = 0;
  for (uint32_t s = 0; s < server; s++) n += nvml_gpus(s);
  return n;
}

uint32_t nvml_server_of(uint32_t *index) {
  uint32_t last = nvml_servers() - 1, s = 0;
  while (s < last && *index >= nvml_gpus(s)) *index -= nvml_gpus(s++);
  return s;
}

static int count(uint32_t index, const uint64_t *args) {
  unsigned *to = (unsigned *)(uintptr_t)args[0];
  if (to == NULL) return to_server(index, args, 0);
  *to = before(nvml_servers());
  return NVML_OK;
}

static int by_index(uint32_t index, const uint64_t *args) {
  uint32_t number = (uint32_t)args[0], server = nvml_server_of(&number);
  uint64_t there[2] = {number, args[1]};
  return to_server(index, there, server);
}

/* ---- PCI ---- */

/* Its own inverse. */
static uint32_t moved(uint32_t domain, uint32_t server) { return domain ^ server << 12; }

/* The domain with which the text of a bus id begins, in so many digits; 0: it begins with none. */
static int domain_of(const char *text, size_t room, uint32_t *domain) {
  int digits = 0;
  for (*domain = 0; (size_t)digits < room && digits <= 8; digits++) {
    char c = text[digits];
    if (c == ':') return digits;
    uint32_t v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 16;
    if (v == 16) return 0;
    *domain = *domain << 4 | v;
  }
  return 0;
}

/* Changes the domain in the text of a bus id, which keeps its length. */
static void move_text(char *text, size_t room, uint32_t server) {
  uint32_t domain;
  char changed[16];
  int digits = domain_of(text, room, &domain);
  if (digits != 0 && snprintf(changed, sizeof changed, "%0*X", digits, moved(domain, server)) == digits)
    memcpy(text, changed, (size_t)digits);
}

/* nvmlPciInfo_t; the older ones end before the second text */
struct pci { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; };
/* nvmlPciInfoExt_v1_t */
struct pci_ext { uint32_t version, domain, bus, device, id, subsystem, base, sub; char bus_id[32]; };

static void move_pci(struct pci *p, uint32_t server, int whole) {
  p->domain = moved(p->domain, server);
  move_text(p->legacy, sizeof p->legacy, server);
  if (whole) move_text(p->bus_id, sizeof p->bus_id, server);
}

static int by_bus_id(uint32_t index, const uint64_t *args) {
  const char *text = (const char *)(uintptr_t)args[0];
  const char *rest;
  uint32_t domain;
  int lost, first = to_server(index, args, 0);
  if (first == NVML_OK || text == NULL || !domain_of(text, 9, &domain)) return first;
  rest = strchr(text, ':');
  if (strchr(rest + 1, ':') == NULL) return first;   /* without a domain it is one of the first server */
  lost = first == NVML_GPU_IS_LOST;
  for (uint32_t s = 1; s < nvml_servers(); s++) {
    char there[64];
    snprintf(there, sizeof there, "%08X%s", moved(domain, s), rest);
    uint64_t a[2] = {(uint64_t)(uintptr_t)there, args[1]};
    int r = to_server(index, a, s);
    if (r == NVML_OK) return r;
    lost |= r == NVML_GPU_IS_LOST;
  }
  return lost ? NVML_GPU_IS_LOST : first;
}

/* A drained or searched GPU is named by its place alone. */
static int by_place(uint32_t index, const uint64_t *args) {
  const struct pci *p = (const struct pci *)(uintptr_t)args[0];
  if (p == NULL) return to_server(index, args, 0);
  uint32_t server = p->domain >> 12;
  if (server >= nvml_servers()) server = 0;
  struct pci there = *p;
  move_pci(&there, server, 1);
  uint64_t a[NVML_MAX_PARAMS];
  memcpy(a, args, sizeof(uint64_t) * nvml_funcs[index].nparams);
  a[0] = (uint64_t)(uintptr_t)&there;
  return to_server(index, a, server);
}

/* ---- names ---- */

static int first_that_knows(uint32_t index, const uint64_t *args) {
  int first = NVML_OK, lost = 0;
  for (uint32_t s = 0; s < nvml_servers(); s++) {
    int r = to_server(index, args, s);
    if (r == NVML_OK) return r;
    if (s == 0) first = r;
    lost |= r == NVML_GPU_IS_LOST;
  }
  return lost ? NVML_GPU_IS_LOST : first;
}

/* ---- event sets and samples ----
 * They are made before it is known for which GPUs, so the program has that of the first server. On others one is made
 * when it is needed, its deputy. */
static scuda_lock_t lock;   /* taken before a session's */
static int any;
static struct {
  uint16_t id[NVML_SERVERS][IDS];   /* of the deputies; of the first server's itself where it is used there */
  uint8_t home[IDS];                /* of samples: the server of the GPU that one was taken of last */
} deputies[2];

enum { SETS, SAMPLES };

int nvml_is_common(unsigned kind) { return kind == NVML_KIND_nvmlEventSet_t || kind == NVML_KIND_nvmlGpmSample_t; }

static int which(unsigned kind) { return kind == NVML_KIND_nvmlGpmSample_t ? SAMPLES : SETS; }

uint64_t nvml_deputy(unsigned kind, uint64_t id, uint32_t server) {
  return id < IDS ? __atomic_load_n(&deputies[which(kind)].id[server][id], __ATOMIC_RELAXED) : 0;
}

uint32_t nvml_sample_home(uint64_t id) {
  return id < IDS ? __atomic_load_n(&deputies[SAMPLES].home[id], __ATOMIC_RELAXED) : 0;
}

static int make_deputy(unsigned kind, uint32_t server, uint16_t *id) {
  uint16_t op = kind == NVML_KIND_nvmlGpmSample_t ? NVML_OP_nvmlGpmSampleAlloc : NVML_OP_nvmlEventSetCreate;
  uint64_t req = 1, reply[2] = {0};
  uint32_t got = 0;
  int r = nvml_exchange(server, op, &req, sizeof req, reply, sizeof reply, &got);
  if (r != NVML_OK) return r;
  if (got != sizeof reply || reply[1] == 0 || reply[1] >= IDS) return NVML_UNKNOWN;
  nvml_session_holds(server);
  *id = (uint16_t)reply[1];
  return NVML_OK;
}

int nvml_deputies(struct nvml_route *route) {
  int r = NVML_OK;
  if (!route->known || nvml_servers() == 1) return NVML_OK;
  scuda_lock(&lock);
  for (int k = 0; r == NVML_OK && k < route->commons; k++) {
    unsigned kind = route->common[k].kind;
    uint64_t id;
    memcpy(&id, route->common[k].at, sizeof id);
    if (id >= IDS) continue;
    uint16_t *deputy = &deputies[which(kind)].id[route->server][id];
    any = 1;
    if (route->server == 0) __atomic_store_n(deputy, (uint16_t)id, __ATOMIC_RELAXED);
    else if (*deputy == 0) r = make_deputy(kind, route->server, deputy);
    if (r == NVML_OK && which(kind) == SAMPLES)
      __atomic_store_n(&deputies[SAMPLES].home[id], (uint8_t)route->server, __ATOMIC_RELAXED);
    id = *deputy;
    memcpy(route->common[k].at, &id, sizeof id);
  }
  scuda_unlock(&lock);
  return r;
}

void nvml_deputies_forget(uint32_t server) {
  scuda_lock(&lock);
  for (int w = 0; any && w < 2; w++) {
    if (server == 0) memset(&deputies[w], 0, sizeof deputies[w]);
    else memset(deputies[w].id[server], 0, sizeof deputies[w].id[server]);
  }
  scuda_unlock(&lock);
}

void nvml_deputies_in_child(void) { atomic_store(&lock.word, 0); }

/* The number that a handle of the program's has on the first server; 0: it is none. */
static uint64_t number_of(uint64_t handle, unsigned kind) {
  uint64_t id;
  return nvml_handle_to_wire(handle, kind, &id, &(struct nvml_route){0}) == NVML_OK ? id : 0;
}

static int free_common(uint32_t index, const uint64_t *args, unsigned kind) {
  uint64_t id = number_of(args[0], kind);
  for (uint32_t s = 0; id != 0 && id < IDS && s < nvml_servers(); s++) {
    scuda_lock(&lock);
    uint64_t deputy = deputies[which(kind)].id[s][id];
    deputies[which(kind)].id[s][id] = 0;
    scuda_unlock(&lock);
    uint32_t got;
    if (s != 0 && deputy != 0) (void)nvml_exchange(s, nvml_funcs[index].op, &deputy, sizeof deputy, NULL, 0, &got);
  }
  return to_server(index, args, 0);
}

/* Asks the servers whose GPUs the set is for, one after the other; they share the time. */
int nvml_wait_several(uint32_t index, uint64_t *args) {
  uint64_t id = number_of(args[0], NVML_KIND_nvmlEventSet_t);
  uint32_t asked = 0, total = (uint32_t)args[2];
  for (uint32_t s = 0; s < nvml_servers(); s++) asked += nvml_deputy(NVML_KIND_nvmlEventSet_t, id, s) != 0;
  if (asked == 0) return nvml_forward_several(index, args);
  int r = NVML_TIMEOUT;
  for (uint32_t s = 0; r == NVML_TIMEOUT && s < nvml_servers(); s++) {
    if (nvml_deputy(NVML_KIND_nvmlEventSet_t, id, s) == 0) continue;
    uint64_t a[3] = {args[0], args[1], (total + asked - 1) / asked};
    r = to_server(index, a, s);
  }
  return r;
}

/* ---- calls ---- */

static void *pointer(const uint64_t *args, int i) { return (void *)(uintptr_t)args[i]; }

/* Two GPUs of two servers have nothing in common. */
static int apart(uint32_t index, const uint64_t *args) {
  uint32_t value;
  switch (index) {
  case NVML_INDEX_nvmlDeviceGetTopologyCommonAncestor: value = TOPOLOGY_SYSTEM; break;
  case NVML_INDEX_nvmlDeviceGetP2PStatus: value = P2P_NOT_SUPPORTED; break;
  case NVML_INDEX_nvmlDeviceOnSameBoard: value = 0; break;
  default: return NVML_INVALID_ARGUMENT;
  }
  uint32_t *to = pointer(args, nvml_funcs[index].nparams - 1);
  if (to == NULL) return NVML_INVALID_ARGUMENT;
  *to = value;
  return NVML_OK;
}

/* Makes what a server says of itself true among all. */
static void among_all(uint32_t index, const uint64_t *args, uint32_t server) {
  switch (index) {
  case NVML_INDEX_nvmlDeviceGetIndex: *(uint32_t *)pointer(args, 1) += before(server); break;
  case NVML_INDEX_nvmlDeviceGetPciInfo:
  case NVML_INDEX_nvmlDeviceGetPciInfo_v2: move_pci(pointer(args, 1), server, 0); break;
  case NVML_INDEX_nvmlDeviceGetPciInfo_v3: move_pci(pointer(args, 1), server, 1); break;
  case NVML_INDEX_nvmlDeviceGetPciInfoExt: {
    struct pci_ext *p = pointer(args, 1);
    p->domain = moved(p->domain, server);
    move_text(p->bus_id, sizeof p->bus_id, server);
    break;
  }
  case NVML_INDEX_nvmlDeviceGetNvLinkRemotePciInfo: move_pci(pointer(args, 2), server, 0); break;
  case NVML_INDEX_nvmlDeviceGetNvLinkRemotePciInfo_v2: move_pci(pointer(args, 2), server, 1); break;
  default: break;
  }
}

int nvml_forward_several(uint32_t index, const uint64_t *args) {
  switch (index) {
  case NVML_INDEX_nvmlDeviceGetCount:
  case NVML_INDEX_nvmlDeviceGetCount_v2: return count(index, args);
  case NVML_INDEX_nvmlDeviceGetHandleByIndex:
  case NVML_INDEX_nvmlDeviceGetHandleByIndex_v2: return by_index(index, args);
  case NVML_INDEX_nvmlDeviceGetHandleByPciBusId:
  case NVML_INDEX_nvmlDeviceGetHandleByPciBusId_v2: return by_bus_id(index, args);
  case NVML_INDEX_nvmlDeviceGetHandleBySerial:
  case NVML_INDEX_nvmlDeviceGetHandleByUUID:
  case NVML_INDEX_nvmlDeviceGetHandleByUUIDV:
  case NVML_INDEX_nvmlSystemGetProcessName: return first_that_knows(index, args);
  case NVML_INDEX_nvmlDeviceDiscoverGpus:
  case NVML_INDEX_nvmlDeviceModifyDrainState:
  case NVML_INDEX_nvmlDeviceQueryDrainState:
  case NVML_INDEX_nvmlDeviceRemoveGpu:
  case NVML_INDEX_nvmlDeviceRemoveGpu_v2: return by_place(index, args);
  case NVML_INDEX_nvmlEventSetFree: return free_common(index, args, NVML_KIND_nvmlEventSet_t);
  case NVML_INDEX_nvmlGpmSampleFree: return free_common(index, args, NVML_KIND_nvmlGpmSample_t);
  default: break;
  }
  struct nvml_route route = {0};
  int r = nvml_forward(index, args, &route);
  if (r == NVML_APART) return apart(index, args);
  if (r == NVML_OK && route.server != 0) among_all(index, args, route.server);
  return r;
}
