/* Threads: which heap the calling thread has, from its first miss to its last destructor. */
#ifndef HAK_FRONT_THREAD_H
#define HAK_FRONT_THREAD_H

#include "pool/heap.h"

/* Makes the thread-specific key, if there is none yet. False without one: when the system has no key left, no thread
 * gets a heap, which is slow but works; while somebody is making it, who asks goes without a heap this time. So
 * nobody waits, not even where libc allocates to make it. */
bool hak_thread_initialize(void);

/* In a child after fork. */
void hak_thread_after_fork(void);

/* A number that is no other thread's; neither 0 nor 1. */
uintptr_t hak_thread_identity(void);

/* The calling thread's heap, given to it now if it has none. NULL when it can't have one: no memory, or the thread is
 * at its end. NULL too while the heap is busy: we are in a signal handler that interrupted a slow path. */
struct hak_heap *hak_thread_attach(void);

/* True in a signal handler that has interrupted the calling thread while it was getting its heap, or leaving it. */
bool hak_thread_is_between_heaps(void);

/* In a child after fork: the calling thread has no heap any more, and gets another at its next miss. */
void hak_thread_abandon_heap(void);

/* The calling thread, which is hakmem's own, gets no heap, whatever libc asks for in it. */
void hak_thread_refuse_heap(void);

#endif
