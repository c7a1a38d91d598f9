/* Holes in slabs given back to the kernel, by a thread that has none of the slabs, while others go on. A page is half a unit:
 * in a slab of pairs, one block.
 */
#include "library.h"

static void *blocks[4];
static uint32_t taken_by[MODEL_THREADS];

static void start(uint32_t units, uint32_t heaps) {
    library_start(1, 1, units, heaps);
    fake_os.page_bytes = HAK_UNIT_BYTES / 2;
    for (uint32_t i = 0; i < MODEL_THREADS; i++) taken_by[i] = 0;
}

static struct hak_heap *own_heap(void) { return library_heaps[model_thread()]; }

static void check_live(uint32_t live) {
    for (uint32_t i = 0; i < MODEL_THREADS; i++) live += taken_by[i];
    model_assert(library_check() == live, "every block is free, in a bin, or the program's");
}
static void check_taken(void) { check_live(0); }
static void check_taken_and_one(void) { check_live(1); }

static void take(uint32_t size_class) {
    void *block = library_take(own_heap(), size_class);
    if (block == NULL) return;
    taken_by[model_thread()]++;
    library_touch(block);
}
static void take_pair(void) { take(PAIR); }
static void purge(void) { hak_purge_all(NULL); }
static void put_first(void) { library_put(own_heap(), PAIR, blocks[0]); }
static void put_second(void) { library_put(own_heap(), PAIR, blocks[1]); }

/* A full slab of pairs that nobody looks at, and one unit more. */
static void setup_full(void) {
    start(2, 4);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(library_heaps[3], PAIR);
    void *other = library_take(library_heaps[3], PAIR);
    library_put(library_heaps[3], PAIR, other);
    hak_heap_release(library_heaps[3]);
}

/* Comes back as a slab of triples. */
static void put_both_take_other(void) {
    put_first();
    put_second();
    take(TRIPLE);
    take(TRIPLE);
}

static void put_first_take(void) {
    put_first();
    take(PAIR);
}

MODEL_HARNESS_DEEP(purge_holes, setup_full, check_taken_and_one, put_first_take, purge);
MODEL_HARNESS_DEEP(purge_two, setup_full, check_taken, put_first, put_second, purge);
MODEL_HARNESS_DEEP(purge_reclassed, setup_full, check_taken, put_both_take_other, purge);
MODEL_HARNESS_DEEP(purge_refill, setup_full, check_taken_and_one, take_pair, purge, put_first);

/* A slab of 128 blocks, all but one of them free, comes back as one of 96: its second word is given back unused, the blocks
 * of its first word are where those of the former second word were. */
static void *many[128];

static void setup_many(void) {
    start(1, 1);
    fake_os.page_bytes = HAK_UNIT_BYTES / 8;
    hak_pool_take(NULL, MANY, many + 128, 128);
    blocks[0] = many[127];
    hak_pool_put(NULL, MANY, many, 127);
}

static void put_last_take_other(void) {
    *(uint64_t *)blocks[0] = 0;
    struct hak_heap *heap = library_heaps[0];
    if (!hak_heap_begin_slow_path(heap)) heap = NULL;
    hak_pool_put(heap, MANY, blocks, 1);
    uint32_t count = hak_pool_take(heap, FEWER, many + 128, 64);
    taken_by[model_thread()] += count;
    if (heap != NULL) hak_heap_give_up_slabs(heap);
    if (heap != NULL) hak_heap_end_slow_path(heap);
    for (uint32_t i = 0; i < count; i += 8) library_touch_new(many[127 - i]);
    for (uint32_t i = 0; i < count; i += 8) library_touch(many[127 - i]);
}

MODEL_HARNESS_BOUNDED(purge_second_word, 1, 3, setup_many, check_taken, put_last_take_other, purge);

/* A hole has parts of both words, and the second is taken when the purger has the first. */
static void take_some_of_many(void) {
    struct hak_heap *heap = library_heaps[0];
    if (!hak_heap_begin_slow_path(heap)) heap = NULL;
    taken_by[model_thread()] += hak_pool_take(heap, MANY, many + 128, 8);
    if (heap != NULL) hak_heap_end_slow_path(heap);
}

MODEL_HARNESS_BOUNDED(purge_two_words, 1, 2, setup_many, check_taken_and_one, take_some_of_many, purge);

/* Heap 0 holds the slab. */
static void setup_held(void) {
    start(1, 2);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(library_heaps[0], PAIR);
    library_put(library_heaps[0], PAIR, blocks[1]);
}

static void take_and_flush(void) {
    take(PAIR);
    if (!hak_heap_begin_slow_path(own_heap())) return;
    hak_heap_flush(own_heap());
    hak_heap_end_slow_path(own_heap());
}

MODEL_HARNESS_BOUNDED(purge_held, 1, 2, setup_held, check_taken, take_and_flush, put_first, purge);

/* The second page of a slab is behind its blocks, one of which is in use. It comes back as a slab of pairs. */
static void setup_short(void) {
    start(1, 2);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(library_heaps[1], SHORT);
    library_put(library_heaps[1], SHORT, blocks[1]);
    hak_heap_release(library_heaps[1]);
}

static void put_short_take_pairs(void) {
    library_put(own_heap(), SHORT, blocks[0]);
    take(PAIR);
    take(PAIR);
}

MODEL_HARNESS_DEEP(purge_behind, setup_short, check_taken, put_short_take_pairs, purge);

/* ---- S8: a purger returns the last bits -------------------------------------------------------------------------- */

/* A pooled slab of pairs, of which the program has a block. */
static void setup_pooled(void) {
    start(1, 3);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(library_heaps[2], PAIR);
    hak_heap_release(library_heaps[2]);
    library_put(NULL, PAIR, blocks[1]);
}

MODEL_HARNESS(purge_last, setup_pooled, check_taken, put_first, purge);

/* ---- What a purger has in hand is found (region/in_hand.h) ------------------------------------------------------- */

static void *found;

static void check_found(void) { model_assert(found != NULL, "memory that is free all the time is found"); }

/* One unit is free, or one block, and the kernel has no more. */
static void setup_last_unit(void) {
    start(1, 0);
    void *unit = hak_large_alloc(HAK_UNIT_BYTES, HAK_ALIGNMENT, false);
    struct hak_place place = hak_region_find((uintptr_t)unit);
    hak_large_free(&place);
    fake_os.reserves_left = fake_os.maps_at_left = fake_os.maps_left = 0;
}
static void setup_last_block(void) {
    start(1, 2);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(NULL, PAIR);
    library_put(NULL, PAIR, blocks[0]);
    fake_os.reserves_left = fake_os.maps_at_left = fake_os.maps_left = 0;
}
static void purge_units(void) { hak_region_purge_units(UINT64_MAX, true); }
static void sweep(void) {
    hak_purge_sweep(0, UINT32_MAX);
    hak_purge_sweep(0, UINT32_MAX);
}
static void find_run(void) { found = hak_large_alloc(HAK_UNIT_BYTES, HAK_ALIGNMENT, false); }
static void find_slab_of_pairs(void) { found = library_take(NULL, PAIR); }
static void find_pair(void) { found = library_take(library_heaps[0], PAIR); }

MODEL_HARNESS(in_hand_unit, setup_last_unit, check_found, find_run, purge_units);
MODEL_HARNESS(in_hand_unit_for_slab, setup_last_unit, check_found, find_slab_of_pairs, purge_units);
MODEL_HARNESS_DEEP(in_hand_block, setup_last_block, check_found, find_pair, purge);
MODEL_HARNESS(in_hand_swept, setup_last_block, check_found, find_pair, sweep);
