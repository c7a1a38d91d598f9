#include "pool/quarantine.h"

#include "os/os.h"
#include "pool/pool.h"

typedef HAK_ATOMIC(void *) quarantine_place;

static quarantine_place *quarantine; /* const after the start; NULL without memory */
static uint32_t quarantine_group = HAK_QUARANTINE_GROUP, quarantine_most = HAK_QUARANTINE_MOST; /* powers of two; the
                                                                                            model checker has fewer */
static uint32_t places_of[HAK_SMALL_CLASS_COUNT + 1]; /* a power of two of each class; 0 before the start */

void hak_quarantine_begin(void) {
    size_t bytes = sizeof(quarantine_place) * (HAK_SMALL_CLASS_COUNT + 1) * HAK_QUARANTINE_MOST;
    if (quarantine != NULL) return;
    quarantine = hak_os_map(hak_align_up(bytes, hak_os_page_bytes()), hak_os_page_bytes());
    hak_atomic_store(&hak_secret, hak_os_random(HAK_RANDOM_QUARANTINE) | 1, relaxed);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        uint32_t block_bytes = hak_size_classes[i].block_bytes;
        if (block_bytes == 0) continue; /* the model checker has few classes */
        uint32_t count = 1u << hak_highest_bit(HAK_QUARANTINE_BYTES / block_bytes);
        if (count > quarantine_most) count = quarantine_most;
        places_of[i] = count < quarantine_group ? quarantine_group : count;
    }
}

void hak_quarantine_seed(uint64_t seed) {
    hak_atomic_store(&hak_secret, seed * UINT64_C(0x9E3779B97F4A7C15) | 1, relaxed);
}

static uint32_t count_places(uint32_t size_class) { return quarantine == NULL ? 0 : places_of[size_class]; }

static uint64_t mix_key(const void *block) {
    uint64_t mixed = ((uintptr_t)block - hak_atomic_load(&hak_window.start, relaxed)) / HAK_ALIGNMENT;
    mixed *= hak_atomic_load(&hak_secret, relaxed);
    return (mixed ^ mixed >> 32) * UINT64_C(0x9E3779B97F4A7C15);
}

static quarantine_place *group_of_block(uint32_t size_class, uint64_t mixed) {
    uint32_t index = (uint32_t)(mixed >> 32) & (places_of[size_class] - 1) & ~(quarantine_group - 1);
    return &quarantine[size_class * HAK_QUARANTINE_MOST + index];
}

/* A bit for each place that has it. Without branches: they would come out by chance. */
static uint32_t find_in_group(quarantine_place *group, const void *block) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < quarantine_group; i++)
        found |= (uint32_t)(hak_atomic_load(&group[i], relaxed) == block) << i;
    return found;
}

static bool is_in_group(quarantine_place *group, const void *block) { return find_in_group(group, block) != 0; }

/* An empty place, or one by chance. */
static quarantine_place *pick_place(quarantine_place *group, uint64_t chance) {
    uint32_t empty = find_in_group(group, NULL);
    if (empty != 0) return &group[hak_lowest_bit(empty)];
    return &group[(chance * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (quarantine_group - 1)];
}

/* Release, and acquire for the block that comes out: who frees a block is done with it. */
static void *exchange_place(quarantine_place *place, void *block) { return hak_atomic_exchange(place, block, acq_rel); }

static void *take_out(quarantine_place *place) {
    return hak_atomic_load(place, relaxed) == NULL ? NULL : exchange_place(place, NULL);
}

void hak_quarantine_prefetch(const void *block, uint32_t size_class) {
    if (size_class <= HAK_SMALL_CLASS_COUNT && quarantine != NULL)
        hak_prefetch_for_write(group_of_block(size_class, mix_key(block)));
}

void *hak_quarantine_exchange(void *block, uint32_t size_class, uint64_t turn, const void **twice) {
    *twice = NULL;
    if (quarantine == NULL) return block;
    uint64_t mixed = mix_key(block);
    quarantine_place *group = group_of_block(size_class, mixed);
    if (is_in_group(group, block)) *twice = block;
    if (*twice != NULL) return NULL;
    void *other = exchange_place(pick_place(group, mixed + turn), block);
    if (other != NULL && is_in_group(group, other)) *twice = other;
    return other;
}

void *hak_quarantine_release(uint32_t size_class, uint64_t turn, const void **twice) {
    uint32_t count = count_places(size_class);
    *twice = NULL;
    if (count == 0) return NULL;
    uint64_t mixed = (turn ^ hak_atomic_load(&hak_secret, relaxed)) * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t at = (uint32_t)(mixed >> 32) & (count - 1);
    void *block = take_out(&quarantine[size_class * HAK_QUARANTINE_MOST + at]);
    if (block != NULL && is_in_group(group_of_block(size_class, mix_key(block)), block)) *twice = block;
    return block;
}

bool hak_quarantine_has(const void *block, uint32_t size_class) {
    return quarantine != NULL && is_in_group(group_of_block(size_class, mix_key(block)), block);
}

uint32_t hak_quarantine_count(uint32_t size_class) {
    uint32_t blocks = 0;
    for (uint32_t at = count_places(size_class); at-- > 0;)
        blocks += hak_atomic_load(&quarantine[size_class * HAK_QUARANTINE_MOST + at], relaxed) != NULL;
    return blocks;
}

void hak_quarantine_empty(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        for (uint32_t at = count_places(i); at-- > 0;) {
            void *block = take_out(&quarantine[i * HAK_QUARANTINE_MOST + at]);
            if (block == NULL) continue;
            HAK_COUNT(heap, flushed_blocks, 1);
            hak_pool_put(heap, i, &block, 1);
        }
    }
}
