/* Holder: whether a block that is being freed lies in the bin of another heap, the one that holds its slab or has last
 * held it. Then it is freed twice: its slab's bits don't show it (S2).
 *
 * The holder's owner goes on with hits meanwhile, of which he tells nobody. What is seen of his bin may be older than
 * it is, and he may be in the middle of moving blocks. So the look is in two steps:
 *
 *   L1  At first the bin is read as it seems to be. Nothing follows from that: it is quick, and nearly always finds
 *       nothing.
 *   L2  If the block seems to be there, the caller takes the heap as a drainer does (H5): from then on no slow path
 *       moves blocks, nobody raises `base`, and what earlier ones did is seen. He reads `top`, finds the block in a
 *       slot below, lets a fence go through all threads, and reads the slot again.
 *
 * Why a block is found by L2 in a program that owns it and frees it for the first time: it isn't. It has left the bin
 * before it was handed out; so in the owner's own order `top` was at or below its slot at some time, before the caller
 * got the block, and the `top` that the caller reads is not older than that. If it lies above the slot, the owner has
 * raised it since. He did so by a free that hit, or at the end of a slow path (H1), and either way after he had written
 * to the slot what was in the bin from then on. The fence shows the caller what was written before the `top` that he
 * had read. It was another block, and so is all that was written since: this one is the caller's during the call.
 *
 * What a fork has copied is in no such order: the child sees one page as it was before another. So nothing is found in
 * a heap that another thread had then, nor before the handler has seen to these heaps. Nor is it where the fence is
 * refused, or the owner is in a slow path: then it is found later. */
#ifndef HAK_POOL_HOLDER_H
#define HAK_POOL_HOLDER_H

#include "pool/heap.h"

/* True if the block, of a small class, is among the newest in the bin of the holder of its slab, which is another heap
 * than `own`. The caller is in a slow path of his own heap, and owns the block, as far as he knows. False for a free
 * block, too, where it can't be told. Takes the time of two fences, if it looks as if it was there. */
bool hak_holder_has(const struct hak_heap *own, uint32_t size_class, const void *block);

#endif
