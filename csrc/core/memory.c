/* Memory for large arrays: in huge pages, and used again.
 *
 * The first write to fresh memory takes more than twice as long as later ones: the kernel clears each page, and takes a fault
 * for every 4 KiB. So this asks for huge pages, and keeps the region that was freed last for the next array. The kernel may
 * take that region back (MADV_FREE); until it does, using it again costs nothing. The C library does the same for smaller
 * allocations.
 *
 * At most one region is kept, in one pointer: taking it and putting it back are one atomic exchange each.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* madvise */
#endif
#include "core/internal.h"

#if defined(__linux__)
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20, MAX_KEPT = 1 << 30 };

/* Lies in its own page before the memory, which is aligned to a huge page. */
typedef struct {
    uint64_t size; /* of the memory: whole huge pages */
    pid_t owner;   /* the process that may use it again: after a fork each write would first copy its page */
} header;

static header *header_of(uint8_t *memory, uint64_t page) { return (header *)(void *)(memory - page); }

static uint64_t page_size(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

static uint8_t *_Atomic cached;

static uint8_t *map_memory(uint64_t size, uint64_t page) {
    const uint64_t room = page + size + HUGE_PAGE;
    uint8_t *const begin = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) return NULL;
    uint8_t *const memory = begin + page + (0 - (uint64_t)(uintptr_t)(begin + page)) % HUGE_PAGE;
    const uint64_t before = (uint64_t)(memory - page - begin), after = room - before - page - size;
    if (before) munmap(begin, before);
    if (after) munmap(memory + size, after);
#if defined(MADV_HUGEPAGE)
    (void)madvise(memory, size, MADV_HUGEPAGE); /* a system without them gives small pages */
#endif
    *header_of(memory, page) = (header){size, getpid()};
    return memory;
}

static void unmap_memory(uint8_t *memory, uint64_t page) { munmap(memory - page, page + header_of(memory, page)->size); }

void *wm_memory_new(uint64_t size) {
    const uint64_t page = page_size();
    if (size == 0 || size > (uint64_t)1 << 56) return NULL;
    size += (0 - size) % HUGE_PAGE;
    uint8_t *const reused = atomic_exchange(&cached, NULL);
    if (reused) {
        const header *h = header_of(reused, page);
        if (h->owner == getpid() && h->size >= size && h->size / 4 <= size) return reused;
        unmap_memory(reused, page);
    }
    return map_memory(size, page);
}

void wm_memory_free(void *memory) {
    if (!memory) return;
    const uint64_t page = page_size();
    uint8_t *freed = memory;
#if defined(MADV_FREE)
    const header *h = header_of(freed, page);
    /* Fails when memory is locked. */
    if (h->owner == getpid() && h->size <= MAX_KEPT && madvise(freed, h->size, MADV_FREE) == 0)
        freed = atomic_exchange(&cached, freed);
#endif
    if (freed) unmap_memory(freed, page);
}

#else
void *wm_memory_new(uint64_t size) { return NULL; }

void wm_memory_free(void *memory) {}
#endif
