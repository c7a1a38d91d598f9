/* Growth, as range.c does it for units.c. Who makes SuperSlabs puts their units into circulation. */
#ifndef HAK_REGION_UNITS_H
#define HAK_REGION_UNITS_H

#include "region/region.h"

enum hak_growth {
    HAK_GROWTH_DONE,
    HAK_GROWTH_RACED,     /* another thread was faster: *count_now has changed */
    HAK_GROWTH_NO_ROOM,   /* the range is used up */
    HAK_GROWTH_NO_MEMORY, /* the kernel refuses */
    HAK_GROWTH_OCCUPIED,  /* somebody else has a mapping there; a single SuperSlab is a hole now (R4) */
};

/* Maps `count` SuperSlabs of the range, from number *count_now on, which is how many there are. If it is DONE, they are
 * in the caller's hand, who ends or keeps that (region/in_hand.h). Else nothing has changed but for holes. */
enum hak_growth hak_region_grow(struct hak_range *range, uint32_t *count_now, uint32_t count);

/* Maps the next SuperSlabs of the first range that has room, of a further one if need be: *count of them from number
 * *first on, in the caller's hand. NULL: no memory. */
struct hak_range *hak_region_new_super_slabs(uint32_t *first, uint32_t *count);

/* Adds a range with room for so many SuperSlabs as number `number`, the first that is free. Returns the range of that
 * number, which may be what another thread has added; NULL when there is none. */
struct hak_range *hak_region_add_range(uint32_t number, uint32_t super_slabs);

/* In a child after fork, for each range. */
void hak_region_recover_tables_after_fork(struct hak_range *range);

#endif
