#include "pool/shrink.h"

#include "base/memory.h"
#include "pool/bin.h"
#include "pool/bin_size.h"
#include "pool/held.h"
#include "pool/purge.h"
#include "region/decay.h"

enum {
    SHRUNK_SUPER_SLABS = 2, /* smaller heaps keep what they have */
    STEP_SHIFT = 4,
    LEAST_STEP_BYTES = 4096,
    MOST_VAIN_ROUNDS = 2, /* then a quarter of what is handed out has to come back */
    BINS_SHARE = 16,
    SMALL_BINS_BYTES = 1 << 14,
    LEAST_PUT_BYTES = 1 << 20,
    BLOCKS_OF_TURN = 1024, /* from bins in a call: a tenth of a millisecond */
    LITTLE_SHARE = 16,     /* of what came back a round has given: it was in vain */
};

/* When so few bytes are handed out (hak_out_bytes), a round begins. A guess. */
static HAK_ATOMIC(int64_t) shrink_at;
/* How often it was put off by growth, about: bins are kept small until it is. */
static HAK_ATOMIC(uint32_t) growths;
HAK_ATOMIC(uint32_t) hak_vain_rounds;

static bool may_shrink(void) {
    return !hak_is_paid() && !hak_atomic_load(&hak_memory_is_tight, relaxed) &&
           hak_region_count_super_slabs() >= SHRUNK_SUPER_SLABS;
}

static int64_t at_least_step(int64_t bytes) { return bytes < LEAST_STEP_BYTES ? LEAST_STEP_BYTES : bytes; }

/* Bytes given back before the next round, when so many are handed out: as far as is known, perhaps less than none. */
static int64_t step_at(int64_t out_bytes) {
    uint32_t vain = hak_atomic_load(&hak_vain_rounds, relaxed);
    int64_t step = at_least_step(out_bytes >> STEP_SHIFT) << vain;
    return vain != 0 && out_bytes > 0 && step > out_bytes / 2 ? at_least_step(out_bytes / 2) : step;
}

static void put_off(int64_t out_bytes) { hak_atomic_store(&shrink_at, out_bytes - step_at(out_bytes), relaxed); }

void hak_shrink_add(struct hak_heap *heap, int64_t bytes) {
    if (heap != NULL) {
        bytes += heap->out_bytes;
        heap->out_bytes = 0;
    }
    int64_t out_bytes = (int64_t)hak_atomic_fetch_add(&hak_out_bytes, (uint64_t)bytes, relaxed) + bytes;
    int64_t at = hak_atomic_load(&shrink_at, relaxed);
    if (bytes > 0 && out_bytes - step_at(out_bytes) > at) {
        put_off(out_bytes);
        if (out_bytes > 0) hak_allowance_grew((uint64_t)out_bytes);
        hak_atomic_store(&growths, hak_atomic_load(&growths, relaxed) + 1, relaxed);
    }
    if (heap == NULL) return;
    if (heap->growths != hak_atomic_load(&growths, relaxed)) heap->small_bins_bytes = 0;
    if (bytes <= 0 && out_bytes <= at && may_shrink()) heap->is_shrink_due = true;
}

void hak_shrink_count_small(struct hak_heap *heap, int64_t bytes) {
    int64_t *left = bytes > 0 ? &heap->small_bins_bytes : &heap->small_bins_put_bytes;
    *left -= bytes > 0 ? bytes : -bytes;
    if (*left <= 0) heap->small_bins_bytes = 0;
}

void hak_shrink_tell(struct hak_heap *heap) {
    int64_t bytes = heap->out_bytes;
    heap->out_bytes = 0;
    hak_shrink_add(NULL, bytes);
}

