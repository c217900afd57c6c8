/* Pages of unified memory on the client: a range of addresses whose accesses can be allowed and denied, with a second
 * view of the same memory that is always open. */
#ifndef SCUDA_PAGER_H
#define SCUDA_PAGER_H
#include <stdint.h>

/* The window of managed memory, behind that of pinned memory. */
#define SCUDA_MANAGED_FIRST 0x680000000000u
#define SCUDA_MANAGED_END 0x700000000000u

/* start is what the program sees, open our own view */
struct scuda_pages { uint64_t start, bytes, offset; uint8_t *open; };

/* Called by the pager's thread for an access that is not allowed; 0: the address is none of ours, or of a range that is
 * hidden by now. */
typedef int (*scuda_fault_fn)(uint64_t address, int write);

/* The end of the range that an address lies in; 0: none. */
typedef uint64_t (*scuda_end_fn)(uint64_t address);

int32_t scuda_pager_start(scuda_fault_fn fault, scuda_end_fn end);   /* once; CUresult */
int scuda_pager_started(void);
/* Makes a range, denied and hidden; address 0: anywhere in the window of managed memory, else exactly there.
 * CUresult. */
int32_t scuda_pages_make(struct scuda_pages *p, uint64_t address, uint64_t bytes);
/* From here on the range's accesses come to the pager: whoever serves faults knows it. */
void scuda_pages_show(const struct scuda_pages *p);
/* An access of a hidden range is a SIGSEGV, as that of any address where nothing is. To be called before the range is
 * forgotten. */
void scuda_pages_hide(const struct scuda_pages *p);
void scuda_pages_drop(struct scuda_pages *p);
/* Offsets are whole pages; results are CUresult. The file has a page once something was put there or it was held. */
int32_t scuda_pages_hold(const struct scuda_pages *p, uint64_t from, uint64_t bytes);
/* leaves it denied */
int32_t scuda_pages_put(const struct scuda_pages *p, uint64_t from, uint64_t bytes, const uint8_t *data);
/* of a denied stretch that the file does not have: puts and allows */
int32_t scuda_pages_fill(const struct scuda_pages *p, uint64_t from, uint64_t bytes, const uint8_t *data, int writable);
/* of a denied stretch that the file has */
int32_t scuda_pages_allow(const struct scuda_pages *p, uint64_t from, uint64_t bytes, int writable);
/* lets a stretch that may be read be written */
int32_t scuda_pages_unlock(const struct scuda_pages *p, uint64_t from, uint64_t bytes);
/* the file has the stretch then, and it does not fault in the open view */
int32_t scuda_pages_open(const struct scuda_pages *p, uint64_t from, uint64_t bytes);
/* by any thread; when all is denied ... */
void scuda_pages_unmap(const struct scuda_pages *p, uint64_t from, uint64_t bytes);
void scuda_pages_unmapped(void);                                                      /* ... this */
/* Whether writes of what may be read are no faults: the kernel notes them, and ... */
int scuda_pages_tracked(void);
/* ... this gives the entries of the units with such writes a value, of a stretch that was allowed for reading and is
 * denied now. CUresult. */
int32_t scuda_pages_written(const struct scuda_pages *p, uint64_t from, uint64_t bytes, uint64_t unit, uint8_t *entries,
                            uint8_t value);
/* lets the waiting try again */
void scuda_pages_wake(const struct scuda_pages *p, uint64_t from, uint64_t bytes);
void scuda_pages_lose(const struct scuda_pages *p);  /* every access of it is a SIGBUS from now on */
void scuda_pages_cut(const struct scuda_pages *p);   /* the same, where other ranges go on */
#endif
