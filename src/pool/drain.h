/* Drain: what another thread's heap keeps goes back, whether that thread runs, sleeps, or was stopped anywhere.
 *
 * The hit path knows nothing of it. It holds no lock and says nothing of what it is about to do; but
 *
 *   - a hit takes the topmost block of a bin if that lies at or above `base`, or puts one above it if there is room
 *     below `limit`; it touches no other slot, and writes `top` only;
 *   - a thread is in the middle of at most one hit.
 *
 * So a drainer raises `base` to the topmost block and takes the room away (`limit` is NULL); after a fence in all
 * threads, every hit that begins sees that, and one that had begun before touches the topmost block of some bin, or
 * the slot above. All other blocks below `base` are the drainer's. He leaves one block in a bin, because it can't be
 * known whether a hit is on its way to it: a thread that sleeps in a system call may do so in a signal handler that
 * interrupted a hit. Then he lowers `base` to that block, and the bin goes on with what is left. Its next free is a
 * miss, which opens it again. Of a bin that is for frees only (H8) he takes all blocks: no hit takes one, and one that
 * puts a block above them finds it there.
 *
 *   D1  No more than one block per class is left in a heap that was drained, and one that a free on its way puts on
 *       top. Until a slow path of its owner no other one comes: the next drainer passes the heap by.
 *
 * What the slow paths keep (partial slabs, claimed blocks, empty slabs) is protected by H5. A drainer who finds the
 * owner in a slow path asks him to do it at its end; one whom the kernel refuses the fence asks, too. Nobody waits.
 */
#ifndef HAK_POOL_DRAIN_H
#define HAK_POOL_DRAIN_H

#include "pool/heap.h"

/* The heaps that a drainer has. He takes them one by one, drains all of them at once, because a fence takes its time,
 * and gives them back. Meanwhile their threads go without them. */
struct hak_drain {
    struct hak_heap *first_taken; /* NULL at the beginning */
    bool ends_waits;              /* of blocks in quarantine, too */
};

/* Takes a heap, which may not be the caller's own. False when nobody has it, or another drainer; or when it was drained
 * and its thread has made no miss since. */
bool hak_heap_begin_drain(struct hak_heap *heap, struct hak_drain *drain);

/* Drains those that were taken, as far as their owners are in no slow path; at a later call the others. False when
 * there is something left to drain. */
bool hak_heap_drain_taken(struct hak_drain *drain);

/* Takes all heaps but `own`, which may be NULL, and drains them. No block is left in quarantine. */
bool hak_heap_drain_others(const struct hak_heap *own, struct hak_drain *drain);

/* Gives back what was taken, and sees to it that the owners of heaps that are not drained drain them. */
void hak_heap_end_drains(struct hak_drain *drain);

#endif
