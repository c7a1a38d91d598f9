#include "pool/freed.h"

/* The last one of the heap's that began there, or NULL. */
static const struct hak_freed *find_freed(const struct hak_heap *heap, uintptr_t start) {
    uint32_t next = hak_atomic_load(&heap->freed_next, relaxed);
    for (uint32_t i = 1; i <= HAK_FREED_KNOWN; i++) {
        const struct hak_freed *place = &heap->freed[(next - i) % HAK_FREED_KNOWN];
        if (hak_atomic_load(&place->start, relaxed) == start) return place;
    }
    return NULL;
}

size_t hak_freed_bytes(const void *start) {
    size_t bytes = 0;
    uint64_t last_ms = 0;
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        const struct hak_freed *found = find_freed(heap, (uintptr_t)start);
        uint64_t when_ms = found == NULL ? 0 : hak_atomic_load(&found->when_ms, relaxed);
        if (found == NULL || when_ms < last_ms) continue;
        bytes = hak_atomic_load(&found->bytes, relaxed);
        last_ms = when_ms;
    }
    return bytes;
}
