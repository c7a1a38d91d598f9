/* Growth, as range.c does it for units.c. */
#ifndef HAK_REGION_UNITS_H
#define HAK_REGION_UNITS_H

#include "region/region.h"

/* Commits one SuperSlab more and gives it to the caller, who puts its units into circulation. NULL: no memory. */
struct hak_range *hak_region_new_super_slab(uint32_t *super_slab);

#endif
