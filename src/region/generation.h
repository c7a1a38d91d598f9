/* Generations: whether a child of fork has threads already when hakmem's handler runs in it.
 *
 * The handler repairs what other threads have left (pool/fork.h), and rewrites what a thread of the child would use.
 * But libc calls it after the handlers that libraries have registered before hakmem was initialised, and one of these
 * may have started a thread. So:
 *
 *   G1  The kernel empties a page in each child (MADV_WIPEONFORK), which the handler fills again. A thread that finds
 *       it empty when it gets its first heap is in a child, before the handler or while it runs. It says so, in that
 *       page, and then waits while the handler runs, which waits for nobody.
 *   G2  The handler says that it runs, and then looks whether a thread has said so. If none has, none uses the heap
 *       until the handler has ended; if one has, the handler repairs only what is nobody else's (hak_fork_leave_dead).
 *   G3  A heap that is in use has the generation of the process whose thread got it, or a smaller one after a fork by
 *       that thread: in the handler, those of dead threads have the parent's or a smaller one. The same is so of who
 *       makes a step of the tables, or claims SuperSlabs (R5, R6 of region.h).
 *
 * Where the kernel has no such page (before Linux 4.14), a thread can't know, and the handler takes itself to be alone;
 * a handler knows by the number of the child's first thread that it has ended there.
 */
#ifndef HAK_REGION_GENERATION_H
#define HAK_REGION_GENERATION_H

#include <stdbool.h>

#include "base/atomic.h"
#include "base/platform.h"

/* Of this process; in a child, the parent's until the handler has ended. 1 and up. */
extern HAK_ATOMIC(uint32_t) hak_generation;

/* Before main. */
void hak_generation_watch(void);

/* Of this process: in a child also before the handler. */
uint32_t hak_generation_now(void);

/* A thread is about to get a heap: of the generation that is returned. 0 when it is the one that runs the handler, in a
 * handler of a signal: it goes without. */
uint32_t hak_generation_enter(void);

/* True when the handler has ended already in this process. A handler that is called before it may fork, and what it
 * does so in goes on in the child with the handlers of the fork before: then hakmem's is called twice there. */
bool hak_generation_is_settled(void);

/* In the handler, which begins and ends. True when no thread has got a heap in this process. */
bool hak_generation_begin(void);
void hak_generation_end(void);

#endif
