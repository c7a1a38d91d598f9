/* Blocks between bins and slabs, slabs between heaps, the pool and the region. Threads call what misses call; a heap is that
 * of the thread of its number.
 */
#include "library.h"

enum { BLOCKS = 6 };

static void *blocks[BLOCKS]; /* what the program has, from setup on; each is one thread's */
static uint32_t taken;       /* blocks that threads have taken and kept */
static uint32_t taken_by[MODEL_THREADS];

static void start(uint32_t units, uint32_t heaps) {
    library_start(1, 1, units, heaps);
    for (uint32_t i = 0; i < MODEL_THREADS; i++) taken_by[i] = 0;
}

static struct hak_heap *own_heap(void) { return library_heaps[model_thread()]; }

static void take(uint32_t size_class) {
    if (library_take(own_heap(), size_class) != NULL) taken_by[model_thread()]++;
}
static void put_pair(uint32_t index) { library_put(own_heap(), PAIR, blocks[index]); }

/* `live`: of setup, and not given back. */
static void check_live(uint32_t live) {
    taken = 0;
    for (uint32_t i = 0; i < MODEL_THREADS; i++) taken += taken_by[i];
    model_assert(library_check() == live + taken, "every block is free, in a bin, or the program's");
}
static void check_taken(void) { check_live(0); }
static void check_taken_and_one(void) { check_live(1); }

static void take_pair(void) { take(PAIR); }
static void put_first(void) { put_pair(0); }
static void put_second(void) { put_pair(1); }

/* ---- FULL -------------------------------------------------------------------------------------------------------- */

/* Heap 0 holds a slab of which the program has all blocks: a refill finds it empty and declares it full. */
static void setup_full(void) {
    start(2, 2);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(library_heaps[0], PAIR);
}

static void put_both_and_take_other(void) {
    put_pair(0);
    put_pair(1);
    take(TRIPLE);
}

static void put_first_and_take_other(void) {
    put_pair(0);
    take(TRIPLE);
}

MODEL_HARNESS(pool_full, setup_full, check_taken_and_one, take_pair, put_first);
MODEL_HARNESS(pool_full_retired, setup_full, check_taken, take_pair, put_both_and_take_other);
MODEL_HARNESS(pool_full_late, setup_full, check_taken, take_pair, put_first_and_take_other, put_second);

/* Without heaps: all of them declare slabs full in the name of heap 0. */
static void setup_full_shared(void) {
    start(2, 0);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(NULL, PAIR);
}

MODEL_HARNESS(pool_full_shared, setup_full_shared, check_taken_and_one, take_pair, put_first);
MODEL_HARNESS(pool_full_shared_late, setup_full_shared, check_taken, take_pair, put_first_and_take_other, put_second);

/* ---- remote frees against refills ------------------------------------------------------------------------------ */

/* Heap 0 holds two slabs, each with one free block. */
static void setup_partial(void) {
    start(3, 2);
    void *spare[2];
    for (uint32_t i = 0; i < 4; i++) {
        void *block = library_take(library_heaps[0], PAIR);
        if (i % 2 == 0) blocks[i / 2] = block;
        else spare[i / 2] = block;
    }
    for (uint32_t i = 0; i < 2; i++) library_put(library_heaps[0], PAIR, spare[i]);
}

static void take_pairs(void) {
    take(PAIR);
    take(PAIR);
}

static void flush(void) { hak_heap_flush(own_heap()); }

MODEL_HARNESS(pool_drain, setup_partial, check_taken_and_one, take_pairs, put_first);
MODEL_HARNESS(pool_flush, setup_partial, check_taken, flush, put_first, put_second);

/* Heaps are many: a refill of heap 0 gives up its slab of another class, of which a block is free and the program has the other. */
static void setup_many(void) {
    start(3, 3);
    blocks[0] = library_take(library_heaps[0], PAIR);
    hak_atomic_store(&hak_few_heaps, 0, relaxed);
    library_heaps[0]->recent_classes[0] = PAIR;
}

static void take_triple(void) { take(TRIPLE); }

/* A full slab goes into the pool by its own heap's free, comes to its end, and its units are another slab before its heap looks
 * at it once more. */
