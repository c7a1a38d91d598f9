/* The large objects that threads have freed last: one that is freed again, or used, is told from an address that never
 * was a block. Noted by the thread that frees, before it does: who finds the object gone mostly finds the note. Read
 * where an address is nobody's, which ends the program. */
#ifndef HAK_POOL_FREED_H
#define HAK_POOL_FREED_H

#include "os/os.h"
#include "pool/heap.h"

/* When, for who has to tell the objects of several heaps apart: while there is one only, the clock is not asked. */
HAK_INLINE uint64_t hak_freed_when_ms(void) { return hak_heap_first()->next == NULL ? 0 : hak_os_clock_ms(); }

/* The thread of the heap is about to free an object, or has moved it. `heap` may be NULL: nobody remembers it. */
HAK_INLINE void hak_freed_note(struct hak_heap *heap, const void *start, size_t bytes) {
    if (HAK_UNLIKELY(heap == NULL)) return;
    uint32_t next = hak_atomic_load(&heap->freed_next, relaxed);
    struct hak_freed *place = &heap->freed[next % HAK_FREED_KNOWN];
    hak_atomic_store(&heap->freed_next, next + 1, relaxed);
    hak_atomic_store(&place->start, (uintptr_t)start, relaxed);
    hak_atomic_store(&place->bytes, bytes, relaxed);
    hak_atomic_store(&place->when_ms, hak_freed_when_ms(), relaxed);
    hak_signal_fence(); /* before the object goes; other processors may see it later, and then it isn't known */
}

/* The bytes of the object that began there, of the one that was freed last; 0 when none is known. Any thread; a guess
 * while others free, and between two that threads have freed within one tick of the clock. */
HAK_COLD size_t hak_freed_bytes(const void *start);

#endif
