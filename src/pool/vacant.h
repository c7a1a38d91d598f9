/* Vacant heaps: where heaps that no thread has are found. Who puts one there, and who takes one, looks at no other
 * heap.
 *
 * Unused and orphaned heaps lie in two stacks: who takes one off has it. Kept ones have a few places, where they are
 * seen and not taken: `in_use` and `drained` decide who has one (H7 in pool/heap.h), and he removes it. What a heap is
 * stands in its `in_use`, which the caller writes. All functions are lock-free. */
#ifndef HAK_POOL_VACANT_H
#define HAK_POOL_VACANT_H

#include "pool/heap.h"

enum { HAK_MOST_KEPT_HEAPS = 8 };

/* The caller has the heap; afterwards he has it no more. */
void hak_vacant_put_unused(struct hak_heap *heap);
void hak_vacant_put_orphaned(struct hak_heap *heap);

/* NULL when there is none. */
struct hak_heap *hak_vacant_take_unused(void);
struct hak_heap *hak_vacant_take_orphaned(void);

/* A guess. */
bool hak_vacant_has_orphaned(void);

/* Before the heap is kept. False when as many are as may be. */
bool hak_vacant_put_kept(struct hak_heap *heap);

/* In the `i`th place, i below HAK_MOST_KEPT_HEAPS: a heap that may be kept, or NULL. */
struct hak_heap *hak_vacant_kept(uint32_t i);
uint32_t hak_vacant_count_kept(void);

/* For who has it. */
void hak_vacant_remove_kept(const struct hak_heap *heap);

/* In a child after fork: all stacks and places are empty. */
void hak_vacant_forget_all(void);

#endif
