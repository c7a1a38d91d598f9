/* Fork: thread 0 forks when thread 1 has done any number of its atomic steps, and goes on alone, as the child. What the program
 * had is intact then, what is handed out is nobody's, and all that is free can be found.
 */
#include "library.h"

#include <string.h>

#include "region/generation.h"
#include "region/in_hand.h"

enum { MOST = 24 };

/* What the program has: a block is entered once it is had, and crossed out before it is given back. */
struct owned {
    void *block;
    uint32_t size_class;
};
static struct owned owned[3][MOST]; /* by thread; 2: the child's */
static uint32_t owned_count[3];

static void own(uint32_t thread, void *block, uint32_t size_class) {
    for (uint32_t t = 0; t < 3; t++)
        for (uint32_t i = 0; thread == 2 && i < owned_count[t]; i++) {
            uintptr_t other = (uintptr_t)owned[t][i].block,
                      end = other + hak_size_classes[owned[t][i].size_class].block_bytes;
            bool apart =
                (uintptr_t)block >= end || (uintptr_t)block + hak_size_classes[size_class].block_bytes <= other;
            model_assert(other == 0 || apart, "a block is handed out once");
        }
    model_assert(owned_count[thread] < MOST, "there is room");
    owned[thread][owned_count[thread]++] = (struct owned){block, size_class};
}

static void take(uint32_t thread, struct hak_heap *heap, uint32_t size_class) {
    void *block = library_take(heap, size_class);
    if (block != NULL) own(thread, block, size_class);
}

static void put(uint32_t thread, struct hak_heap *heap, uint32_t index) {
    struct owned had = owned[thread][index];
    owned[thread][index].block = NULL;
    library_put(heap, had.size_class, had.block);
}

/* Each heap has a slab with a free block, and a block in a bin; two units are free. */
static void setup(void) {
    library_start(1, 1, 6, 2);
    for (uint32_t t = 0; t < 3; t++) owned_count[t] = 0;
    for (uint32_t t = 0; t < 2; t++) {
        void *cached = library_take(library_heaps[t], PAIR), *spare;
        take(t, library_heaps[t], PAIR);
        spare = library_take(library_heaps[t], PAIR);
        take(t, library_heaps[t], PAIR);
        library_put(library_heaps[t], PAIR, spare);
        library_cache(library_heaps[t], PAIR, cached);
    }
}

/* The program takes all there is, and gives back all it has. */
static void child(void) {
    struct hak_heap *heap = library_heaps[0];
    model_fork();
    library_in_child();
    if (hak_atomic_load(&heap->busy, relaxed) == 0) library_check();
    else heap = NULL;
    for (uint32_t c = WIDE; c >= PAIR; c--)
        for (uint32_t before = UINT32_MAX; before != owned_count[2];) {
            before = owned_count[2];
            take(2, heap, c);
        }
    for (uint32_t t = 0; t < 3; t++)
        for (uint32_t i = 0; i < owned_count[t]; i++)
            if (owned[t][i].block != NULL) put(t, heap, i);
}

static void fork_now(void) {
    library_be(library_heaps[0]);
    child();
}

static void work_and_fork(void) {
    struct hak_heap *heap = library_heaps[0];
    library_be(heap);
    take(0, heap, PAIR);
    put(0, heap, 0);
    take(0, heap, PAIR);
    child();
}

static void fork_in_slow_path(void) {
    library_be(library_heaps[0]);
    hak_atomic_store(&library_heaps[0]->busy, 1, relaxed);
    child();
}

/* ---- what the other thread is at ------------------------------------------------------------------------------- */

