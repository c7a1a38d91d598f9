/* Run quarantine: page runs that were freed, or that have moved, and wait before their units can be used again. Of the
 * secure build (HAK_SECURE): whoever touches such a run faults.
 *
 *   W1  A run that waits is closed: it has no memory, and no access to it is allowed. It has guards all over, or is
 *       forbidden where the kernel has no guards within mappings. What can't be closed doesn't wait, nor does what the
 *       program wants to keep (mallopt). If the kernel refuses in the middle, it waits as it is.
 *   W2  The page map says that its units are nobody's. They are not free, either. Its record says how long the run was
 *       (run_pages, run_facts) and how it was closed, until it comes out.
 *   W3  There is a fixed number of places for runs of each of a few lengths, which are taken by turns: a run waits for
 *       as many frees of its length as there are places. It comes out earlier where memory is wanted.
 *   W4  Each place is one atomic word: who exchanges it has the run. Lock-free. In a child of fork places are what they
 *       were; a run that another thread had in hand is nobody's.
 */
#ifndef HAK_REGION_RUN_QUARANTINE_H
#define HAK_REGION_RUN_QUARANTINE_H

#include "region/region.h"

/* Puts in a run that the caller has, and that nobody else can find; the run that comes out becomes free units. False,
 * with nothing done, when it can't wait. Of the run all units are mapped; its last one may have guards. */
bool hak_run_quarantine_put(struct hak_slab *run);

/* All that wait become free units. The caller has memory in hand (region/in_hand.h). */
void hak_run_quarantine_end(void);

/* The run that waits and covers `address`: its start and its usable bytes; false, and both as they were, when there is
 * none. The usable bytes of one that begins there; or 0. It may go at any moment. */
bool hak_run_quarantine_find(uintptr_t address, uintptr_t *start, size_t *bytes);
size_t hak_run_quarantine_bytes(uintptr_t address);

#endif