static void setup_full_many(void) {
    setup_full();
    hak_atomic_store(&hak_few_heaps, 0, relaxed);
}

static void declare_put_recheck(void) {
    take(PAIR);
    put_pair(0);
    take(TRIPLE);
    hak_heap_recheck_full(own_heap());
}

MODEL_HARNESS(pool_full_many, setup_full_many, check_taken, declare_put_recheck, put_second);
MODEL_HARNESS(pool_many, setup_many, check_taken, take_triple, put_first, take_pair);

/* ---- the partial set ------------------------------------------------------------------------------------------- */

/* Two full slabs that nobody holds, of which the program has all blocks. */
static void setup_pooled(void) {
    start(2, 4);
    for (uint32_t i = 0; i < 4; i++) blocks[i] = library_take(library_heaps[3], PAIR);
    model_assert(library_take(library_heaps[3], PAIR) == NULL, "there are no more");
}

static void put_first_take(void) {
    put_pair(0);
    take(PAIR);
}
static void put_third_take(void) {
    put_pair(2);
    take(PAIR);
}
static void put_third(void) { put_pair(2); }

static void check_taken_and_two(void) { check_live(2); }

MODEL_HARNESS(pool_set, setup_pooled, check_taken_and_two, put_first_take, put_third_take);
MODEL_HARNESS(pool_set_three, setup_pooled, check_taken_and_two, put_first, put_third, take_pair);

/* The blocks of one slab come back from two threads while a third takes: empty slabs leave the set from its middle. */
MODEL_HARNESS(pool_set_retire, setup_pooled, check_taken_and_two, put_first, put_second, take_pair);

/* ---- thread exit and adoption --------------------------------------------------------------------------------- */

/* Heap 0 has a block in a bin and holds a slab with a free block; the program has a block of each slab there is. */
static void setup_exit(void) {
    start(2, 1);
    for (uint32_t i = 0; i < 3; i++) blocks[i] = library_take(library_heaps[0], PAIR);
    library_put(library_heaps[0], PAIR, blocks[1]);
    library_cache(library_heaps[0], PAIR, library_take(library_heaps[0], PAIR));
}

static void leave(void) { hak_heap_release(library_heaps[0]); }

static void adopt_and_take(void) {
    struct hak_heap *heap = hak_heap_acquire();
    taken_by[model_thread()] += library_take(heap, PAIR) != NULL;
}

MODEL_HARNESS(pool_exit, setup_exit, check_taken_and_two, leave, adopt_and_take);
MODEL_HARNESS(pool_exit_late, setup_exit, check_taken_and_one, leave, adopt_and_take, put_third);

/* Heaps are made and left while others look for one. */
static void setup_heaps(void) {
    start(1, 1);
    hak_heap_release(library_heaps[0]);
    library_heaps[0] = NULL;
}

static void come_and_go(void) {
    struct hak_heap *heap = hak_heap_acquire();
    heap->exit_rounds++;
    hak_heap_release(heap);
}

static void come(void) {
    struct hak_heap *heap = hak_heap_acquire();
    heap->exit_rounds++;
    model_assert(hak_heap_is_known(heap), "a heap that is had is known");
}

static void check_heaps(void) {
    uint32_t in_use = 0, heaps = 0;
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next, heaps++) in_use += heap->in_use;
    model_assert(in_use == 2 && heaps <= 3, "two heaps are in use");
}

MODEL_HARNESS_BOUNDED(heap_list, 1, 2, setup_heaps, check_heaps, come_and_go, come, come);

/* ---- kept empty slabs ------------------------------------------------------------------------------------------ */

/* Heap 0 holds two slabs, each with one block out. The last of a class stays, the other is kept. */
static void setup_kept(void) { setup_partial(); }

static void put_both_own(void) {
    put_pair(0);
    put_pair(1);
    take(TRIPLE);
}

static void purge_and_take(void) {
    hak_purge_all(NULL);
    take(TRIPLE);
}

MODEL_HARNESS_BOUNDED(pool_kept, 1, 2, setup_kept, check_taken, put_both_own, purge_and_take);
