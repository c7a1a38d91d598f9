/* What the tests see of hakmem's inside: the one file here that knows src/ is inside.c. Compiled with FUZZ_OUTSIDE, for
 * the C library's allocator, nothing of it exists. */
#ifndef HAKMEM_FUZZ_INSIDE_H
#define HAKMEM_FUZZ_INSIDE_H

#include <stddef.h>
#include <stdint.h>

struct inside_sums {
    uint64_t live_blocks, live_bytes;
    uint64_t heaps, super_slabs;
    uint64_t mapped_bytes; /* as hakmem counts them */
    const char *broken;    /* an equation of observe/stats.h that does not hold; NULL when all do */
    char figures[160];
};

/* At rest: no other thread allocates or frees. */
void inside_look(struct inside_sums *sums);

/* What statistics count of a live block of so many usable bytes. */
size_t inside_counted_bytes(const void *block, size_t usable);

/* One of 4 values of a knob: the default, the lowest, the highest, one between. */
void inside_set_knob(unsigned knob, unsigned value);

/* All knobs as at the start, memory plentiful, no heap profile. */
void inside_reset(void);

void inside_set_tight(int is_tight);
void inside_profile(unsigned what, size_t interval);

/* A part of what the background thread does in a period, for one thread, which has begun with inside_be_background. */
void inside_be_background(void);
void inside_background_step(unsigned part);

#endif
