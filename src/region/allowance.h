/* Allowance: how much free memory may stay where nobody can give it back while the program sleeps.
 *
 * Whether free memory will be used again, nobody knows. To keep it costs memory; to give it back costs page faults when
 * it is used again: rent or buy. So all that is free goes back, but for as much as the program has shown to use again.
 * What is used again at the addresses that went back for want of allowance (hak_pages_reused), within some periods
 * (knob decay_ms), is allowed from then on; new memory of a heap that grows is not. Never more than could have lain
 * free at once. What is allowed shrinks by a thirty-second in each period, but not below what lay free in the last one
 * and was used. A program that does the same again and again pays for its page faults once, or some times where live
 * blocks are spread over its slabs: these pin most of what is free there, which is noted once a round has seen it, and
 * is not taken for what may go back.
 *
 * Relaxed guesses, which two threads may make worse, not wrong. */
#ifndef HAK_REGION_ALLOWANCE_H
#define HAK_REGION_ALLOWANCE_H

#include "base/atomic.h"
#include "base/platform.h"

/* So many bytes went back to the kernel that would have stayed had they been allowed. */
void hak_allowance_gave(uint64_t bytes);

/* So many bytes lie free outside of slabs that are in use. Looks whether what went back has come into use since; to be
 * called before it is asked what may stay. */
void hak_allowance_look(uint64_t free_bytes);

/* What slabs that are in use have free and with memory. */
uint64_t hak_allowance_free_in_slabs(void);

/* All slabs were looked at, since when `out_bytes` were handed out. What they have free now stays: live blocks lie in
 * the same pages, or it is of a huge page that is worth more. */
void hak_allowance_pinned(uint64_t out_bytes);

/* So many bytes are handed out, more than before. */
void hak_allowance_grew(uint64_t out_bytes);

/* What slabs have free, but for what stayed, as far as it still does: less is pinned the more was taken since, and as
 * blocks are freed, and after some periods nobody knows. */
uint64_t hak_allowance_loose_in_slabs(void);

/* So many may stay: all, where the program has said so (mallopt); else no more than a memory limit has room for
 * (base/memory.h), nor than this. While the program sleeps nobody gives it back: it is little, unless no thread of
 * hakmem's could (front/background.h). */
#define HAK_ALLOWANCE_OF_ALL ((uint64_t)1 << 60)
uint64_t hak_allowance_bytes(void);
extern HAK_ATOMIC(uint64_t) hak_allowance_limit_bytes; /* 0: it was not told; HAK_ALLOWANCE_OF_ALL: none is to be */

/* Ends a period, through all of which `idle_bytes` lay free. */
void hak_allowance_end_period(uint64_t idle_bytes);

#endif
