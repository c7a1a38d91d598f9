/* pool/shrink.h: without a background thread, what a thread frees goes back in its own calls; what it uses again stays. */
#include "heap_fixture.h"

#include "front/front.h"
#include "front/background.h"
#include "front/thread.h"
#include "front/tight.h"
#include "pool/bin.h"
#include "pool/purge.h"
#include "pool/shrink.h"
#include "region/allowance.h"
#include "region/decay.h"

enum { BLOCKS = 120000, BYTES = 100, PAGES = BLOCKS / 40 }; /* 12 MB; a page has forty blocks, or more */

static void *blocks[BLOCKS];

static void fill(void) {
    for (int i = 0; i < BLOCKS; i++) assert_non_null(blocks[i] = hak_malloc(BYTES));
}

static void shuffle(void) {
    uint64_t random = 88172645463325252u;
    for (int i = BLOCKS; i > 1; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int j = (int)((random >> 33) % (uint64_t)i);
        void *other = blocks[j];
        blocks[j] = blocks[i - 1];
        blocks[i - 1] = other;
    }
}

static size_t purged_bytes(size_t from) {
    size_t bytes = 0;
    for (size_t i = from; i < fake_os.call_count[FAKE_ANY]; i++)
        if (fake_os.calls[i].kind == FAKE_PURGE) bytes += fake_os.calls[i].bytes;
    return bytes;
}

/* Frees all but one in `kept`; returns what went back. No call gives back more than a turn, and what is left of a SuperSlab. */
static size_t empty(int kept) {
    size_t all = 0;
    for (int i = 0; i < BLOCKS; i++) {
        if (kept != 0 && i % kept == 0) continue;
        fake_os_forget();
        hak_free(blocks[i]);
        size_t bytes = purged_bytes(0);
        assert_in_range(bytes, 0, 3 * HAK_TURN_BYTES);
        all += bytes;
    }
    return all;
}

static void in_its_own_calls(void **state) {
    (void)state;
    fill();
    shuffle();
    assert_in_range(empty(0), (size_t)PAGES * 4096 * 9 / 10, SIZE_MAX);
    assert_in_range(hak_atomic_load(&hak_dirty_units, relaxed), 0, 8);
}

/* All that is left are blocks that each keep a page. */
static void round_what_stays(void **state) {
    (void)state;
    fill();
    shuffle();
    assert_in_range(empty(400), (size_t)PAGES * 4096 * 8 / 10, SIZE_MAX);
}

/* A page has a block in use: rounds that bring nothing become few. */
static void in_vain(void **state) {
    (void)state;
    fill();
    assert_in_range(empty(2), 0, (size_t)PAGES * 4096 / 10);
    assert_int_equal(hak_atomic_load(&hak_vain_rounds, relaxed), 2);
}

/* First what empties no page, in vain; then whole pages. */
static void after_vain_rounds(void **state) {
    (void)state;
    fill();
    size_t all = 0;
    for (int i = 0; i < BLOCKS; i += 4) hak_free(blocks[i]);
    for (int i = 0; i < BLOCKS; i++) { /* half of each unit */
        if (i % 4 == 0 || (uintptr_t)blocks[i] % HAK_UNIT_BYTES >= HAK_UNIT_BYTES / 2) continue;
        fake_os_forget();
        hak_free(blocks[i]);
        all += purged_bytes(0);
    }
    assert_in_range(all, (size_t)PAGES * 4096 / 4, SIZE_MAX);
}

/* Rent or buy: it pays once or twice for page faults. */
static void used_again(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        fill();
        empty(0);
    }
    for (int i = 0; i < 5; i++) {
        fill();
        assert_in_range(empty(0), 0, HAK_MIB);
    }
    assert_in_range(hak_allowance_bytes(), (size_t)PAGES * 4096 / 2, SIZE_MAX);
}

/* The same where slabs go back with holes that went back before. */
static void used_again_in_any_order(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        fill();
        shuffle();
        empty(0);
    }
    for (int i = 0; i < 5; i++) {
        fill();
        shuffle();
        assert_in_range(empty(0), 0, 2 * HAK_MIB);
    }
}

/* The same among blocks that stay, which pin more memory than the program uses again. */
static void used_again_among_live_blocks(void **state) {
    static void *again[BLOCKS / 8];
    (void)state;
    fill();
    empty(40);
    for (int i = 0; i < 24; i++) {
        size_t bytes = 0;
        for (int j = 0; j < BLOCKS / 8; j++) assert_non_null(again[j] = hak_malloc(BYTES));
        for (int j = 0; j < BLOCKS / 8; j++) {
            fake_os_forget();
            hak_free(again[j]);
            bytes += purged_bytes(0);
        }
        if (i >= 20) assert_int_equal(bytes, 0);
    }
}

