#include "region/page_policy.h"

#include "base/knobs.h"
#include "region/region.h"

void hak_page_policy_after_release(void) {
    if (hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES > hak_knob(dirty_limit_bytes))
        hak_region_purge_units();
}
