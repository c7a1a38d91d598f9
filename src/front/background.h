/* The background thread: what lies free goes back to the kernel although the program makes no call.
 *
 * There is at most one in a process. It is started by a miss that allocates, once a second thread has a heap and the
 * process 8 MiB of SuperSlabs and of objects with mappings of their own; or once the program has used 2 MiB again that
 * went back since it rested last: it works in bursts. It is not started by a free, nor by an allocation of libc's or
 * the dynamic linker's own: these hold locks then that pthread_create needs. It ends by itself, two seconds later at
 * most, when one thread with a heap is left; and at once with the last one, which waits for that (B2).
 *
 * A program with one thread may do what one with two may not (docs/guest.md). So it has the thread only while it works
 * in bursts: the thread ends when nobody has missed for eight seconds, and before the program asks the kernel for what
 * it may have only alone (hak_background_yield). Where such calls can't be seen, or a filter may forbid threads, it has
 * none, and less stays free (region/allowance.h).
 *
 * Who asks for it: HAKMEM_BACKGROUND=1, from 8 MiB on; a setting that wants the service (front/service.h), or somebody
 * outside who has something to ask, whatever the size.
 *
 * While the program's threads miss it looks at the heap once per period (knob decay_ms, but three times a second at
 * most); when they have not for four periods, and all that is free has gone back, it sleeps until the next miss wakes
 * it. After a fork the child has none, until its own misses want one. It allocates nothing.
 *
 *   B1  While it sleeps, all heaps are drained, so that the next free of any thread is a miss.
 *   B2  It is never the last thread of the process, in which libc would run exit(): the program's handlers would find
 *       neither the signals nor the descriptors of a thread of the program's. So the last thread that leaves its heap
 *       joins it.
 */
#ifndef HAK_FRONT_BACKGROUND_H
#define HAK_FRONT_BACKGROUND_H

#include "base/atomic.h"
#include "base/platform.h"
#include "region/owed.h"

enum {
    HAK_BACKGROUND_NONE,
    HAK_BACKGROUND_ENDED, /* its work is done; who takes it joins it */
    HAK_BACKGROUND_TAKEN, /* somebody joins it, or does in a miss what would be its to do */
    HAK_BACKGROUND_AWAKE,
    HAK_BACKGROUND_ASLEEP,
    HAK_BACKGROUND_ENDING, /* it is to end */
};

extern HAK_ATOMIC(uint32_t) hak_background_state;

/* It pays from now on, or no more (region/owed.h). */
HAK_INLINE void hak_background_pay(bool pays) {
    hak_atomic_store(&hak_background_pays, pays ? hak_generation_now() : 0, relaxed);
}

/* The calling thread is starting it: what libc allocates meanwhile is not the program's, and is not sampled. */
extern __thread bool hak_background_is_starting __attribute__((tls_model("initial-exec")));

HAK_MISS void hak_background_start(const void *caller);
HAK_MISS void hak_background_wake(void);

/* To be called by misses that allocate, when the calling thread's heap is usable: may start the thread. `caller` is the
 * code that has called malloc; NULL: nobody's. */
HAK_INLINE void hak_background_want(const void *caller) {
    if (HAK_UNLIKELY(hak_atomic_load(&hak_background_state, relaxed) <= HAK_BACKGROUND_ENDED))
        hak_background_start(caller);
}

/* To be called by everything that counts as a miss, after it has been counted, with the compiler's order in between:
 * the light side of the fence in all threads with which the background thread goes to sleep. */
HAK_INLINE void hak_background_notice(void) {
    if (HAK_UNLIKELY(hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_ASLEEP)) hak_background_wake();
}

/* To be called when a thread has left its heap, and holds no lock of libc's: may wait for the background thread. */
void hak_background_thread_ended(void);

/* Before main: the thread is to be of this process. */
void hak_background_begin(void);

/* Before main: from now on hak_background_yield is called before each call of the kernel that a program with one thread
 * may make, and one with two may not, or not with what it is to do for all of them. So it may have hakmem's. */
void hak_background_watch(void);

/* Ends the thread that works for a program with one thread; none begins for ten seconds. If more than 16 MiB are free,
 * it gives back for 20 ms before; the rest goes back in the program's calls. FOR_GOOD: all that is free goes back, and
 * none begins any more. TO_FORK: waits for a second at most; a fork may go on beside it.
 * None begins then until hak_background_forked: handlers of others follow. */
enum hak_yield { HAK_YIELD, HAK_YIELD_TO_FORK, HAK_YIELD_FOR_GOOD };
void hak_background_yield(enum hak_yield why);

/* To be called before and after a call of the kernel that may put a filter on all threads. A thread that has begun
 * looks first at what it may do; the caller waits for that, ten seconds at most. None begins meanwhile. */
void hak_background_filter(bool begins);

/* After a fork, in the parent and in the child. */
void hak_background_forked(void);

/* In a child after fork: there is no such thread. */
void hak_background_after_fork(void);

#endif