/* What live blocks pinned once, others have filled since: it isn't pinned any more when these are free. */
static void filled_again(void **state) {
    static void *again[BLOCKS];
    (void)state;
    fill();
    shuffle();
    empty(40);
    for (int i = 0; i < BLOCKS; i++) assert_non_null(again[i] = hak_malloc(BYTES));
    for (int i = 0; i < BLOCKS; i += 40) hak_free(blocks[i]);
    size_t all = 0;
    for (int i = 0; i < BLOCKS; i++) {
        if (i < BLOCKS / 8 || (uintptr_t)again[i] % HAK_UNIT_BYTES < BYTES) continue; /* more than was left before */
        fake_os_forget();
        hak_free(again[i]);
        all += purged_bytes(0);
    }
    assert_in_range(all, (size_t)PAGES * 4096 / 2, SIZE_MAX);
}

/* A round ends when as much has gone back as was wanted. */
static void wanted(void **state) {
    enum { WANTED_BYTES = 2 * HAK_MIB };
    (void)state;
    hak_background_pay(true);
    fill();
    shuffle();
    assert_int_equal(empty(400), 0);
    hak_heap_flush_bins(hak_thread_heap);
    hak_purge_begin_holes(WANTED_BYTES);
    size_t bytes = 0;
    while (!hak_purge_turn(&bytes)) assert_in_range(bytes, 0, WANTED_BYTES - 1);
    assert_in_range(bytes, WANTED_BYTES, WANTED_BYTES + 3 * HAK_TURN_BYTES);
}

/* Each class keeps a slab, with or without pages: it would get another one, and take room where large objects fit. */
static void slab_of_each_class(void **state) {
    enum { CLASSES = 32, STEP = 96 };
    void *first[CLASSES];
    (void)state;
    fill();
    shuffle();
    for (int i = 0; i < CLASSES; i++) assert_non_null(first[i] = hak_malloc((size_t)(i + 1) * STEP));
    for (int i = 0; i < CLASSES; i++) hak_free(first[i]);
    assert_in_range(empty(0), (size_t)PAGES * 4096 * 9 / 10, SIZE_MAX);
    hak_heap_flush_bins(hak_thread_heap);
    uint32_t acquired = hak_thread_heap->acquired_count;
    for (int i = 0; i < CLASSES; i++) assert_non_null(hak_malloc((size_t)(i + 1) * STEP));
    assert_int_equal(hak_thread_heap->acquired_count, acquired);
}

/* The thread may end, or not be there in a child: what was handed out meanwhile counts. */
static void after_the_thread(void **state) {
    (void)state;
    hak_background_pay(true);
    fill();
    hak_background_pay(false);
    size_t all = 0;
    for (int i = 0; i < BLOCKS; i++) { /* a quarter of each unit stays: a mark of the start is never reached */
        if ((uintptr_t)blocks[i] / (HAK_UNIT_BYTES / 4) % 4 == 0) continue;
        fake_os_forget();
        hak_free(blocks[i]);
        all += purged_bytes(0);
    }
    assert_in_range(all, (size_t)PAGES * 4096 / 4, SIZE_MAX); /* what is freed last waits for a sixteenth */
}

/* What a thread had not told when it ended counts: rounds go by the sum. Here threads allocate what another frees. */
static void ended_threads(void **state) {
    enum { THREADS = 40, EACH = 500 };
    struct hak_heap *own = hak_thread_attach();
    (void)state;
    for (int i = 0; i < THREADS * EACH; i += EACH) {
        hak_thread_heap = hak_heap_acquire();
        for (int j = i; j < i + EACH; j++) assert_non_null(blocks[j] = hak_malloc(BYTES));
        if (i % (2 * EACH) == 0) hak_heap_leave(hak_thread_heap); /* with its bins, or without */
        else hak_heap_release(hak_thread_heap);
        assert_int_equal(hak_thread_heap->out_bytes, 0);
    }
    hak_thread_heap = own;
    for (int i = 0; i < THREADS * EACH; i++) hak_free(blocks[i]);
    hak_heap_take_kept_apart();
    hak_heap_flush_bins(own);
    hak_shrink_tell(own);
    assert_int_equal(hak_atomic_load(&hak_out_bytes, relaxed), 0);
}

/* Where the sum is below what is so, as it may be while threads live, the next round isn't due sooner. */
static void less_than_none(void **state) {
    (void)state;
    fill();
    empty(2);
    assert_int_equal(hak_atomic_load(&hak_vain_rounds, relaxed), 2);
    hak_shrink_add(NULL, -(int64_t)BLOCKS * 2 * BYTES);
    int rounds = 0;
    for (int i = 0; i < 50; i++) {
        hak_shrink_add(NULL, 2 << 12); /* two steps: four, when rounds find little */
        hak_shrink_add(hak_thread_heap, -(2 << 12));
        rounds += hak_thread_heap->is_shrink_due;
        for (size_t bytes = 0; hak_thread_heap->is_shrink_due || hak_purge_is_round(); hak_purge_turn(&bytes))
            hak_shrink_go_on(hak_thread_heap);
    }
    assert_in_range(rounds, 1, 4);
}

