#include "pool/quarantine.h"

#include "os/os.h"
#include "pool/pool.h"

/* The places of a class are these, of all of a heap's. */
struct row {
    uint32_t first, count;
};

static struct row rows[HAK_SMALL_CLASS_COUNT + 2]; /* the last one tells where the others end */

static uint32_t least_places = HAK_QUARANTINE_LEAST, most_places = UINT32_MAX; /* the model checker has fewer */

static uint32_t count_for(size_t block_bytes) {
    if (block_bytes == 0) return 0; /* the model checker has few classes */
    uint32_t count = (uint32_t)(HAK_QUARANTINE_BYTES / block_bytes);
    if (count > most_places) return most_places;
    return count < least_places ? least_places : count;
}

/* Odd; another one in each process. */
static HAK_ATOMIC(uint64_t) place_secret = 1;

void hak_quarantine_begin(void) {
    hak_atomic_store(&place_secret, hak_os_random(HAK_RANDOM_QUARANTINE) | 1, relaxed);
    for (uint32_t i = 0; i < 2; i++)
        hak_atomic_store(&hak_slot_secrets[i], hak_os_random(HAK_RANDOM_ORDER + i), relaxed);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        rows[i].count = count_for(hak_size_classes[i].block_bytes);
        rows[i + 1].first = rows[i].first + rows[i].count;
    }
}

void hak_quarantine_seed(uint64_t seed) {
    hak_atomic_store(&place_secret, seed * UINT64_C(0x9E3779B97F4A7C15) | 1, relaxed);
}

/* Another one each time, in each heap. */
static uint32_t pick_place(struct hak_heap *heap, uint32_t count) {
    uint64_t mixed = ((uint64_t)heap->number << 32 | (uint32_t)++heap->waits) * hak_atomic_load(&place_secret, relaxed);
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)((mixed >> 32) * count >> 32);
}

HAK_INLINE void *exchange(struct hak_heap *heap, void *block, uint32_t size_class) {
    struct row row = rows[size_class];
    void **first = hak_owned_get(&heap->waiting) + row.first;
    uint32_t waiting = hak_owned_get(&heap->waiting_count[size_class]);
    if (HAK_UNLIKELY(waiting < row.count)) {
        hak_owned_set(&first[waiting], block);
        hak_owned_set(&heap->waiting_count[size_class], (uint16_t)(waiting + 1));
        return NULL;
    }
    void **place = &first[pick_place(heap, row.count)], *other = *place;
    hak_owned_set(place, block);
    return other;
}

static HAK_MISS void *begin_exchange(struct hak_heap *heap, void *block, uint32_t size_class) {
    size_t bytes = hak_align_up(rows[HAK_SMALL_CLASS_COUNT + 1].first * sizeof(void *), hak_os_page_bytes());
    void *waiting = bytes == 0 ? NULL : hak_os_map(bytes, hak_os_page_bytes());
    if (waiting == NULL) return block;
    hak_os_refuse_huge_pages(waiting, bytes); /* as heaps do */
    hak_owned_set(&heap->waiting, waiting);
    return exchange(heap, block, size_class);
}

void *hak_quarantine_exchange(struct hak_heap *heap, void *block, uint32_t size_class) {
    if (HAK_UNLIKELY(hak_owned_get(&heap->waiting) == NULL)) return begin_exchange(heap, block, size_class);
    return exchange(heap, block, size_class);
}

bool hak_quarantine_has(const struct hak_heap *heap, uint32_t size_class, const void *block) {
    for (uint32_t i = hak_quarantine_count(heap, size_class); i-- > 0;)
        if (hak_owned_peek(&hak_owned_peek(&heap->waiting)[rows[size_class].first + i]) == block) return true;
    return false;
}

bool hak_quarantine_has_any(const struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        if (hak_quarantine_count(heap, i) != 0) return true;
    return false;
}

void hak_quarantine_empty(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        uint32_t count = hak_quarantine_count(heap, i);
        if (count == 0) continue;
        hak_owned_set(&heap->waiting_count[i], 0);
        hak_pool_put(heap, i, hak_owned_get(&heap->waiting) + rows[i].first, count);
        HAK_COUNT(heap, flushed_blocks, count);
    }
}
