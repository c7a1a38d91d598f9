#include "pool/freed.h"

/* The last one that began there. */
static size_t find_freed(const struct hak_heap *heap, uintptr_t start) {
    uint32_t next = hak_atomic_load(&heap->freed_next, relaxed);
    for (uint32_t i = 1; i <= HAK_FREED_KNOWN; i++) {
        const struct hak_freed *place = &heap->freed[(next - i) % HAK_FREED_KNOWN];
        if (hak_atomic_load(&place->start, relaxed) == start) return hak_atomic_load(&place->bytes, relaxed);
    }
    return 0;
}

size_t hak_freed_bytes(const void *start) {
    size_t bytes = 0;
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL && bytes == 0; heap = heap->next)
        bytes = find_freed(heap, (uintptr_t)start);
    return bytes;
}
