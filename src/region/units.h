/* Growth, as range.c does it for units.c. */
#ifndef HAK_REGION_UNITS_H
#define HAK_REGION_UNITS_H

#include "region/region.h"

/* Commits `count` adjacent SuperSlabs more, all or none, and gives them to the caller, who puts their units into circulation;
 * *first is the lowest one's number. NULL: no memory, or, for more than one, no room in the ranges there are. */
struct hak_range *hak_region_new_super_slabs(uint32_t count, uint32_t *first);

#endif
