/* A heap drained by another thread, while its own hits and misses, or leaves. */
#include "library.h"

#include "front/front.h"
#include "pool/drain.h"

enum { SIZE = MANY * HAK_ALIGNMENT }; /* a request of this size is served by class MANY */

static void *held[MODEL_THREADS][4];
static uint32_t held_count[MODEL_THREADS];

static void own(void *block) {
    uint32_t t = model_thread();
    if (block == NULL) return;
    library_touch_new(block);
    held[t][held_count[t]++] = block;
}
static void take(void) { own(hak_front_alloc(SIZE, NULL)); }
static void give(void) {
    uint32_t t = model_thread();
    if (held_count[t] == 0) return;
    void *block = held[t][--held_count[t]];
    library_touch(block);
    *(uint64_t *)block = 0;
    hak_front_free(block, HAK_FROM_MALLOC);
}

static void start(uint32_t heaps, uint32_t cached) {
    library_start(1, 1, 2, heaps);
    fake_os.page_bytes = HAK_UNIT_BYTES / 8;
    for (uint32_t t = 0; t < MODEL_THREADS; t++) held_count[t] = 0;
    for (uint32_t i = 0; i < 2; i++) {
        held[0][i] = library_take(library_heaps[0], MANY);
        held_count[0]++;
    }
    for (uint32_t i = 0; i < cached; i++) library_cache(library_heaps[0], MANY, library_take(library_heaps[0], MANY));
    model_name(&library_heaps[0]->busy, "busy");
    model_name(&library_heaps[0]->drained, "drained");
    model_name(&library_heaps[0]->in_use, "in use");
    model_name(&library_heaps[0]->bins[MANY].base, "base");
    model_name(&library_heaps[0]->bins[MANY].limit, "limit");
}

static void check(void) {
    uint32_t live = 0;
    for (uint32_t t = 0; t < MODEL_THREADS; t++) {
        live += held_count[t];
        for (uint32_t i = 0; i < held_count[t]; i++) library_touch(held[t][i]);
    }
    model_assert(library_check() == live, "every block is free, in a bin, or the program's");
}

static void check_drained(void) {
    check();
    library_drain(library_heaps[0]);
    model_assert(hak_heap_cached(library_heaps[0], MANY) <= 2, "D1: one, and one on its way");
    model_assert(library_heaps[0]->partial[MANY].first == NULL, "a heap that a drainer passes by holds no slab");
    library_heaps[0]->drained_at = 0; /* none is on its way */
    library_drain(library_heaps[0]);
    model_assert(hak_heap_cached(library_heaps[0], MANY) <= 1, "D1");
    model_assert(library_heaps[0]->partial[MANY].first == NULL, "a drained heap holds no slab");
}

static void check_closed(void) {
    check_drained();
    if (library_heaps[0]->counters.flushes != 0)
        model_assert(library_heaps[0]->miss_run[MANY] == HAK_LONG_RUN * HAK_MISS_FLUSH, "a flush closes the bin");
}

static void setup_full(void) { start(1, 4); }
static void setup_three(void) { start(1, 3); }
static void setup_one(void) { start(1, 1); }
static void setup_empty(void) { start(1, 0); }
static void setup_for_frees(void) {
    start(1, 3);
    hak_heap_keep_for_frees(library_heaps[0], MANY);
}
static void setup_to_close(void) { /* a flush is the next miss, after which the bin is for frees only */
    start(1, 4);
    library_heaps[0]->miss_run[MANY] = (HAK_LONG_RUN - 1) * HAK_MISS_FLUSH;
}
static void setup_two_heaps(void) { start(2, 3); }
static void setup_refused(void) {
    start(1, 3);
    model_refuses_fences = true;
}

static void be_owner(void) { hak_thread_heap = library_heaps[0]; }

static void pop_pop(void) {
    be_owner();
    take();
    take();
}
static void push_push(void) {
    be_owner();
    give();
    give();
}
static void push_pop_pop(void) {
    be_owner();
    give();
    take();
    take();
}
static void refill_twice(void) {
    be_owner();
    hak_front_refill(PAIR);
    hak_front_refill(TRIPLE);
}
static void drain(void) { library_drain(library_heaps[0]); }
static void purge(void) { hak_front_purge(); }

