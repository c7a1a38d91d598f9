/* Sparse: which blocks keep a slab's memory for few, while other slabs of their class have room. A program that can
 * move its blocks asks for each (hak_should_move), and moves those that are named past its thread's front cache: into
 * the pool's partial slab with the lowest address, so that the slabs they leave become empty.
 *
 *   V1  A block is named only while the pool has a slab with free blocks of its class at a lower address: so each move
 *       goes down, and there is an end to it.
 *   V2  Blocks of slabs that a heap holds are not named: threads take their next ones from these.
 *
 * Slabs are compared with the mean of their class, of those that are neither full nor empty. The mean is counted by who
 * asks, a slab in each call, round and round. All figures are guesses; nothing is locked, and no slab is written to. */
#ifndef HAK_POOL_SPARSE_H
#define HAK_POOL_SPARSE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the block that covers the address is to be moved. Any address, from any thread. */
bool hak_sparse_holds(uintptr_t address);

#endif