/* Empty bins may keep a sixteenth of what is handed out, together. */
static void keep_bins_small(struct hak_heap *heap, int64_t out_bytes) {
    uint64_t most_bytes = out_bytes < 0 ? 0 : (uint64_t)out_bytes / BINS_SHARE;
    heap->small_bins_bytes = SMALL_BINS_BYTES;
    heap->small_bins_put_bytes = out_bytes / 4 > LEAST_PUT_BYTES ? out_bytes / 4 : LEAST_PUT_BYTES;
    heap->growths = hak_atomic_load(&growths, relaxed);
    if (heap->slots_bytes <= most_bytes) return;
    uint64_t share = heap->slots_bytes / (most_bytes / 256 + 1); /* in 256ths */
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        size_t have = (size_t)(heap->slots[i].end - heap->slots[i].start), most = have * 256 / (share + 1),
               least = hak_heap_shrunk_slots(i);
        hak_heap_shrink_to(heap, i, most < least ? least : most);
    }
}

/* What the heap keeps beside its bins: units, and the blocks that it would take next. Its last slab of a class stays,
 * empty or not. A program that goes on would get another one: with a slab of each class in the midst of what it has
 * freed, it has less room for large objects. */
static void unclaim_slabs(struct hak_heap *heap) {
    struct hak_slab *unit;
    while ((unit = hak_heap_take_unit(heap)) != NULL) hak_region_release(unit, 1);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        for (struct hak_slab *slab = heap->partial[i].first; slab != NULL; slab = slab->next)
            hak_slab_unclaim_word(slab);
}

/* Empties some bins, from the next one on; true when all have been emptied. */
static bool empty_next_bins(struct hak_heap *heap) {
    uint32_t left = BLOCKS_OF_TURN;
    for (; heap->next_to_shrink <= HAK_SMALL_CLASS_COUNT; heap->next_to_shrink++) {
        left -= hak_heap_flush_oldest(heap, heap->next_to_shrink, left);
        if (left == 0) return false;
    }
    heap->next_to_shrink = 0;
    return true;
}

/* Of what lies free in slabs, the bytes beyond what may stay of all that is free. */
static uint64_t excess_of(uint64_t in_slabs) {
    uint64_t elsewhere = hak_mapping_cache_free_bytes(), allowed = hak_allowance_bytes(),
             may_stay = allowed > elsewhere ? allowed - elsewhere : 0;
    return in_slabs > may_stay ? in_slabs - may_stay : 0;
}

/* False when it isn't worth one, or not yet. */
static bool begin_round(struct hak_heap *heap) {
    int64_t out_bytes = (int64_t)hak_atomic_load(&hak_out_bytes, relaxed), at = hak_atomic_load(&shrink_at, relaxed);
    if (hak_purge_is_round()) return false; /* it goes on first: what it has passed may wait */
    heap->is_shrink_due = false;
    if (!may_shrink()) return false;
    hak_decay_look();
    if (out_bytes > at || excess_of(hak_allowance_loose_in_slabs()) == 0) return false;
    uint64_t came_back = (uint64_t)(at - out_bytes + step_at(out_bytes));
    uint32_t vain = hak_atomic_load(&hak_vain_rounds, relaxed);
    bool was_vain = hak_purge_round_bytes() < came_back / LITTLE_SHARE;
    hak_atomic_store(&hak_vain_rounds, !was_vain ? 0 : vain < MOST_VAIN_ROUNDS ? vain + 1 : vain, relaxed);
    heap->next_to_shrink = 1;
    heap->is_shrink_due = true;
    return true;
}

void hak_shrink_go_on(struct hak_heap *heap) {
    if (heap->next_to_shrink == 0 && !begin_round(heap)) return;
    if (!empty_next_bins(heap)) return;
    unclaim_slabs(heap);
    hak_decay_after_release(0);
    heap->is_shrink_due = false;
    hak_shrink_add(heap, 0);
    int64_t out_bytes = (int64_t)hak_atomic_load(&hak_out_bytes, relaxed);
    uint64_t want_bytes = excess_of(hak_allowance_free_in_slabs());
    keep_bins_small(heap, out_bytes);
    if (want_bytes != 0) hak_purge_begin_holes(want_bytes);
    put_off(out_bytes);
}
