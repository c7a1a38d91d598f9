/* Owed: how much free memory is to go back to the kernel, and how much lay free through a period. Kept by whoever takes
 * and releases units; what is to be done about it, region/decay.h decides. Guesses that two threads may make worse, not
 * wrong. */
#ifndef HAK_REGION_OWED_H
#define HAK_REGION_OWED_H

#include "base/atomic.h"
#include "base/platform.h"
#include "region/generation.h"

/* Dirty units that are to go back. */
extern HAK_ATOMIC(uint64_t) hak_owed_units;

/* The generation of the process in which a background thread ends the periods (region/decay.h) and gives back what lies
 * free; 0: nowhere. A child has none, also one that was made without libc, in which nobody says so, where the kernel
 * empties a page in it (region/generation.h). */
extern HAK_ATOMIC(uint32_t) hak_background_pays;

HAK_INLINE bool hak_is_paid(void) {
    uint32_t generation = hak_atomic_load(&hak_background_pays, relaxed);
    return generation != 0 && generation == hak_generation_now();
}

/* So many are owed, at least. */
void hak_owe(uint64_t units);

/* To be called after `taken` units that were dirty are free no more, used or given back: they are owed no longer. */
void hak_owed_after_taking(uint64_t dirty_units_left, uint64_t taken);

/* Begins a period with so many dirty units. Returns the fewest that there were at any moment of the one before. */
uint64_t hak_owed_begin_period(uint64_t dirty_units);

#endif
