/* pool/exchange.h: a heap that grows gives back what has lain free for longest, as much as it has grown by, and nothing
 * that is used. */
#include "heap_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "front/background.h"
#include "front/front.h"
#include "front/process.h"
#include "pool/exchange.h"

enum { BLOCKS = 32768, BYTES = 1024, PAGE = 4096 };

static struct live_block blocks[BLOCKS];
static void *more[BLOCKS];

static size_t purged_bytes(void) {
    size_t bytes = 0;
    for (size_t i = 0; i < fake_os.call_count[FAKE_ANY]; i++)
        if (fake_os.calls[i].kind == FAKE_PURGE && fake_os.calls[i].done) bytes += fake_os.calls[i].bytes;
    return bytes;
}

/* 32 MiB, of which each page but every eighth is free, as nothing of the size is wanted any more. */
static void start_with_holes(void) {
    assert_true(hak_process_initialize());
    hak_background_pay(true); /* what is freed stays: nothing else gives it back */
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = (struct live_block){hak_malloc(BYTES), BYTES, (unsigned char)i};
        assert_non_null(blocks[i].bytes);
        block_fill(&blocks[i]);
    }
    for (int i = 0; i < BLOCKS; i++)
        if ((uintptr_t)blocks[i].bytes / PAGE % 8 != 0) hak_free(blocks[i].bytes), blocks[i].bytes = NULL;
    fake_os_forget();
}

static void check_live(void) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].bytes != NULL) block_check(&blocks[i]);
}

/* Blocks of another size: they have no place in what is free. */
static void grow(int count) {
    for (int i = 0; i < count; i++) {
        assert_non_null(more[i] = hak_malloc(BYTES * 3 / 2));
        memset(more[i], 1, BYTES * 3 / 2);
    }
}

static void as_much_as_it_grows(void **state) {
    (void)state;
    start_with_holes();
    grow(16384); /* 24 MiB */
    assert_in_range(purged_bytes(), 16 * HAK_MIB, 24 * HAK_MIB);
    check_live();
}

/* In each call a mebibyte at most, and what is left of the step: whoever allocates doesn't wait. Large growth at once
 * isn't answered by more. */
static void a_little_at_a_time(void **state) {
    (void)state;
    start_with_holes();
    for (int i = 0; i < 64; i++) {
        fake_os_forget();
        assert_non_null(hak_malloc(i == 40 ? 512 * HAK_MIB : 300000));
        assert_true(purged_bytes() <= HAK_MIB + 4 * HAK_UNIT_BYTES);
        assert_true(fake_os.call_count[FAKE_PURGE] <= 256 + 64);
    }
}

/* What is taken from between two visits stays. */
static void what_is_used_stays(void **state) {
    (void)state;
    start_with_holes();
    size_t taken = 0;
    for (int i = 0; i < BLOCKS / 8 * 3; i++) { /* from one slab after another */
        if (blocks[i].bytes != NULL) continue;
        blocks[i] = (struct live_block){hak_malloc(BYTES), BYTES, (unsigned char)i};
        block_fill(&blocks[i]);
        taken++;
        if (i % 16 == 0) assert_non_null(hak_malloc(20000));
    }
    assert_in_range(taken, BLOCKS / 8, BLOCKS);
    check_live();
    grow(16384);
    check_live();
}

/* A program that goes round gives back nothing: neither for a mapping in place of another one, nor for small blocks. */
static void no_growth(void **state) {
    (void)state;
    start_with_holes();
    for (int i = 0; i < 20; i++) {
        void *block = hak_malloc(50 * HAK_MIB);
        assert_non_null(block);
        hak_free(block);
    }
    fake_os_forget();
    for (int round = 0; round < 20; round++) {
        void *block = hak_malloc(50 * HAK_MIB);
        assert_non_null(block);
        for (int i = 0; i < 8192; i++) assert_non_null(more[i] = hak_malloc(BYTES));
        for (int i = 0; i < 8192; i++) hak_free(more[i]);
        hak_free(block);
    }
    size_t bytes = 0;
    for (size_t i = 0; i < fake_os.call_count[FAKE_ANY]; i++)
        if (fake_os.calls[i].kind == FAKE_PURGE && fake_os.calls[i].bytes < HAK_MIB) bytes += fake_os.calls[i].bytes;
    assert_int_equal(bytes, 0);
    check_live();
}

