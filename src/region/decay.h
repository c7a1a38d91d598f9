/* Decay: when free memory goes back to the kernel.
 *
 * What has lain free through a whole period goes back: at the end of each period (knob decay_ms) as many
 * units as the fewest that were free at any moment of it, from the top of the address space, where the least recently
 * used are; and mappings that were kept through all of it. A program that allocates again what it frees never pays for
 * page faults, and one whose use has shrunk gives the difference back. The background thread (front/background.h) ends
 * periods, and gives back holes in slabs (pool/purge.h); where there is none, the clock is looked at when units are
 * released. A bound, dirty_limit_bytes, holds in between.
 *
 * By turns. What is to go back is owed. Each call of the program's that is no hit pays a part of it, so much as the
 * kernel takes in less than a millisecond, until nothing is owed any more; or, where there is no background thread or
 * a memory limit is known, as much as it has released itself. What the program takes again is owed no longer. Only who
 * has asked for it (malloc_trim), and the background thread, give back more at a time.
 *
 * While memory is tight, all that is free is owed. All functions are lock-free.
 */
#ifndef HAK_REGION_DECAY_H
#define HAK_REGION_DECAY_H

#include "base/bits.h"
#include "base/platform.h"
#include "region/allowance.h"
#include "region/mapping_cache.h"
#include "region/owed.h"

/* To be called after memory was released, `units` at once: tells what is owed. */
void hak_decay_after_release(uint32_t units);

/* The same for what lies idle only, by who has released nothing: where no background thread looks for it. The allowance
 * learns what was used again. */
void hak_decay_look_for_idle(void);

/* For the allowance (region/allowance.h): looks at what lies free; and is told how much went back by turns. */
void hak_decay_look(void);
void hak_decay_gave(size_t bytes);

/* Gives back a part of what is owed; returns the bytes. To be called once at the end of each call of the program's that
 * is no hit. */
size_t hak_decay_pay(void);
HAK_INLINE bool hak_decay_owes(void) {
    return (hak_atomic_load(&hak_owed_units, relaxed) | hak_atomic_load(&hak_mappings_owed, relaxed)) != 0;
}
HAK_INLINE void hak_decay_notice(void) {
    if (HAK_UNLIKELY(hak_decay_owes())) hak_decay_pay();
}

/* All that is dirty and free is owed, even if a round before has brought nothing, and what is released from now on as
 * well. */
void hak_decay_owe_all(void);

/* How much a turn gives back, and then what is left of a SuperSlab. */
#define HAK_TURN_BYTES HAK_MIB

/* Ends a period: units that lay free through all of it go back, if they are `least_bytes` together. Returns the
 * bytes. */
size_t hak_decay_end_period(uint64_t least_bytes);

#endif
