/* Metering: while the heap profile is on, malloc counts what it hands out, samples it, and looks how much is live.
 *
 * Nobody counts hits. So while malloc is metered, its hits take blocks from rations (pool/ration.h), each of which ends
 * before the next sample. The miss at the end of a ration counts it, takes the sample if it is due, and fills the next
 * one. Large objects always take the slow path.
 *
 *   M1  Each block that malloc hands out is counted, by its class, and has the same chance to be sampled as any other
 *       one of its class. Frees are not counted: what is live is what slabs have handed out, less what lies in bins.
 *   M2  Each thread looks how much is live when it has allocated LOOK_BYTES since its last look, or a part of the peak
 *       if that is more, or what lay between live and the peak then. The peak is the most that any look has found.
 *
 * A tracer that attaches to the probe `otel_memory:alloc` (observe/probes.h) switches the profile on, and off again
 * when it detaches, unless somebody else has switched it on. Slow paths look at the probe's semaphore when they end.
 */
#ifndef HAK_FRONT_METER_H
#define HAK_FRONT_METER_H

#include "front/front.h"
#include "observe/probes.h"
#include "observe/profile.h"

/* Switches the heap profile on, with so many bytes from sample to sample on average, or to another interval; any number
 * of times. False when there is no memory for it. hak_profile_write writes it (observe/profile.h). */
HAK_COLD bool hak_meter_start(uint64_t interval_bytes);

/* The same, with samples in runs, one per interval (P6): for which call sites hold pages. */
HAK_COLD bool hak_meter_start_runs(uint64_t interval_bytes);

/* Switches it off. Threads give their rations back when they miss next, or when they are drained. */
HAK_COLD void hak_meter_stop(void);

/* Whether a tracer was attached at the last look. */
extern HAK_ATOMIC(bool) hak_meter_is_traced;

/* A tracer has attached, or detached, since. */
HAK_COLD void hak_meter_follow_tracer(void);

HAK_INLINE void hak_meter_notice_tracer(void) {
    if (HAK_UNLIKELY(hak_probes_are_watched() != hak_atomic_load(&hak_meter_is_traced, relaxed)))
        hak_meter_follow_tracer();
}

/* What the next allocation of a small class counts for, if it is to be sampled: the caller does so, and it is counted.
 * 0 if it is not: then it and those that follow, `unsampled` in all, may be handed out. By who has the heap, or NULL:
 * then the block is counted, and it is the only one that may be handed out. */
uint64_t hak_meter_weigh(struct hak_heap *heap, uint32_t size_class, uint32_t *unsampled);

/* A block of the class that is not to be sampled was handed out without a ration. */
void hak_meter_pass_one(struct hak_heap *heap, uint32_t size_class);

/* A large object of `size` bytes, which takes so many in memory, is handed out, and counted: what it counts for, if it
 * is to be sampled, or 0. The heap may be NULL. Looks how much is live when a look is due (M2). */
uint64_t hak_meter_weigh_large(struct hak_heap *heap, size_t size, size_t bytes);

/* At the end of a metered malloc of a small class: the same look. */
void hak_meter_notice(struct hak_heap *heap);

/* The moment of the thread that has the heap, which may be NULL (P7 of observe/profile.h). */
uint64_t hak_meter_moment(const struct hak_heap *heap);

#endif