MODEL_HARNESS(drain_pop, setup_three, check_drained, pop_pop, drain);
MODEL_HARNESS(drain_push, setup_one, check_drained, push_push, drain);
MODEL_HARNESS(drain_push_full, setup_full, check_drained, push_push, drain);
MODEL_HARNESS(drain_push_pop, setup_three, check_drained, push_pop_pop, drain);
MODEL_HARNESS(drain_refill, setup_empty, check_drained, pop_pop, drain);
MODEL_HARNESS(drain_slow_paths, setup_one, check_drained, refill_twice, drain);
MODEL_HARNESS_DEEP(drain_twice, setup_three, check_drained, push_pop_pop, drain, drain);
MODEL_HARNESS(drain_for_frees, setup_for_frees, check_drained, push_push, drain);
MODEL_HARNESS(drain_for_frees_pop, setup_for_frees, check_drained, push_pop_pop, drain);
MODEL_HARNESS_BOUNDED(drain_for_frees_twice, 1, 1, setup_for_frees, check_drained, push_pop_pop, drain, drain);
MODEL_HARNESS(drain_to_close, setup_to_close, check_closed, push_push, drain);
MODEL_HARNESS(drain_purge, setup_three, check, pop_pop, purge);

static void check_wanted(void) {
    check();
    hak_thread_heap = library_heaps[0];
    hak_front_refill(PAIR);
    model_assert(hak_heap_cached(library_heaps[0], MANY) == 0, "an owner does what is asked of him");
}
MODEL_HARNESS(drain_refused, setup_refused, check_wanted, push_pop_pop, drain);

/* The thread ends, and another gets the heap. */
static void leave(void) {
    be_owner();
    give();
    hak_thread_heap = library_heaps[1];
    hak_heap_release(library_heaps[0]);
}
static void come(void) {
    struct hak_heap *heap = hak_thread_heap = hak_heap_acquire();
    if (heap != NULL) take();
}
static void check_left(void) {
    check();
    model_assert(library_heaps[0]->in_use != HAK_HEAP_LEFT, "a heap that was left is taken apart");
    model_assert(library_heaps[0]->drained == 0, "nobody has it");
}
static void leave_and_come(void) {
    leave();
    come();
}
static void drain_all(void) {
    struct hak_drain drainer = {.first_taken = NULL};
    for (uint32_t tries = 0; tries < 2; tries++) hak_heap_drain_others(NULL, &drainer);
    hak_heap_end_drains(&drainer);
}
MODEL_HARNESS(drain_new, setup_three, check_left, come, drain_all);
MODEL_HARNESS(drain_all_others, setup_three, check_left, push_pop_pop, drain_all);
MODEL_HARNESS_DEEP(drain_all_leave, setup_two_heaps, check_left, leave_and_come, drain_all);
MODEL_HARNESS_BOUNDED(drain_all_twice, 1, 1, setup_two_heaps, check_left, push_pop_pop, drain_all, drain_all);
MODEL_HARNESS(drain_leave, setup_two_heaps, check_left, leave, drain);
MODEL_HARNESS_BOUNDED(drain_leave_twice, 1, 1, setup_two_heaps, check_left, leave, drain, drain);
MODEL_HARNESS(drain_come, setup_two_heaps, check_left, leave_and_come, drain);
MODEL_HARNESS_BOUNDED(drain_come_other, 1, 1, setup_two_heaps, check_left, leave, come, drain);

/* The thread ends, and its bins are the next thread's, or go back. */
static void leave_bins(void) {
    be_owner();
    give();
    hak_thread_heap = library_heaps[1];
    hak_heap_leave(library_heaps[0]);
}
static void setup_kept(void) {
    setup_two_heaps();
    leave_bins();
}
static void setup_bare(void) { /* nothing but bins: no other fence hides what the leaver releases */
    setup_two_heaps();
    hak_heap_give_up_slabs(library_heaps[0]);
}
static void take_apart(void) { hak_heap_take_apart(library_heaps[0]); }
static void leave_bins_and_come(void) {
    leave_bins();
    come();
}
static void take_from_pool(void) { own(library_take(NULL, MANY)); }
static void drain_all_and_take(void) {
    drain_all();
    take_from_pool();
}
static void check_kept(void) {
    check_left();
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next)
        model_assert(heap->in_use != HAK_HEAP_KEPT || heap->partial[MANY].first == NULL, "a kept heap holds no slab");
    drain_all();
    model_assert(library_heaps[0]->in_use != HAK_HEAP_KEPT, "who drains all takes apart what is kept");
}
MODEL_HARNESS(drain_keep, setup_two_heaps, check_kept, leave_bins, drain_all_and_take);
MODEL_HARNESS(drain_keep_come, setup_two_heaps, check_kept, leave_bins_and_come, drain);
MODEL_HARNESS(drain_keep_bare, setup_bare, check_kept, leave_bins, take_apart);
MODEL_HARNESS(drain_keep_other, setup_two_heaps, check_kept, leave_bins, come);
MODEL_HARNESS_BOUNDED(drain_kept, 1, 1, setup_kept, check_kept, come, come, drain_all_and_take);
