/* Hints: which SuperSlabs may have free units, or partial slabs, of some kind: a bit per SuperSlab and kind in their
 * group's words, above these a bit per group, and above those a bit per 64 groups. So a search reads as many words as
 * there are levels, and one more for each 512 GiB, whatever the size of the range.
 *
 *   I1  A hint may be set where nothing is found. Who makes something to be found sets it afterwards; who finds nothing
 *       clears it, looks again afterwards, and sets it again if that was too early.
 *   I2  A bit above may be set while none of those below is. Who sets the first bit of a word sets the one above
 *       afterwards; who clears the last one clears it, looks at the word afterwards, and sets it again if that was too
 *       early.
 *
 * All functions are lock-free, and may be called by any thread. */
#ifndef HAK_REGION_HINTS_H
#define HAK_REGION_HINTS_H

#include "region/region.h"

#define HAK_NO_SUPER_SLAB UINT32_MAX

void hak_hint_set(struct hak_range *range, uint32_t hint, uint32_t super_slab);

/* The same for hints `hint`..`hint_end` of SuperSlabs `first`..`end`, where most may be set already: who made something
 * to be found looked at it by seq_cst operations, and who clears one of them looks again by such. */
void hak_hint_set_all(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t first, uint32_t end);

/* The caller looks afterwards (I1). */
void hak_hint_clear(struct hak_range *range, uint32_t hint, uint32_t super_slab);

/* The same for hints `hint`..`hint_end` of SuperSlabs `first`..`end`, where nothing can be found until the caller gives
 * it back: it need not look afterwards. */
void hak_hint_clear_all(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t first, uint32_t end);

/* A guess. */
bool hak_hint_is_set(const struct hak_range *range, uint32_t hint, uint32_t super_slab);

/* The first SuperSlab from number `from` on, or the last one below number `below`, whose hint is set; HAK_NO_SUPER_SLAB
 * when there is none. */
uint32_t hak_hint_next(const struct hak_range *range, uint32_t hint, uint32_t from);
uint32_t hak_hint_previous(const struct hak_range *range, uint32_t hint, uint32_t below);

/* In a child after fork: what other threads were about to set is set, and nothing else written. First the bits above
 * a SuperSlab's group, then a hint of which something is to be found. */
void hak_hints_recover_after_fork(struct hak_range *range, uint32_t super_slab);
void hak_hint_recover_after_fork(struct hak_range *range, uint32_t hint, uint32_t super_slab);

#endif