static void refill_and_flush(void) {
    library_be(library_heaps[1]);
    hak_front_refill(PAIR);
    hak_front_purge();
}
static void put_and_retire(void) {
    struct hak_heap *heap = library_heaps[1];
    put(1, heap, 0);
    put(1, heap, 1);
    put(0, heap, 0);
}
static void take_and_put_wide(void) {
    struct hak_heap *heap = library_heaps[1];
    take(1, heap, WIDE);
    take(1, heap, WIDE);
    take(1, heap, WIDE);
    for (uint32_t i = 2; i < owned_count[1]; i++) put(1, heap, i);
}
static void put_without_heap(void) {
    put(1, NULL, 0);
    take(1, NULL, TRIPLE);
    put(1, NULL, 1);
}
static void leave(void) {
    hak_heap_release(library_heaps[1]);
    struct hak_heap *heap = hak_heap_acquire();
    take(1, heap, TRIPLE);
}
static void leave_bins(void) {
    hak_heap_leave(library_heaps[1]);
    struct hak_heap *heap = hak_heap_acquire();
    take(1, heap, TRIPLE);
    hak_heap_leave(heap);
    hak_heap_take_apart(heap);
}
static void use_runs(void) {
    void *start = hak_large_alloc(2 * HAK_UNIT_BYTES, HAK_ALIGNMENT, false);
    struct hak_place place = hak_region_find((uintptr_t)start);
    hak_large_free(&place);
    hak_region_purge_units(UINT64_MAX, true);
}

static struct hak_place run;

static void setup_run(void) {
    setup();
    run = hak_region_find((uintptr_t)hak_large_alloc(2 * HAK_UNIT_BYTES - 4096, HAK_ALIGNMENT, false));
    model_assert(run.kind == HAK_PLACE_RUN, "there is memory");
}
static void purge_tail(void) {
    hak_in_hand_begin();
    hak_large_purge_tail(hak_ranges[0], hak_region_unit_of(hak_ranges[0], run.slab));
    hak_in_hand_end();
}
static void fork_and_free(void) {
    model_fork();
    library_be(library_heaps[0]);
    library_in_child();
    model_assert(hak_large_free(&run), "a run can be freed");
    void *start = hak_large_alloc(2 * HAK_UNIT_BYTES, HAK_ALIGNMENT, false);
    model_assert(start == (void *)run.start, "and its units used");
    library_check();
}

static void free_and_fork(void) {
    hak_large_free(&run);
    model_fork();
    library_be(library_heaps[0]);
    library_in_child();
    library_check();
    /* Nobody waits for the other thread to give it up, unless it was about to. */
    model_assert(hak_region_find(run.start).kind == HAK_PLACE_FOREIGN || run.slab->state == HAK_SLAB_NONE,
                 "a run that was freed is gone");
}

MODEL_HARNESS(fork_run, setup_run, NULL, fork_and_free, purge_tail);
MODEL_HARNESS(fork_freed_run, setup_run, NULL, free_and_fork, purge_tail);

/* A tail that the child can't tell from somebody else's mapping costs it a unit. */
static void cut_tail(void) {
    hak_in_hand_begin();
    hak_large_cut_tail(hak_ranges[0], hak_region_unit_of(hak_ranges[0], run.slab));
    hak_in_hand_end();
}
static void fork_and_give_up(void) {
    model_fork();
    library_be(library_heaps[0]);
    library_in_child();
    model_assert(hak_large_free(&run), "a run can be freed");
    library_check();
}

MODEL_HARNESS(fork_cut_run, setup_run, NULL, fork_and_give_up, cut_tail);
MODEL_HARNESS(fork_freed_cut_run, setup_run, NULL, free_and_fork, cut_tail);

/* ---- mappings ----------------------------------------------------------------------------------------------------- */

static struct hak_place mapping;

static struct hak_place map(void) {
    void *start = hak_large_alloc((size_t)4 << 20, HAK_ALIGNMENT, false);
    model_assert(start != NULL, "there is memory");
    return hak_region_find((uintptr_t)start);
}
static void setup_mapping(void) {
    setup();
    mapping = map();
}
static void free_and_map(void) {
    struct hak_place other = map();
    hak_large_free(&other);
    map();
}
static void fork_and_map(void) {
    model_fork();
    library_be(library_heaps[0]);
    library_in_child();
    struct hak_place own = map(), old = hak_region_find(mapping.start);
    model_assert(own.start != mapping.start, "a mapping is handed out once");
    model_assert(old.kind == HAK_PLACE_MAPPING && old.bytes == mapping.bytes, "what the program had is there");
    model_assert(hak_large_free(&old) && hak_large_free(&own), "and can be freed");
    size_t kept_bytes = hak_mapping_cache_bytes();
    model_assert(hak_mapping_cache_purge() == kept_bytes, "all kept bytes are in places");
}

MODEL_HARNESS(fork_mapping, setup_mapping, NULL, fork_and_map, free_and_map);

/* ---- heaps of threads that are not there, and threads that the child starts ----------------------------------------- */

