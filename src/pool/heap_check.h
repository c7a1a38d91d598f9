/* A look at all blocks of the secure build (HAK_SECURE), live ones too: at canaries, at what lies behind large objects,
 * and at free blocks that a cache or the quarantine has, which are zero (C2, C4 of pool/canary.h). It passes over
 * blocks between guards.
 *
 * The caller says that no other thread of the program changes the heap meanwhile, nor did when this process was forked.
 * hakmem's own thread may: it is at pages without a live block only, and at no page of a block that a cache has.
 */
#ifndef HAK_POOL_HEAP_CHECK_H
#define HAK_POOL_HEAP_CHECK_H

#include "base/platform.h"

/* Ends the program at the first block that isn't whole, with its address. */
HAK_COLD void hak_heap_check_all(void);

#endif
