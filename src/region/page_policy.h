/* Page policy: when free memory goes back to the kernel. The one place that decides.
 *
 * What has lain free through a whole period goes back: at the end of each period (knob decay_ms) as many units as the
 * fewest that were free at any moment of it, from the top of the address space. A program that allocates again what
 * it frees never pays for page faults, and one whose use has shrunk gives the difference back. The background thread ends
 * periods (front/background.h); where there is none, the clock is looked at when units are released. A hard bound,
 * dirty_limit_bytes, holds in between.
 */
#ifndef HAK_REGION_PAGE_POLICY_H
#define HAK_REGION_PAGE_POLICY_H

#include "base/atomic.h"
#include "base/platform.h"

/* To be called after units were released, and after dirty ones were taken. */
void hak_page_policy_after_release(void);
void hak_page_policy_after_taking(uint64_t dirty_units_left);

/* 1 while a background thread ends the periods. */
extern HAK_ATOMIC(uint32_t) hak_page_policy_has_background;

/* Ends a period: units that lay free through all of it go back, if they are `least_bytes` together. Returns the bytes. */
size_t hak_page_policy_end_period(uint64_t least_bytes);

#endif
