/* Page policy: which pages get memory before they are touched, which are huge, and when free memory goes back to the
 * kernel. The one place that decides, and within the heap's ranges the only one that tells the kernel.
 *
 * Giving back. What has lain free through a whole period goes back: at the end of each period (knob decay_ms) as many
 * units as the fewest that were free at any moment of it, from the top of the address space, where the least recently
 * used are; and mappings that were kept through all of it. A program that allocates again what it frees never pays for
 * page faults, and one whose use has shrunk gives the difference back. The background thread (front/background.h) ends
 * periods, and gives back holes in slabs (pool/purge.h); where there is none, the clock is looked at when units are
 * released. A bound, dirty_limit_bytes, holds in between.
 *
 * By turns. What is to go back is owed. Each call of the program's that is no hit pays a part of it, so much as the kernel
 * takes in less than a millisecond, until nothing is owed any more. What the program takes again is owed no longer. Only
 * who has asked for it (malloc_trim), and the background thread, give back more at a time.
 *
 * Growing. A SuperSlab that slabs begin to use while none of its pages has memory is asked to be a huge page, or
 * populated ahead in a window that is a share of the heap (knobs huge_page_mode, fault_ahead_share), if the heap is
 * not small (growth_floor_bytes) and turns out to be dense: one SuperSlab in sixteen, in large heaps in 64, stays as
 * it is, for a sample of how much of their memory the program is handed.
 *
 * Using again. A SuperSlab that was used again some times while all its units were free becomes a huge page, whatever
 * the size of the heap, if nearly all of its pages have contents. Not at the second use: a huge page costs what it
 * saves in several.
 *
 *   P1  A SuperSlab's bit in `huge` is set while the kernel may make it a huge page. Before any of it is purged, the
 *       bit is cleared and the kernel told, so that it doesn't put the pieces together again, nor give a huge page to
 *       who touches a page of a long run; before a part is, the page is broken, so that its memory goes back and not
 *       only out of the process's books. Bits are also cleared of SuperSlabs that others use: the huge pages that they
 *       have stay, `is_unbroken` says so from before the bit is cleared on, and who first purges a part breaks the
 *       page.
 *   P2  No change that would cost mappings is made beyond half of those a kernel allows; when it refuses to map
 *       memory all the same, all huge pages are given up: then what lies between two holes is one mapping.
 */
#ifndef HAK_REGION_PAGE_POLICY_H
#define HAK_REGION_PAGE_POLICY_H

#include "base/atomic.h"
#include "base/bits.h"
#include "base/platform.h"
#include "region/mapping_cache.h"

struct hak_range;

enum { HAK_HUGE_OFF, HAK_HUGE_AUTO, HAK_HUGE_ON }; /* knob huge_page_mode */

/* Memory is scarce: no fault-ahead, no huge pages, no lazy purging, nothing kept for later. Set by whoever watches
 * (front/tight.h), who also says how often it was, and what the least limit is that he knows, or 0. */
extern HAK_ATOMIC(bool) hak_memory_is_tight;
extern HAK_ATOMIC(uint64_t) hak_memory_tight_count, hak_memory_limit_bytes;

/* Settings, before main; also asks the kernel for huge pages, while files can be read. */
void hak_page_policy_configure(uint64_t huge_pages, uint64_t prefault, uint64_t lazy_purge);

/* ---- Giving back */

/* To be called after units or mappings were released: tells what is owed. And after dirty units were taken. */
void hak_page_policy_after_release(void);
void hak_page_policy_after_taking(uint64_t dirty_units_left, uint64_t taken);

/* Dirty units that are to go back; a guess. */
extern HAK_ATOMIC(uint64_t) hak_owed_units;

/* Gives back a part of what is owed. To be called once at the end of each call of the program's that is no hit. */
void hak_page_policy_pay(void);
HAK_INLINE bool hak_page_policy_owes(void) {
    return (hak_atomic_load(&hak_owed_units, relaxed) | hak_atomic_load(&hak_mappings_owed, relaxed)) != 0;
}
HAK_INLINE void hak_page_policy_notice(void) {
    if (HAK_UNLIKELY(hak_page_policy_owes())) hak_page_policy_pay();
}

/* All that is dirty and free is owed. */
void hak_page_policy_owe_all(void);

/* How much a turn gives back, and then what is left of a SuperSlab. */
#define HAK_TURN_BYTES (2 * HAK_MIB)

/* Purges memory that the caller has, within one SuperSlab; false when the kernel refuses. Only what need not read as
 * zero afterwards `may_be_lazy`. */
bool hak_page_policy_purge(struct hak_range *range, uintptr_t start, size_t bytes, bool may_be_lazy);

/* True when a SuperSlab has no huge page, or an eighth of it is free: enough to give the huge page up for. */
bool hak_page_policy_may_break(const struct hak_range *range, uint32_t super_slab, size_t free_bytes);

/* True when free units that count as fresh may have old contents. */
bool hak_page_policy_was_ever_lazy(void);

/* ---- Growing */

/* To be called when slabs begin to use a SuperSlab none of whose units has memory. Returns how many units, from its
 * start, have memory now, or will have all at once. */
uint32_t hak_page_policy_begin_use(struct hak_range *range, uint32_t super_slab);

/* The same for a mapping of a large object. Sparse ones are frequent: huge pages only if everything is to have some. */
void hak_page_policy_begin_mapping(void *start, size_t bytes);

/* ---- Using again */

/* To be called when a SuperSlab is used again all of whose units were free and dirty. True when it was used so often
 * that it may be made a huge page. */
bool hak_page_policy_use_again(struct hak_range *range, uint32_t super_slab);

/* Makes it one with the next touch, if nearly all of its pages have contents. The caller has all of its units; true
 * when their contents are gone, and read as zero now. */
bool hak_page_policy_make_huge(struct hak_range *range, uint32_t super_slab);

/* ---- Mappings */

/* True when large objects may have mappings of their own. */
bool hak_page_policy_may_map(void);

/* Makes one mapping of a part of a range, as page tables are moved. */
void hak_page_policy_make_one_mapping(struct hak_range *range, uintptr_t start, size_t bytes);

/* Gives up all that splits mappings; false when there was nothing. */
bool hak_page_policy_merge_mappings(void);
/* 1 while a background thread ends the periods. */
extern HAK_ATOMIC(uint32_t) hak_page_policy_has_background;

/* Ends a period: units that lay free through all of it go back, if they are `least_bytes` together. Returns the
 * bytes. */
size_t hak_page_policy_end_period(uint64_t least_bytes);

#endif
