/* Tight memory: what the process may have, watched, so that free memory goes back before the kernel kills somebody for
 * it.
 *
 * Before main, the limits of the process's control groups are read, and how much of them is used (os/memory_limit.h).
 * Later no file is read: what is used then is estimated as that and what hakmem has had more since. Whoever allocates
 * looks after the heap has grown by a part of what is left; where there are several threads the background thread
 * looks as well, once a period. Nobody sees what other processes of the group use up or give back after the start, nor
 * limits that are changed.
 *
 *   far        nothing is different, but for a look now and then
 *   tight      hak_memory_is_tight: all that is free goes back, again and again; thread caches stay small;
 *              no huge pages, no fault-ahead, no lazy purging
 *
 * It goes back by turns of some MiB, one at each look, and the looks are near to each other meanwhile; what is used
 * beyond 15 sixteenths goes back at once.
 *
 * Programs that grow by less than 4 MiB never look, those without a limit once. No lock: who finds somebody else
 * looking takes a turn where memory is tight, and goes on.
 *
 *   L1  Who has set `is_looking` has the record of what was seen.
 */
#ifndef HAK_FRONT_TIGHT_H
#define HAK_FRONT_TIGHT_H

#include "base/counters.h"

/* Before main: reads the limits. */
void hak_tight_begin(void);

/* Looks, and gives back what the answer calls for, the calling thread's cache included. Not from a slow path. */
HAK_MISS void hak_tight_look(void);

/* The next look is due when so many pages have come into use (hak_pages_grown). */
extern HAK_ATOMIC(uint64_t) hak_look_at_pages;

/* How many are left until then; negative when it is due. */
HAK_INLINE int64_t hak_tight_pages_left(void) {
    return (int64_t)(hak_atomic_load(&hak_look_at_pages, relaxed) - hak_atomic_load(&hak_pages_grown, relaxed));
}

/* To be called after what may have made the heap larger. */
HAK_INLINE void hak_tight_notice(void) {
    if (HAK_UNLIKELY(hak_tight_pages_left() <= 0)) hak_tight_look();
}

/* Looks, and leaves what follows from hak_memory_is_tight to the caller: the background thread. */
void hak_tight_check(void);

/* In a child after fork: nobody is looking. */
void hak_tight_after_fork(void);

#endif
