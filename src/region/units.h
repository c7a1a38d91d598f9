/* Growth, as range.c does it for units.c. Who makes SuperSlabs puts their units into circulation. */
#ifndef HAK_REGION_UNITS_H
#define HAK_REGION_UNITS_H

#include "region/region.h"

/* Commits `count` SuperSlabs of the range, from number *count_now on, which is how many there are. False, with *count_now as
 * it was: the range is used up, or memory is. False with *count_now changed: another thread was faster. */
bool hak_region_grow(struct hak_range *range, uint32_t *count_now, uint32_t count);

/* Commits a SuperSlab of the first range that has room, a range more if need be; *number is its number. NULL: no memory. */
struct hak_range *hak_region_new_super_slab(uint32_t *number);

/* Adds a range of at least so many SuperSlabs as number `number`, the first that is free. Returns the range of that number,
 * which may be what another thread has added; NULL when there is none. */
struct hak_range *hak_region_add_range(uint32_t number, uint32_t super_slabs);

#endif
