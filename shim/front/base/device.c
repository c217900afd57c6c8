/* The GPUs that the program sees: those of its servers, as CUDA_VISIBLE_DEVICES chooses and orders them. */
#include "base/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

struct scuda_gpu *scuda_gpus;
int32_t scuda_gpu_count;

/* The program must not build on what these attributes promise. */
static const uint16_t absent_features[] = {SCUDA_ABSENT_ATTRIBUTES};

/* An instance of MIG is told by its UUID, which the older call does not know. */
static void format_uuid(const struct scuda_device *d, char out[64]) {
  const uint8_t *u = d->uuid;
  static const uint8_t none[sizeof d->uuid_v1];
  int instance = memcmp(d->uuid_v1, none, sizeof none) && memcmp(d->uuid_v1, u, sizeof none);
  snprintf(out, 64, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           instance ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
           u[13], u[14], u[15]);
}

/* The place in scuda_boot.devices that one entry of CUDA_VISIBLE_DEVICES names, or -1. GPUs of two servers may have one
 * UUID, where they are simulated: the first is meant. */
static int32_t named_device(const char *entry, size_t len) {
  if (len > 4 && (!strncasecmp(entry, "GPU-", 4) || !strncasecmp(entry, "MIG-", 4))) {
    int32_t found = -1;
    for (int32_t i = 0; i < scuda_boot.device_count; i++) {
      char uuid[64];
      format_uuid(&scuda_boot.devices[i], uuid);
      if (len <= strlen(uuid) && !strncasecmp(entry, uuid, len)) {
        if (found < 0) found = i;
        else if (memcmp(scuda_boot.devices[found].uuid, scuda_boot.devices[i].uuid, sizeof scuda_boot.devices[i].uuid))
          return -1; /* ambiguous */
      }
    }
    return found;
  }
  int32_t n = 0;
  if (!len || len > 9) return -1;
  for (size_t i = 0; i < len; i++) {
    if (entry[i] < '0' || entry[i] > '9') return -1;
    n = n * 10 + (entry[i] - '0');
  }
  return n < scuda_boot.device_count ? n : -1;
}

/* Machines number their PCI domains alike, so each server but the first has domains of its own, as in NVML. */
static void move_domain(struct scuda_gpu *g) {
  uint32_t domain;
  char rest[sizeof g->d.pci_bus_id];
  if (!g->server || sscanf(g->d.pci_bus_id, "%x:%15s", &domain, rest) != 2) return;
  snprintf(g->d.pci_bus_id, sizeof g->d.pci_bus_id, "%04x:%.10s", (domain ^ g->server << 12) & 0xffff, rest);
  g->d.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] ^= (int32_t)(g->server << 12);
}

static int32_t add_device(int32_t place) {
  for (int32_t i = 0; i < scuda_gpu_count; i++)
    if (scuda_gpus[i].place == (uint32_t)place) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_gpu *g = &scuda_gpus[scuda_gpu_count];
  g->d = scuda_boot.devices[place];
  g->d.name[sizeof g->d.name - 1] = 0;
  g->d.pci_bus_id[sizeof g->d.pci_bus_id - 1] = 0;
  g->place = (uint32_t)place;
  g->server = g->d.server;
  g->server_ordinal = g->d.ordinal;
  move_domain(g);
  for (size_t i = 0; i < sizeof absent_features / sizeof *absent_features; i++)
    if (!g->d.attribute_result[absent_features[i]]) g->d.attributes[absent_features[i]] = 0;
  struct scuda_visit v = scuda_visit(g->server, 0);
  g->primary = scuda_slot_new(KIND_CUcontext);
  scuda_visit_end(v);
  if (!g->primary) return CUDA_ERROR_OUT_OF_MEMORY;
  struct scuda_slot *s = scuda_slot(g->primary);
  s->flags = SCUDA_CTX_PRIMARY;
  s->device = scuda_gpu_count++;
  return CUDA_SUCCESS;
}

int32_t scuda_devices_setup(void) {
  scuda_servers_setup(scuda_boot.servers);
  int32_t count = scuda_boot.device_count < SCUDA_DEVICES_MAX ? scuda_boot.device_count : SCUDA_DEVICES_MAX;
  scuda_gpus = calloc((size_t)count + 1, sizeof *scuda_gpus);
  if (!scuda_gpus) return CUDA_ERROR_OUT_OF_MEMORY;
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) {
    for (int32_t i = 0; i < count; i++)
      if (add_device(i)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
  }
  while (*visible && scuda_gpu_count < count) {
    visible += strspn(visible, " \t");
    size_t len = strcspn(visible, ",");
    size_t used = len;
    while (used && (visible[used - 1] == ' ' || visible[used - 1] == '\t')) used--;
    int32_t ordinal = named_device(visible, used);
    if (ordinal < 0) break;
    if (add_device(ordinal)) { /* the same device twice: natively no device at all is visible then */
      scuda_gpu_count = 0;
      break;
    }
    visible += len;
    if (*visible) visible++;
  }
  return CUDA_SUCCESS;
}

int32_t scuda_device_from(uint32_t server, int32_t ordinal) {
  for (int32_t i = 0; i < scuda_gpu_count; i++)
    if (scuda_gpus[i].server_ordinal == ordinal && scuda_gpus[i].server == server) return i;
  return ordinal;
}

int32_t scuda_from_server(int32_t ordinal) { return scuda_device_from(scuda_server(), ordinal); }
