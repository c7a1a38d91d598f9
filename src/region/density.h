/* Density: how much of a SuperSlab, or of the heap, has memory, as far as hakmem can know without asking the kernel,
 * whose answer is a system call that a sandbox may kill for. At rare moments: reads what others write, and is an
 * estimate.
 */
#ifndef HAK_REGION_DENSITY_H
#define HAK_REGION_DENSITY_H

#include "region/region.h"

/* True when at least three quarters of what slabs and short runs have of a SuperSlab were handed out, and they have
 * half of it. A slab's blocks that were handed out count as touched, and of a run the first page: buffers are often
 * larger than what comes in. Of a long run nothing is known. With `is_sure` only the first page of any block counts,
 * and it takes fifteen sixteenths. */
bool hak_density_is_handed_out(const struct hak_range *range, uint32_t super_slab, bool is_sure);

/* True when nearly all pages of a SuperSlab have contents other than zeros, and not two certain ones have none. The
 * caller has all of its units. */
bool hak_density_has_contents(const struct hak_range *range, uint32_t super_slab);

/* True when of sixteen pages, spread over the memory, one at most has contents other than zeros: then few of its pages
 * have. The caller has the memory. */
bool hak_density_is_sparse(uintptr_t start, size_t bytes);

/* What hakmem has in units that are not fresh, as if all of it had been touched. If `is_exact`,
 * without holes in slabs that were purged, for a look at every slab. */
uint64_t hak_density_bytes(bool is_exact);

#endif
