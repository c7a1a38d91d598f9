/* Threads: which heap the calling thread has, from its first miss to its last destructor. */
#ifndef HAK_FRONT_THREAD_H
#define HAK_FRONT_THREAD_H

#include "pool/heap.h"

/* Called by the start of the process, before any other function here. When the system has no thread-specific key left, no
 * thread gets a heap, which is slow but works. */
void hak_thread_initialize(void);

/* The calling thread's heap, given to it now if it has none. NULL when it can't have one: no memory, or the thread is at its
 * end. NULL too while the heap is busy: we are in a signal handler that interrupted a slow path. */
struct hak_heap *hak_thread_attach(void);

/* In a child after fork: the calling thread has no heap any more, and gets another at its next miss. */
void hak_thread_abandon_heap(void);

/* The calling thread, which is hakmem's own, gets no heap, whatever libc asks for in it. */
void hak_thread_refuse_heap(void);

#endif
