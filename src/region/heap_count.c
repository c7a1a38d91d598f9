#include "region/heap_count.h"

#include "os/os.h"

enum { FEW_HEAPS = 4, HEAPS_PER_PROCESSOR = 2 };

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint32_t) hak_heaps_in_use; /* at the birth and end of each thread */
HAK_ATOMIC(uint32_t) hak_heaps_about;
HAK_ATOMIC(uint32_t) hak_few_heaps;
HAK_ATOMIC(uint32_t) hak_heaps_resting;

void hak_heap_count_initialize(void) {
    uint32_t few = HEAPS_PER_PROCESSOR * hak_os_processor_count();
    hak_atomic_store(&hak_few_heaps, few > FEW_HEAPS ? few : FEW_HEAPS, relaxed);
}

void hak_heap_count_change(int32_t by) {
    uint32_t count = hak_atomic_fetch_add(&hak_heaps_in_use, (uint32_t)by, relaxed) + (uint32_t)by,
             about = hak_atomic_load(&hak_heaps_about, relaxed),
             difference = about < count ? count - about : about - count;
    if (difference * 8 >= count) hak_atomic_store(&hak_heaps_about, count, relaxed);
}

void hak_heap_set_in_use(uint32_t count) {
    hak_atomic_store(&hak_heaps_in_use, count, relaxed);
    hak_atomic_store(&hak_heaps_about, count, relaxed);
}

void hak_heap_set_resting(uint32_t count) {
    hak_atomic_store(&hak_heaps_resting, count, relaxed);
    hak_atomic_store(&hak_heaps_about, hak_atomic_load(&hak_heaps_in_use, relaxed), relaxed);
}
