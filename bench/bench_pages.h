/* How little memory a heap could do with: the OS pages that hold a live block, each counted once.
 *
 * A program tells of its live blocks one by one; their pages go into a hash set in bench_map memory, which is no part
 * of what bench_resident_bytes tells. `span_count` is the greatest number of pages that the set has room for, as
 * bench_pages_spanned sums them up.
 */
#ifndef BENCH_PAGES_H
#define BENCH_PAGES_H

#include "bench.h"

/* Open addressing: a page is in the first free place after its hash. At most half of the places are taken. */
struct bench_pages {
    uintptr_t *places; /* page numbers; 0 is none, and nobody's page */
    size_t place_count;
    unsigned page_shift;
    uint64_t page_count;
};

static inline unsigned bench_page_shift(void) { return (unsigned)__builtin_ctzl((unsigned long)sysconf(_SC_PAGESIZE)); }

/* The most pages that a block of this size can lie in. */
static inline size_t bench_pages_spanned(size_t bytes) { return (bytes >> bench_page_shift()) + 2; }

static inline struct bench_pages bench_pages_create(size_t span_count) {
    struct bench_pages pages = {.place_count = 16, .page_shift = bench_page_shift()};
    while (pages.place_count < 2 * span_count) {
        pages.place_count *= 2;
    }
    pages.places = bench_map(pages.place_count, sizeof *pages.places);
    return pages;
}

static inline void bench_pages_add(struct bench_pages *pages, const void *block, size_t bytes) {
    uintptr_t last = ((uintptr_t)block + bytes - 1) >> pages->page_shift;
    for (uintptr_t page = (uintptr_t)block >> pages->page_shift; page <= last; page++) {
        size_t place = (size_t)bench_mix(page) & (pages->place_count - 1);
        while (pages->places[place] != 0 && pages->places[place] != page) {
            place = (place + 1) & (pages->place_count - 1);
        }
        pages->page_count += pages->places[place] == 0;
        pages->places[place] = page;
    }
}

/* Bytes of all pages that were told of. */
static inline uint64_t bench_pages_finish(struct bench_pages *pages) {
    bench_unmap(pages->places, pages->place_count, sizeof *pages->places);
    return pages->page_count << pages->page_shift;
}

#endif
