#include "pool/freed.h"

size_t hak_freed_bytes(const void *start) {
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        for (uint32_t i = 0; i < HAK_FREED_KNOWN; i++)
            if (hak_atomic_load(&heap->freed[i].start, relaxed) == (uintptr_t)start)
                return hak_atomic_load(&heap->freed[i].bytes, relaxed);
    return 0;
}