static void setup_orphans(void) {
    setup();
    hak_heap_leave_others_after_fork(NULL);
}
static void adopt(void) {
    struct hak_heap *heap = hak_heap_acquire();
    library_be(heap);
    take(model_thread(), heap, PAIR);
    hak_heap_release(heap);
}
static void take_orphans_apart(void) { hak_heap_take_kept_apart(); }
static void check_orphans(void) {
    library_check();
    model_assert(hak_heaps_in_use == 0, "heaps are counted");
}

MODEL_HARNESS_BOUNDED(orphans_adopted, 1, 1, setup_orphans, check_orphans, adopt, adopt);
MODEL_HARNESS_BOUNDED(orphans_taken_apart, 1, 1, setup_orphans, check_orphans, adopt, take_orphans_apart);

/* A thread that the child has before the handler runs, and while it does. */
static struct hak_heap *born;

static void setup_early_thread(void) {
    setup();
    hak_generation_watch();
    memset(fake_os_wiped, 0, sizeof fake_os_wiped);
}
static void run_handler(void) {
    library_be(library_heaps[0]);
    library_in_child();
    take(0, library_heaps[0], PAIR);
}
static void get_heap(void) {
    born = hak_heap_acquire();
    library_be(born);
    take(1, born, PAIR);
    take(1, born, PAIR);
}
static void check_early_thread(void) {
    library_check();
    model_assert(born->in_use == HAK_HEAP_IN_USE && born->generation <= 2, "the child's thread has its heap");
    model_assert(born == library_heaps[1] || library_heaps[1]->in_use == HAK_HEAP_ORPHANED,
                 "that of a dead one is left");
    model_assert(hak_heaps_in_use == 2, "heaps are counted");
    model_assert(hak_generation_now() == 2 && hak_generation == 2, "the next one finds that the handler has run");
}

/* It gets one that lay there unused, and was the parent's. */
static void setup_early_thread_reuses(void) {
    setup();
    hak_heap_release(library_heaps[1]);
    hak_generation_watch();
    memset(fake_os_wiped, 0, sizeof fake_os_wiped);
}
static void check_early_thread_reuses(void) {
    library_check();
    model_assert(born->in_use == HAK_HEAP_IN_USE && hak_heaps_in_use == 2, "the child's thread has its heap");
}

MODEL_HARNESS_BOUNDED(fork_early_thread, 2, 1, setup_early_thread, check_early_thread, run_handler, get_heap);
MODEL_HARNESS_BOUNDED(fork_early_thread_reuses, 2, 1, setup_early_thread_reuses, check_early_thread_reuses, run_handler,
                      get_heap);

/* ---- the start of a process --------------------------------------------------------------------------------------- */

static void start(void) { hak_process_initialize(); }
static void fork_and_start(void) {
    model_fork();
    library_in_child();
    model_assert(hak_process_initialize(), "there is memory");
    struct hak_range *range = hak_region_range(0);
    model_assert(range != NULL && range->start == hak_window.start &&
                     (uintptr_t)range->page_map == range->start - HAK_PAGE_MAP_BYTES,
                 "the first range is the one that hits find");
    void *block;
    model_assert(hak_pool_take(NULL, 1, &block + 1, 1) == 1, "there are blocks");
    hak_pool_put(NULL, 1, &block, 1);
}

MODEL_HARNESS(fork_start, library_reset, NULL, fork_and_start, start);

MODEL_HARNESS(fork_refill, setup, NULL, fork_now, refill_and_flush);
MODEL_HARNESS(fork_after_work, setup, NULL, work_and_fork, put_without_heap);
MODEL_HARNESS(fork_retire, setup, NULL, fork_now, put_and_retire);
MODEL_HARNESS(fork_wide, setup, NULL, fork_now, take_and_put_wide);
MODEL_HARNESS(fork_no_heap, setup, NULL, fork_now, put_without_heap);
MODEL_HARNESS(fork_exit, setup, NULL, fork_now, leave);
MODEL_HARNESS(fork_exit_kept, setup, NULL, fork_now, leave_bins);
MODEL_HARNESS(fork_units, setup, NULL, fork_now, use_runs);
MODEL_HARNESS(fork_slow_path, setup, NULL, fork_in_slow_path, put_and_retire);
