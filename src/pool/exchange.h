/* Exchange: a heap that grows gives back the pages that have lain free for longest, as many as it has grown by.
 *
 * Free pages that no request fits, in slabs of other classes and behind runs, would stay beside the new ones. So a hand
 * goes around the heap while it grows, and gives back holes from which nothing was taken since it came by last, until
 * as much has gone back as the heap has grown. It goes around once while the heap grows by a thirty-second; eight times
 * slower where little is free in slabs, or where it finds little. A debt of more than a thirty-second and a mebibyte is
 * forgotten. Memory that is used again after it went is not growth, nor is a mapping in place of another one: a program
 * that goes round gives back nothing.
 *
 * By calls of the program's that allocate and are no hit, once the heap has grown by another mebibyte. The first four
 * mebibytes are free. Not while memory is tight (front/tight.h), when all goes back, nor where the program keeps all
 * (M_TRIM_THRESHOLD of -1).
 *
 *   X1  Who has set `is_exchanging` has the hand, and what was counted.
 *
 * The hand is that of the clock algorithm: Corbato, A paging experiment with the Multics system, 1968.
 */
#ifndef HAK_POOL_EXCHANGE_H
#define HAK_POOL_EXCHANGE_H

#include "base/counters.h"
#include "base/platform.h"

/* Gives back a part, if nobody else does so at this moment. Not from a slow path. */
HAK_MISS void hak_exchange(void);

/* It is due when so many pages have come into use (hak_pages_grown). */
extern HAK_ATOMIC(uint64_t) hak_exchange_at_pages;

/* To be called after what may have made the heap larger. */
HAK_INLINE void hak_exchange_notice(void) {
    uint64_t left = hak_atomic_load(&hak_exchange_at_pages, relaxed) - hak_atomic_load(&hak_pages_grown, relaxed);
    if (HAK_UNLIKELY((int64_t)left <= 0)) hak_exchange();
}

/* In a child after fork: nobody else is at it. */
void hak_exchange_after_fork(void);

#endif
