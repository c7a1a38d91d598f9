/* A look into another heap's bin (pool/holder.h) for a block that isn't there, by who owns it; while the heap's own thread hits,
 * misses, moves blocks or leaves, and others drain it. What is in slots is seen as it is: that they may be seen older than
 * the top is no part of this. */
#include "library.h"

#include "front/front.h"
#include "pool/drain.h"
#include "pool/holder.h"

enum { SIZE = MANY * HAK_ALIGNMENT, CACHED = 3 };

static HAK_ATOMIC(void *) passed;
static void *kept[2];
static uint32_t given[MODEL_THREADS], taken[MODEL_THREADS];
static bool found;

static void setup(void) {
    library_start(1, 1, 2, 2);
    fake_os.page_bytes = HAK_UNIT_BYTES / 8;
    model_stops_anywhere = true; /* hits and moves of blocks are plain data */
    for (uint32_t i = 0; i < 2; i++) kept[i] = library_take(library_heaps[0], MANY);
    for (uint32_t i = 0; i < CACHED; i++) library_cache(library_heaps[0], MANY, library_take(library_heaps[0], MANY));
    passed = NULL;
    found = false;
    for (uint32_t t = 0; t < MODEL_THREADS; t++) given[t] = taken[t] = 0;
    model_name(&library_heaps[0]->busy, "busy");
    model_name(&library_heaps[0]->drained, "drained");
    model_name(&library_heaps[0]->in_use, "in use");
    model_name(&library_heaps[0]->bins[MANY].base, "base");
    model_name(&library_heaps[0]->bins[MANY].limit, "limit");
    model_name(&passed, "passed");
}

static void check(void) {
    model_assert(!found, "a block that has an owner is in no bin");
    model_assert(library_heaps[0]->drained == 0, "nobody has the heap");
    uint32_t live = 2;
    for (uint32_t t = 0; t < MODEL_THREADS; t++) live += taken[t] - given[t];
    model_assert(library_check() == live, "every block is free, in a bin, or the program's");
}

static void give(uint32_t i) {
    library_touch(kept[i]);
    *(uint64_t *)kept[i] = 0;
    given[model_thread()]++;
    hak_front_free(kept[i], HAK_FROM_MALLOC);
}

/* The heap's own thread hands out a block, and puts another one in its place. */
static void pass(void) {
    hak_thread_heap = library_heaps[0];
    void *block = hak_front_alloc(SIZE, NULL);
    library_touch_new(block);
    taken[model_thread()]++;
    hak_atomic_store(&passed, block, release); /* pairs with look_for_passed */
    give(0);
    give(1);
}

/* It moves blocks: those that were in the bin are others' before it has told so. */
static void flush(void) {
    struct hak_heap *heap = hak_thread_heap = library_heaps[0];
    if (hak_heap_begin_slow_path(heap)) {
        hak_heap_flush(heap);
        hak_heap_end_slow_path(heap);
    }
    give(0);
}

static void leave(void) {
    hak_thread_heap = NULL;
    hak_heap_release(library_heaps[0]);
}

static void look_for(const void *block) {
    hak_thread_heap = library_heaps[1];
    if (block != NULL) found |= library_finds_in_bin(library_heaps[0], MANY, block);
}
static void look_for_passed(void) { look_for(hak_atomic_load(&passed, acquire)); /* pairs with pass */ }
static void look_for_taken(void) {
    void *block = library_take(NULL, MANY);
    if (block != NULL) taken[model_thread()]++;
    look_for(block);
}
static void drain(void) { library_drain(library_heaps[0]); }

MODEL_HARNESS(holder_pass, setup, check, pass, look_for_passed);
MODEL_HARNESS(holder_flush, setup, check, flush, look_for_taken);
MODEL_HARNESS(holder_drain, setup, check, drain, look_for_taken);
MODEL_HARNESS_BOUNDED(holder_pass_drain, 1, 1, setup, check, pass, look_for_passed, drain);
MODEL_HARNESS(holder_leave, setup, check, leave, look_for_taken);

/* Its bins lose their slots meanwhile: what only slow paths change is read by who has the heap. */
static void *cached;
static void setup_cached(void) {
    setup();
    cached = library_heaps[0]->bins[MANY].top[-1];
}
static void give_up(void) {
    struct hak_heap *heap = hak_thread_heap = library_heaps[0];
    if (!hak_heap_begin_slow_path(heap)) return;
    hak_heap_give_up_bins(heap);
    hak_heap_end_slow_path(heap);
}
static void look_for_cached_once(void) {
    look_for(cached);
    found = false; /* or true */
}
MODEL_HARNESS(holder_give_up, setup_cached, check, give_up, look_for_cached_once);

/* What is there is found, if nobody has the heap; and the heap goes on. */
static void look_for_cached(void) { look_for(library_heaps[0]->bins[MANY].top[-1]); }
static void check_found(void) {
    model_assert(found, "a block in a bin is found");
    found = false;
    check();
}
static void hit(void) { hak_atomic_store(&passed, NULL, relaxed); }
MODEL_HARNESS(holder_found, setup, check_found, hit, look_for_cached);

/* A heap is found by its number as soon as it has one. */
static void come(void) { hak_heap_acquire(); }
static void look_by_number(void) {
    const struct hak_heap *heap = hak_heap_of_number(3);
    if (heap != NULL) model_assert(heap->next == library_heaps[1], "the record is whole");
}
static void check_number(void) { model_assert(hak_heap_of_number(3) == hak_heaps, "it is known"); }
MODEL_HARNESS(holder_number, setup, check_number, come, look_by_number);
