/* Page policy: which pages get memory before they are touched, which are huge, and how free memory goes back to the
 * kernel. The one place that decides, and within the heap's ranges the only one that tells the kernel. When free memory
 * goes back stands in region/decay.h.
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
#include "os/os.h"

struct hak_range;

enum { HAK_HUGE_OFF, HAK_HUGE_AUTO, HAK_HUGE_ON }; /* knob huge_page_mode */

/* Settings, before main; also asks the kernel for huge pages, while files can be read. */
void hak_page_policy_configure(uint64_t huge_pages, uint64_t prefault, uint64_t lazy_purge);

/* ---- Giving back */

/* Purges memory that the caller has, within one SuperSlab; false when the kernel refuses. Only what need not read as
 * zero afterwards `may_be_lazy`. */
bool hak_page_policy_purge(struct hak_range *range, uintptr_t start, size_t bytes, bool may_be_lazy);

/* Unmaps what the caller has, within one SuperSlab; false when the kernel refuses, or it would be a mapping too many
 * (P2). And maps a part of a SuperSlab that was unmapped; `in_the_middle`: what lies before it and behind it in the
 * SuperSlab is not mapped. */
bool hak_page_policy_unmap(struct hak_range *range, uintptr_t start, size_t bytes);
enum hak_os_mapped hak_page_policy_map_again(uintptr_t start, size_t bytes, bool in_the_middle);

/* Guards behind large objects, of the secure build. The first puts them into a part of a SuperSlab that the caller has;
 * false as of hak_os_guard. The second makes an inaccessible page of the last one of an object's mapping, which is a
 * mapping more; false when the kernel refuses, or there are so many of these that no more may be (P2). The third says
 * that it is none any more. */
bool hak_page_policy_guard(struct hak_range *range, uintptr_t start, size_t bytes);
bool hak_page_policy_forbid(uintptr_t page);
void hak_page_policy_count_allowed(void);

/* Closes memory that the caller has, of one or more SuperSlabs: it goes back, and nobody can touch it. With guards, or
 * where the kernel has none, as a mapping of its own (P2). NOT_CLOSED, when that can't be: then it is the caller's as
 * before, perhaps without its contents. And opens it; false when the kernel refuses. It reads as zero then, but not if
 * it was closed IN_PART, which the caller has not to use before: it may have some guards that the kernel doesn't take
 * away, and contents. */
enum hak_closed { HAK_NOT_CLOSED, HAK_CLOSED_BY_GUARDS, HAK_CLOSED_AS_FORBIDDEN, HAK_CLOSED_IN_PART };
enum hak_closed hak_page_policy_close(struct hak_range *range, uintptr_t start, size_t bytes);
bool hak_page_policy_open(uintptr_t start, size_t bytes, enum hak_closed how);

/* So many tails of runs more were unmapped; or less, as they are mapped again, or their last unit is absent as a
 * whole. */
void hak_page_policy_count_cut(int32_t change);

/* In a child after fork: the kernel does not make one mapping of what is mapped there and what was before. */
void hak_page_policy_after_fork(void);

/* True when a SuperSlab has no huge page, or an eighth of it is free: enough to give the huge page up for. */
bool hak_page_policy_may_break(const struct hak_range *range, uint32_t super_slab, size_t free_bytes);

/* True when a SuperSlab may have a huge page. */
bool hak_page_policy_is_huge(const struct hak_range *range, uint32_t super_slab);

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

/* True when large objects may have mappings of their own, and parts of SuperSlabs be unmapped. */
bool hak_page_policy_may_map(void);

/* True when tails of runs may be unmapped. */
bool hak_page_policy_may_cut(void);

/* Makes one mapping of a part of a range, as page tables are moved. */
void hak_page_policy_make_one_mapping(struct hak_range *range, uintptr_t start, size_t bytes);

/* Gives up all that splits mappings; false when there was nothing. */
bool hak_page_policy_merge_mappings(void);

#endif
