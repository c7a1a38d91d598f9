/* Tight memory: what the process may have, watched, so that free memory goes back before the kernel kills somebody for it.
 *
 * Whoever allocates looks after the heap has grown by a part of what is left; how much is left is told by the limits of the
 * process's control groups (os/memory_limit.h). Where there are several threads the background thread looks as well, once a
 * period: others may use memory up, too. It is the one that hears of stalls.
 *
 *   far        nothing is different, but for a look now and then
 *   tight      hak_memory_is_tight: all that is free goes back, at once and again and again; thread caches stay small; no huge
 *              pages, no fault-ahead, no lazy purging
 *
 * Programs that grow by less than 4 MiB never look. No lock: who finds somebody else looking goes on.
 *
 *   L1  Who has set `is_looking` has the record of what was seen.
 */
#ifndef HAK_FRONT_TIGHT_H
#define HAK_FRONT_TIGHT_H

#include "base/counters.h"

/* Looks, and gives back what the answer calls for, the calling thread's cache included. Not from a slow path. */
HAK_COLD void hak_tight_look(void);

/* To be called after what may have made the heap larger. */
HAK_INLINE void hak_tight_notice(void) {
    if (HAK_UNLIKELY((int64_t)hak_atomic_load(&hak_pages_to_look, relaxed) <= 0)) hak_tight_look();
}

/* Looks, and leaves what follows from hak_memory_is_tight to the caller: the background thread. */
void hak_tight_check(void);

/* In a child after fork: nobody is looking. */
void hak_tight_after_fork(void);

#endif
