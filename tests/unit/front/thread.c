/* front/thread.h: heaps come to threads and go on to the next; nothing is lost at a thread's end, however late its last
 * allocation. Threads run one after the other here: the fake OS serves one at a time. */
#include "heap_fixture.h"

#include <limits.h>
#include <pthread.h>

#include "front/front.h"
#include "front/thread.h"
#include "touched_heaps.h"

static void in_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    UNIT_CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    UNIT_CHECK(pthread_join(thread, NULL) == 0);
}

static struct hak_snapshot snapshot;

static void *use_heap(void *argument) {
    struct hak_heap **heap = argument;
    void *blocks[100];
    for (size_t i = 0; i < 100; i++) blocks[i] = hak_malloc(i * 50 + 1);
    for (size_t i = 0; i < 100; i++) hak_free(blocks[i]);
    *heap = hak_thread_attach();
    return NULL;
}

static void one_heap_after_another(void **state) {
    (void)state;
    struct hak_heap *first = NULL, *heap = NULL, *own = hak_thread_attach();
    assert_ptr_equal(hak_thread_attach(), own);
    in_thread(use_heap, &first);
    assert_non_null(first);
    assert_ptr_not_equal(first, own);
    size_t mapped = fake_os.mapped_bytes;
    for (int i = 0; i < 200; i++) {
        in_thread(use_heap, &heap);
        assert_ptr_equal(heap, first);
    }
    assert_int_equal(fake_os.mapped_bytes, mapped);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.heaps, 2);
    assert_int_equal(snapshot.total.live_blocks, 0);
    /* The main thread has allocated nothing: it is what the others left for the next. */
    assert_true(snapshot.total.cached_blocks > 0);
    hak_heap_take_kept_apart();
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.cached_blocks, 0);
}

static struct hak_heap *used;
static void live_and_end(void) { in_thread(use_heap, &used); }

/* A thread's life is as long beside thousands of others as beside one: it looks at its own heap, and at no other. */
static void beside_very_many(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    struct hak_heap *oldest = hak_heap_acquire();
    for (uint32_t i = 0; i < 8000; i++) assert_non_null(hak_heap_acquire());
    hak_heap_release(oldest);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(touched_by(live_and_end), 1);
        assert_ptr_equal(used, oldest);
    }
}

static struct live_block handed_over[500];

static void *make_blocks(void *unused) {
    for (size_t i = 0; i < 500; i++) {
        handed_over[i] = (struct live_block){hak_malloc(i * 9 + 1), i * 9 + 1, (unsigned char)i};
        block_fill(&handed_over[i]);
    }
    return unused;
}

static void blocks_outlive_their_thread(void **state) {
    (void)state;
    in_thread(make_blocks, NULL);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 500);
    for (int i = 0; i < 500; i++) {
        block_check(&handed_over[i]);
        if (i % 3) hak_free(handed_over[i].bytes);
        else hak_free(hak_realloc(handed_over[i].bytes, 5000));
    }
    hak_purge();
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
    assert_int_equal(snapshot.total.slabs, 0);
}

/* ThreadSanitizer takes its own thread state down in the last round, and has no use for atomic operations afterwards. */
#ifdef __SANITIZE_THREAD__
enum { LATE_ROUNDS = PTHREAD_DESTRUCTOR_ITERATIONS - 1 };
#else
enum { LATE_ROUNDS = PTHREAD_DESTRUCTOR_ITERATIONS };
#endif

/* A destructor that allocates and frees in every round, before hakmem's or after it. */
static pthread_key_t late_key;
static _Thread_local int late_rounds;

static void allocate_late(void *value) {
    void *block = hak_malloc(100);
    UNIT_CHECK(block != NULL);
    hak_free(value);
    memset(block, 1, 100);
    if (++late_rounds < LATE_ROUNDS) UNIT_CHECK(pthread_setspecific(late_key, block) == 0);
}

static void *end_late(void *unused) {
    UNIT_CHECK(pthread_setspecific(late_key, hak_malloc(100)) == 0);
    return unused;
}

static void late_destructors(bool before_ours) {
    pthread_key_t lowest; /* hakmem has left it free; destructors are called in the order of numbers */
    if (before_ours) assert_int_equal(pthread_key_create(&late_key, allocate_late), 0);
    hak_free(hak_malloc(1));
    if (!before_ours) {
        assert_int_equal(pthread_key_create(&lowest, NULL), 0);
        assert_int_equal(pthread_key_create(&late_key, allocate_late), 0);
    }
    size_t mapped = 0;
    for (uint64_t i = 1; i <= 50; i++) {
        in_thread(end_late, NULL);
        if (i == 1) mapped = fake_os.mapped_bytes;
        assert_int_equal(fake_os.mapped_bytes, mapped);
        check_equations(&snapshot);
        assert_int_equal(snapshot.total.live_blocks, i); /* what the last round allocated is nobody's */
        assert_int_equal(snapshot.total.heaps, 2);
    }
}

static void destructors_before_ours(void **state) {
    (void)state;
    late_destructors(true);
}
static void destructors_after_ours(void **state) {
    (void)state;
    late_destructors(false);
}

static void *expect_no_heap(void *unused) {
    void *block = hak_malloc(100);
    UNIT_CHECK(block != NULL && hak_thread_attach() == NULL);
    hak_free(block);
    return unused;
}

static void no_memory_for_a_heap(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    fake_os_refuse(FAKE_MAP, 1, SIZE_MAX);
    in_thread(expect_no_heap, NULL);
    fake_os_refuse_nothing();
    struct hak_heap *heap = NULL;
    in_thread(use_heap, &heap);
    assert_non_null(heap);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

UNIT_MAIN(cmocka_unit_test(one_heap_after_another), cmocka_unit_test(blocks_outlive_their_thread),
          cmocka_unit_test(destructors_before_ours), cmocka_unit_test(destructors_after_ours),
          cmocka_unit_test(no_memory_for_a_heap), cmocka_unit_test(beside_very_many))