/* A thread that only frees has bins of its usual size again when another one allocates. */
static void consumer(void **state) {
    (void)state;
    struct hak_heap *own = hak_thread_attach(), *producer;
    fill();
    shuffle();
    empty(400);
    hak_free(blocks[0]);
    assert_int_not_equal(own->small_bins_bytes, 0);
    producer = hak_heap_acquire();
    hak_thread_heap = producer;
    fill();
    hak_thread_heap = own;
    for (int i = 0; i < BLOCKS / 40; i++) hak_free(blocks[i]); /* too few for a round */
    assert_int_equal(own->small_bins_bytes, 0);
}

/* Or when it has put back much without a round, because another one allocates as much. */
static void steady_consumer(void **state) {
    enum { FLUSHED = 64 * BYTES, MUCH = 1 << 20 };
    (void)state;
    struct hak_heap *own = hak_thread_attach();
    fill();
    shuffle();
    empty(400);
    hak_free(blocks[0]);
    assert_int_not_equal(own->small_bins_bytes, 0);
    struct hak_heap *producer = hak_heap_acquire();
    hak_shrink_count(own, -MUCH / 8); /* what is handed out stays below what it was at the round */
    assert_int_not_equal(own->small_bins_bytes, 0);
    for (int bytes = 0; bytes < 2 * MUCH; bytes += FLUSHED) {
        hak_shrink_count(own, -FLUSHED);
        hak_shrink_count(producer, FLUSHED);
        if (bytes < MUCH / 2) assert_int_not_equal(own->small_bins_bytes, 0);
    }
    assert_int_equal(own->small_bins_bytes, 0);
}

/* The next thread that has the heap has freed nothing. */
static void next_thread(void **state) {
    (void)state;
    struct hak_heap *own = hak_thread_attach();
    fill();
    shuffle();
    empty(400);
    assert_int_not_equal(own->small_bins_bytes, 0);
    own->next_to_shrink = 1; /* in the middle of the next round */
    hak_heap_leave(own);
    assert_ptr_equal(hak_heap_acquire(), own);
    assert_int_equal(own->small_bins_bytes, 0);
    assert_int_equal(own->next_to_shrink, 0);
}

/* A thread that goes on with little has bins of its usual size again: not a miss for each block or two. */
static void little(void **state) {
    enum { OBJECTS = 20, REQUESTS = 100 };
    (void)state;
    struct hak_heap *own = hak_thread_attach();
    uint32_t size_class = hak_size_class_of(BYTES), misses = 0;
    fill();
    shuffle();
    empty(0);
    assert_int_not_equal(own->small_bins_bytes, 0);
    for (int i = 0; i < 2 * REQUESTS; i++) {
        if (i == REQUESTS) misses = hak_atomic_load(&own->class_misses[size_class], relaxed);
        for (int j = 0; j < OBJECTS; j++) assert_non_null(blocks[j] = hak_malloc(BYTES));
        for (int j = 0; j < OBJECTS; j++) hak_free(blocks[j]);
    }
    assert_in_range(hak_atomic_load(&own->class_misses[size_class], relaxed) - misses, 0, REQUESTS);
}

/* Where mallopt has said that nothing goes back: slabs with holes of before, neither. */
static void kept_with_holes(void **state) {
    (void)state;
    fill();
    empty(64);
    assert_in_range(hak_atomic_load(&hak_slab_holes, relaxed), PAGES / 4, SIZE_MAX);
    assert_true(hak_knob_set(HAK_KNOB_dirty_limit_bytes, hak_knob_table[HAK_KNOB_dirty_limit_bytes].highest));
    fake_os_forget();
    for (int i = 0; i < BLOCKS; i += 64) hak_free(blocks[i]);
    hak_heap_flush_bins(hak_thread_heap);
    assert_int_equal(purged_bytes(0), 0);
}

static void not_beside_the_thread(void **state) {
    (void)state;
    hak_background_pay(true);
    fill();
    shuffle();
    assert_int_equal(empty(0), 0);
}

static void not_a_small_heap(void **state) {
    (void)state;
    for (int i = 0; i < 5000; i++) assert_non_null(blocks[i] = hak_malloc(BYTES)); /* a quarter of a SuperSlab */
    fake_os_forget();
    for (int i = 0; i < 5000; i++) hak_free(blocks[i]);
    assert_false(hak_purge_is_round());
    assert_int_equal(hak_thread_heap->small_bins_bytes, 0);
}

UNIT_MAIN(cmocka_unit_test(in_its_own_calls), cmocka_unit_test(round_what_stays), cmocka_unit_test(in_vain),
          cmocka_unit_test(after_vain_rounds), cmocka_unit_test(used_again), cmocka_unit_test(used_again_in_any_order),
          cmocka_unit_test(used_again_among_live_blocks), cmocka_unit_test(filled_again), cmocka_unit_test(wanted),
          cmocka_unit_test(slab_of_each_class), cmocka_unit_test(after_the_thread), cmocka_unit_test(ended_threads),
          cmocka_unit_test(less_than_none), cmocka_unit_test(consumer), cmocka_unit_test(steady_consumer),
          cmocka_unit_test(next_thread), cmocka_unit_test(little), cmocka_unit_test(kept_with_holes),
          cmocka_unit_test(not_beside_the_thread), cmocka_unit_test(not_a_small_heap))
