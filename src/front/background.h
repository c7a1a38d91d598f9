/* The background thread: what lies free goes back to the kernel although the program makes no call.
 *
 * There is at most one in a process. It is started by a miss that allocates, once the process has 8 MiB of SuperSlabs and a second
 * thread that uses the heap, or 64 MiB: programs that must have one thread only are small and early, as a rule. It is not started by
 * a free: libc frees with locks held that pthread_create needs. While the heap profile is on, a process of any size gets it, if it calls
 * malloc often, because it opens and closes the windows in which malloc is metered (front/meter.h). While the program's threads miss it looks at the heap once per
 * period (knob decay_ms, but three times a second at most); when they have not for four periods, and all that is free has gone
 * back, it sleeps until the next miss wakes it. After a fork the child has none, until its own misses want one. It ends with the
 * last thread that has a heap, so that it keeps no process alive. It allocates nothing. It has the service with it (front/service.h): where a
 * setting asks for that one, it is started whatever the size of the process is.
 *
 *   B1  While it sleeps, all heaps are drained, so that the next free of any thread is a miss.
 */
#ifndef HAK_FRONT_BACKGROUND_H
#define HAK_FRONT_BACKGROUND_H

#include "base/atomic.h"
#include "base/platform.h"

enum { HAK_BACKGROUND_NONE, HAK_BACKGROUND_AWAKE, HAK_BACKGROUND_ASLEEP, HAK_BACKGROUND_ENDING };

extern HAK_ATOMIC(uint32_t) hak_background_state;

HAK_COLD void hak_background_start(void);
HAK_COLD void hak_background_wake(void);

/* There is something new for the thread to do, wherever it waits. */
void hak_background_nudge(void);

/* To be called by misses that allocate, when the calling thread's heap is usable: may start the thread. */
HAK_INLINE void hak_background_want(void) {
    if (HAK_UNLIKELY(hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_NONE)) hak_background_start();
}

/* To be called by everything that counts as a miss, after it has been counted, with the compiler's order in between: the light
 * side of the fence in all threads with which the background thread goes to sleep. */
HAK_INLINE void hak_background_notice(void) {
    if (HAK_UNLIKELY(hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_ASLEEP)) hak_background_wake();
}

/* To be called when a thread has left its heap. */
void hak_background_thread_ended(void);

/* In a child after fork: there is no such thread. */
void hak_background_after_fork(void);

#endif
