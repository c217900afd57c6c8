/* Pages of unified memory on the client: a range of addresses whose accesses can be allowed and denied, with a second view of the same memory that is always open. */
#ifndef SCUDA_PAGER_H
#define SCUDA_PAGER_H
#include <stdint.h>

struct scuda_pages { uint64_t start, bytes, offset; uint8_t *open; };  /* start is what the program sees, open our own view */

/* Called by the pager's thread for an access that is not allowed; 0: the address is none of ours. */
typedef int (*scuda_fault_fn)(uint64_t address, int write);

int32_t scuda_pager_start(scuda_fault_fn fault);   /* once; CUresult */
const char *scuda_pager_kind(void);                /* "userfaultfd", "userfaultfd, user mode" or "SIGSEGV" */
/* Makes a range, denied; address 0: anywhere in the window of managed memory, else exactly there. CUresult. */
int32_t scuda_pages_make(struct scuda_pages *p, uint64_t address, uint64_t bytes);
void scuda_pages_drop(struct scuda_pages *p);
void scuda_pages_allow(const struct scuda_pages *p, uint64_t from, uint64_t bytes, int writable);  /* of a denied stretch; offsets are whole pages */
void scuda_pages_unlock(const struct scuda_pages *p, uint64_t from, uint64_t bytes);               /* lets a stretch that may be read be written */
void scuda_pages_deny(const struct scuda_pages *p, uint64_t from, uint64_t bytes);
void scuda_pages_wake(const struct scuda_pages *p, uint64_t from, uint64_t bytes);                 /* lets the waiting try again */
void scuda_pages_lose(const struct scuda_pages *p);  /* every access of it is a SIGBUS from now on */
#endif
