/* Metering: while the heap profile is on, malloc counts what it hands out, so that samples can be taken.
 *
 * Nobody counts hits. So malloc is metered by having all of it miss (front/routes.h): the miss counts, and does what a
 * hit does. Where a program allocates so often that this would be felt, malloc is metered in windows only: at random
 * moments, of which the background thread sees to the beginning and the end. A sample counts for as many times more as
 * malloc is rarely metered, and samples lie up to as many times closer. Large objects always take the slow path, and
 * are metered at all times.
 *
 *   M1  When malloc is metered is decided by chance and by what was before, not by what the program does at that moment
 *       or will do. So each allocation has a chance to be metered which is known, and estimates are unbiased.
 *   M2  The chance is the part of the time that threads run for which malloc is metered; time that metering takes
 *       doesn't count. It is measured: where processors are busy, the background thread's own wake-ups decide when the
 *       others run.
 *
 * A tracer that attaches to the probe `otel_memory:alloc` (observe/probes.h) switches the profile on, and off again
 * when it detaches, unless somebody else has switched it on. Slow paths look at the probe's semaphore when they end.
 *
 * Without a background thread malloc is metered all the time. So it is in a child after fork, until its own thread
 * looks, and while that thread sleeps.
 */
#ifndef HAK_FRONT_METER_H
#define HAK_FRONT_METER_H

#include "observe/probes.h"
#include "observe/profile.h"

/* Malloc is metered one part in so many of the time, in 1024ths: HAK_RARITY_ONE is all the time. */
extern HAK_ATOMIC(uint32_t) hak_meter_rarity;

/* How many times closer samples lie while it is. */
extern HAK_ATOMIC(uint32_t) hak_meter_density;

/* The mean distance of samples of small blocks, in bytes; 0 while the profile is off. */
HAK_INLINE uint64_t hak_meter_interval(void) {
    uint64_t interval = hak_atomic_load(&hak_profile_interval, relaxed),
             density = hak_atomic_load(&hak_meter_density, relaxed);
    return (interval + density - 1) / density;
}

/* Switches the heap profile on, with so many bytes from sample to sample on average, or to another interval; any number
 * of times. False when there is no memory for it. hak_profile_write writes it (observe/profile.h). */
HAK_COLD bool hak_meter_start(uint64_t interval_bytes);

/* The same, with samples in runs, one per interval (P6): for which call sites hold pages. */
HAK_COLD bool hak_meter_start_runs(uint64_t interval_bytes);

/* Switches it off. */
HAK_COLD void hak_meter_stop(void);

/* Whether a tracer was attached at the last look. */
extern HAK_ATOMIC(bool) hak_meter_is_traced;

/* A tracer has attached, or detached, since. */
HAK_COLD void hak_meter_follow_tracer(void);

HAK_INLINE void hak_meter_notice_tracer(void) {
    if (HAK_UNLIKELY(hak_probes_are_watched() != hak_atomic_load(&hak_meter_is_traced, relaxed)))
        hak_meter_follow_tracer();
}

/* The background thread's part, at `now_us`: opens and closes windows. Returns when to call it again, in us from now;
 * UINT64_MAX while the profile is off. */
HAK_COLD uint64_t hak_meter_step(uint64_t now_us);

/* The background thread is going to sleep, because the program seems to. */
void hak_meter_rest(void);

/* Whether the calling thread has called malloc so often while it was metered that a background thread is worth its
 * while. Launchers that are to have one thread only don't. */
bool hak_meter_wants_thread(void);

/* There is no background thread any more: malloc is metered all the time, if at all. */
void hak_meter_without_thread(void);

#endif