/* Memory that had gone back is no growth when it is used again; a unit of each look is told too late here, for which a step goes back. */
static void used_again(void **state) {
    (void)state;
    start_with_holes();
    for (int i = 0; i < 16384; i++) {
        assert_non_null(hak_malloc(BYTES * 3 / 2));
        hak_atomic_store(&hak_pages_reused, hak_atomic_load(&hak_pages_grown, relaxed), relaxed);
    }
    assert_in_range(purged_bytes(), 0, 24 * 4 * HAK_UNIT_BYTES);
    check_live();
}

static void small_heap(void **state) {
    (void)state;
    assert_true(hak_process_initialize());
    hak_background_pay(true);
    for (int i = 0; i < 2048; i++) assert_non_null(more[i] = hak_malloc(BYTES));
    for (int i = 0; i < 2048; i++)
        if (i % 16 != 0) hak_free(more[i]);
    fake_os_forget();
    for (int i = 0; i < 1024; i++) assert_non_null(hak_malloc(BYTES * 3 / 2));
    assert_int_equal(purged_bytes(), 0);
}

static void not_where_all_is_kept(void **state) {
    (void)state;
    start_with_holes();
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, hak_knob_table[HAK_KNOB_dirty_limit_bytes].highest, relaxed);
    grow(16384);
    assert_int_equal(purged_bytes(), 0);
}

static void not_while_memory_is_tight(void **state) {
    (void)state;
    start_with_holes();
    hak_atomic_store(&hak_memory_is_tight, true, relaxed);
    hak_atomic_store(&hak_exchange_at_pages, 0, relaxed);
    fake_os_forget();
    hak_exchange();
    assert_int_equal(purged_bytes(), 0);
    assert_true(hak_atomic_load(&hak_exchange_at_pages, relaxed) != 0); /* and looks again later */
}

/* The kernel refuses: nothing is lost, and it is asked no more than else. */
static void refused(void **state) {
    (void)state;
    start_with_holes();
    fake_os_refuse(FAKE_PURGE, 1, SIZE_MAX);
    grow(8192);
    fake_os_refuse_nothing();
    check_live();
    grow(16384);
    assert_true(purged_bytes() != 0);
    check_live();
}

/* A child of a thread that was at it does its own; and nobody else is at it meanwhile. */
static int meanwhile_count;

static void fork_meanwhile(void) {
    if (meanwhile_count++ != 0) return;
    pid_t child = fork();
    if (child == 0) {
        hak_atomic_store(&hak_exchange_at_pages, 0, relaxed);
        fake_os_forget();
        grow(4096);
        UNIT_CHECK(purged_bytes() == 0);
        hak_exchange_after_fork();
        grow(16384);
        UNIT_CHECK(purged_bytes() != 0);
        check_live();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void forked_meanwhile(void **state) {
    (void)state;
    start_with_holes();
    fake_os.at_purge = fork_meanwhile;
    grow(16384);
    assert_true(meanwhile_count > 1);
}

UNIT_MAIN(cmocka_unit_test(as_much_as_it_grows), cmocka_unit_test(a_little_at_a_time),
          cmocka_unit_test(what_is_used_stays), cmocka_unit_test(no_growth), cmocka_unit_test(used_again),
          cmocka_unit_test(small_heap), cmocka_unit_test(not_where_all_is_kept),
          cmocka_unit_test(not_while_memory_is_tight), cmocka_unit_test(refused), cmocka_unit_test(forked_meanwhile))
