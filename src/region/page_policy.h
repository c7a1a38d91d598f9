/* Page policy: when free memory goes back to the kernel. The one place that decides.
 *
 * Free units stay resident up to the knob dirty_limit_bytes, so that programs that free and allocate again do not pay
 * for page faults. What goes beyond goes back at once, all of it in one sweep. Holes in slabs go back on request
 * (pool/purge.h).
 */
#ifndef HAK_REGION_PAGE_POLICY_H
#define HAK_REGION_PAGE_POLICY_H

/* To be called after units were released. */
void hak_page_policy_after_release(void);

#endif
