/* Hints: which SuperSlabs may have free units, or partial slabs, of some kind: a bit per SuperSlab and kind in their
 * group's words, above these a bit per group, and above those a bit per 64 groups. So a search reads as many words as
 * there are levels, and one more for each 512 GiB, whatever the size of the range.
 *
 *   I1  A hint may be set where nothing is found. Who makes something to be found sets it afterwards; who finds nothing
 *       clears it, looks again afterwards, and sets it again if that was too early.
 *   I2  A bit above may be set while none of those below is. Who sets the first bit of a word sets the one above
 *       afterwards; who clears the last one clears it, looks at the word afterwards, and sets it again if that was too
 *       early.
 *   I3  Kinds may be nested: what has one of them has those before it. They are set from the last one down, and cleared
 *       up to the last one. So a SuperSlab that has one has those before it, or somebody is about to set them.
 *
 * All functions are lock-free, and may be called by any thread. */
#ifndef HAK_REGION_HINTS_H
#define HAK_REGION_HINTS_H

#include "region/region.h"

#define HAK_NO_SUPER_SLAB UINT32_MAX

void hak_hint_set(struct hak_range *range, uint32_t hint, uint32_t super_slab);

/* The caller looks afterwards (I1). */
void hak_hint_clear(struct hak_range *range, uint32_t hint, uint32_t super_slab);

/* The same for nested hints `hint`..`hint_end`, where most may be set already, or none: they write no word that need
 * not change, and where nothing need change they read one. Who made something to be found looked at it by seq_cst
 * operations, and who clears looks again by such; unless nothing can be found until he gives it back: then he need not
 * look. `hint` is the first of its kind when it is set, and `hint_end` the end of it when it is cleared. */
void hak_hint_set_down(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t super_slab);
void hak_hint_clear_up(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t super_slab);

/* The same for SuperSlabs `first`..`end`. */
void hak_hint_set_all_down(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t first, uint32_t end);
void hak_hint_clear_all_up(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t first, uint32_t end);

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
