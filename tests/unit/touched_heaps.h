/* Which heaps' records something looks at. The test takes access to all of them away; the kernel tells of each one that
 * is wanted, and the test gives it back. */
#ifndef TOUCHED_HEAPS_H
#define TOUCHED_HEAPS_H

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "pool/heap.h"

enum { TOUCHED_MOST = 8192 };

static struct {
    struct hak_heap *heaps[TOUCHED_MOST];
    uint32_t count, touched;
} touched_heaps;

static inline void touched_on_fault(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    for (uint32_t i = 0; i < touched_heaps.count; i++) {
        struct hak_heap *heap = touched_heaps.heaps[i];
        if ((uintptr_t)info->si_addr - (uintptr_t)heap >= HAK_HEAP_BYTES) continue;
        if (mprotect(heap, HAK_HEAP_BYTES, PROT_READ | PROT_WRITE) != 0) abort();
        touched_heaps.touched++;
        return;
    }
    abort();
}

/* How many heaps `what` looks at: of all there are, whoever has them. */
static inline uint32_t touched_by(void (*what)(void)) {
    const struct sigaction on_fault = {.sa_sigaction = touched_on_fault, .sa_flags = SA_SIGINFO};
    const struct sigaction as_before = {.sa_handler = SIG_DFL};
    touched_heaps.count = touched_heaps.touched = 0;
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (touched_heaps.count == TOUCHED_MOST) abort();
        touched_heaps.heaps[touched_heaps.count++] = heap;
    }
    if (sigaction(SIGSEGV, &on_fault, NULL) != 0) abort();
    for (uint32_t i = 0; i < touched_heaps.count; i++)
        if (mprotect(touched_heaps.heaps[i], HAK_HEAP_BYTES, PROT_NONE) != 0) abort();
    what();
    for (uint32_t i = 0; i < touched_heaps.count; i++)
        if (mprotect(touched_heaps.heaps[i], HAK_HEAP_BYTES, PROT_READ | PROT_WRITE) != 0) abort();
    if (sigaction(SIGSEGV, &as_before, NULL) != 0) abort();
    return touched_heaps.touched;
}

#endif
