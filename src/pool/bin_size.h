/* Bin size: how many slots a bin has, and may have. Two rules (docs/decisions/0050):
 *
 *   - A bin has a slot for each 192 bytes of bin_bytes (knob) at most, and grows at any miss while its blocks are no
 *     more than bin_bytes. A large bin grows further, to 256 KiB, by a miss for every 4 KiB.
 *   - All bins of a thread have bin_budget_bytes (knob) at most, or its share of a large heap (bin_budget_share, knob).
 *     What a large bin has beyond bin_bytes is always within the share.
 *
 * Where the controller says how many slots a class may have, that is what they may have. For who has the heap (H5 in
 * pool/heap.h). */
#ifndef HAK_POOL_BIN_SIZE_H
#define HAK_POOL_BIN_SIZE_H

#include "base/knobs.h"
#include "pool/heap.h"

/* More slots for a closed bin: at most twice as many. Blocks in it stay; but when slots are short in a heap that was
 * inherited, all its bins are emptied, once, and begin small again. FITS when a limit is reached, when a large bin
 * has not missed often enough since it last grew, or when memory is tight; TOO_LARGE when the bin has more slots than
 * it may have now. */
enum hak_bin_fit { HAK_BIN_FITS, HAK_BIN_GREW, HAK_BIN_TOO_LARGE };
enum hak_bin_fit hak_heap_grow_bin(struct hak_heap *heap, uint32_t size_class);

/* Slots that bins of a class may have, in place of what the first rule allows; 0 for that. */
extern HAK_ATOMIC(uint16_t) hak_class_slots[HAK_CLASS_LIMIT];

/* From here on nothing is said of any class: all bins are as the knobs say. */
HAK_COLD void hak_heap_clear_class_slots(void);

/* hak_knob_give by hand: bins of all classes follow from bin_bytes then, whatever a policy says. */
HAK_COLD void hak_heap_give_knob(enum hak_knob_number knob, uint64_t value);

enum { HAK_LEAST_SLOTS = 4, HAK_CLASS_MOST_SLOTS = 512 };

/* Slots that a bin of a class may have; and what it would be by the rule alone. */
size_t hak_heap_most_slots(uint32_t size_class);
size_t hak_heap_usual_slots(uint32_t size_class);

/* Slots that a bin keeps after a round (pool/shrink.h). Small blocks that it has lie side by side, mostly: eight of
 * them keep few pages, and a program that goes on taking down misses a quarter as often as with two. */
HAK_INLINE size_t hak_heap_shrunk_slots(uint32_t size_class) {
    enum { SMALL_BYTES = 128 };
    return size_class <= SMALL_BYTES / HAK_ALIGNMENT ? 8 : 2;
}

/* Takes the slots that a closed bin has above that, as far as there are no blocks in them. */
HAK_MISS void hak_heap_shrink_bin(struct hak_heap *heap, uint32_t size_class);

/* The same down to `most_slots`, of a bin that is in no change. */
HAK_MISS void hak_heap_shrink_to(struct hak_heap *heap, uint32_t size_class, size_t most_slots);

/* When the bins have more slots than the heap's share could allow any bin now, takes half of those of each open bin
 * that was earned within it, and of each other one, too, if they are above the budget; as far as there are no blocks
 * in them, and leaves what any bin may have. */
HAK_MISS void hak_heap_shrink_to_budget(struct hak_heap *heap);

#endif
