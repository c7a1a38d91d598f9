/* region/run_quarantine.h: runs that were freed can't be touched, until it is their turn. */
#include "large_fixture.h"

#include "allowance.h"

#include <string.h>
#include <unistd.h>

#include "base/knobs.h"
#include "fake_os.h"
#include "region/run_quarantine.h"

enum { PAGE = 4096 };

/* All are runs. */
static void start(bool has_guards) {
    allow_free_memory();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 64 * HAK_MIB, relaxed);
    fake_os.has_guards = has_guards;
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
}

/* Of so many pages, from that one on: the kernel reads a byte of each. */
static size_t count_accessible(const char *start, size_t bytes) {
    static int ends[2];
    size_t count = 0;
    char byte;
    if (ends[1] == 0) assert_int_equal(pipe(ends), 0);
    for (size_t at = 0; at < bytes; at += PAGE) {
        if (write(ends[1], start + at, 1) != 1) continue;
        assert_int_equal(read(ends[0], &byte, 1), 1);
        count++;
    }
    return count;
}

static bool waits(const char *run, size_t usable) {
    uintptr_t found;
    size_t bytes;
    if (!hak_run_quarantine_find((uintptr_t)run, &found, &bytes)) return false;
    assert_int_equal(found, (uintptr_t)run);
    assert_int_equal(bytes, usable);
    assert_true(hak_run_quarantine_find((uintptr_t)run + usable - 1, &found, &bytes));
    assert_int_equal(found, (uintptr_t)run);
    assert_int_equal(hak_region_find((uintptr_t)run).kind, HAK_PLACE_FOREIGN);
    return true;
}

/* Comes out when as many others have been freed as there are places, and not before. */
static void expect_turns(size_t usable, int places) {
    size_t whole = hak_align_up(usable + HAK_CANARY_BYTES, HAK_UNIT_BYTES), pages = whole / PAGE;
    char *run = alloc(usable);
    memset(run, 1, usable);
    assert_true(free_block(run));
    for (int i = 0; i < places; i++) {
        assert_true(waits(run, usable));
        assert_int_equal(count_accessible(run, whole), 0);
        char *other = alloc(usable);
        assert_ptr_not_equal(other, run);
        assert_true(free_block(other));
    }
    assert_false(waits(run, usable));
    assert_int_equal(count_accessible(run, whole), pages);
    char *again = alloc(usable); /* the lowest that is free */
    assert_ptr_equal(again, run);
    for (size_t at = 0; at < usable; at++) assert_int_equal(again[at], 0);
    hak_run_quarantine_end();
}

static void turns_as(bool has_guards) {
    start(has_guards);
    expect_turns(HAK_UNIT_BYTES - 100, 64);
    expect_turns(HAK_MIB, 64);
    expect_turns(HAK_MIB + HAK_UNIT_BYTES, 8);
    expect_turns(8 * HAK_MIB, 8);
    expect_turns(9 * HAK_MIB, 2);
    expect_turns(32 * HAK_MIB, 2);
}
static void turns_with_guards(void **state) {
    (void)state;
    turns_as(true);
}
static void turns_without_guards(void **state) {
    (void)state;
    turns_as(false);
}

/* It can be used again at once. */
static void expect_no_wait(size_t usable) {
    char *run = alloc(usable);
    assert_true(free_block(run));
    assert_false(waits(run, usable));
    assert_int_equal(count_accessible(run, hak_align_up(usable, HAK_UNIT_BYTES)),
                     hak_align_up(usable, HAK_UNIT_BYTES) / PAGE);
    char *again = alloc(usable);
    assert_ptr_equal(again, run);
    assert_true(free_block(again));
}

static void longer_ones(void **state) {
    (void)state;
    start(true);
    expect_no_wait(33 * HAK_MIB);
}

static void not_closed(void **state) {
    (void)state;
    start(true);
    fake_os_refuse(FAKE_GUARD, 1, SIZE_MAX);
    expect_no_wait(100000);
    fake_os.has_guards = false;
    fake_os_refuse(FAKE_FORBID, 1, SIZE_MAX);
    expect_no_wait(100000);
    fake_os_refuse(FAKE_PURGE, 1, SIZE_MAX); /* locked memory */
    expect_no_wait(100000);
}

/* Nobody gets what may be closed still. */
static void not_opened(void **state) {
    (void)state;
    start(true);
    char *run = alloc(100000);
    assert_true(free_block(run));
    fake_os_refuse(FAKE_UNGUARD, 1, SIZE_MAX);
    hak_run_quarantine_end();
    fake_os_refuse_nothing();
    assert_false(waits(run, 100000));
    for (int i = 0; i < 40; i++) assert_int_equal(count_accessible(alloc(60000), 60000), (60000 + PAGE - 1) / PAGE);
    fake_os.has_guards = false;
    run = alloc(100000);
    assert_true(free_block(run));
    fake_os_refuse(FAKE_COMMIT, 1, SIZE_MAX);
    hak_run_quarantine_end();
    fake_os_refuse_nothing();
    for (int i = 0; i < 40; i++) assert_int_equal(count_accessible(alloc(60000), 60000), (60000 + PAGE - 1) / PAGE);
}

/* The kernel refuses, and what it has done by then it doesn't undo: nothing has gone back. */
static void closed_in_part(void **state) {
    (void)state;
    start(true);
    char *run = alloc(100000);
    memset(run, 7, 100000);
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    assert_true(free_block(run));
    fake_os_refuse_nothing();
    hak_run_quarantine_end();
    char *zeros = hak_large_alloc(100000, HAK_ALIGNMENT, true);
    assert_ptr_equal(zeros, run);
    for (size_t i = 0; i < 100000; i++) assert_int_equal(zeros[i], 0);
}

static void kept_by_the_program(void **state) {
    (void)state;
    start(true);
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, hak_knob_table[HAK_KNOB_dirty_limit_bytes].highest, relaxed);
    expect_no_wait(100000);
}

static void all_at_once(void **state) {
    (void)state;
    static char *runs[80];
    start(true);
    for (int i = 0; i < 80; i++) runs[i] = alloc(100000);
    for (int i = 0; i < 80; i++) assert_true(free_block(runs[i]));
    for (int i = 0; i < 80; i++) assert_int_equal(waits(runs[i], 100000), i >= 16);
    hak_run_quarantine_end();
    for (int i = 0; i < 80; i++) assert_false(waits(runs[i], 100000));
    for (int i = 0; i < 80; i++) assert_ptr_equal(alloc(100000), runs[i]);
}

UNIT_MAIN(cmocka_unit_test(turns_with_guards), cmocka_unit_test(turns_without_guards), cmocka_unit_test(longer_ones),
          cmocka_unit_test(not_closed), cmocka_unit_test(not_opened), cmocka_unit_test(closed_in_part),
          cmocka_unit_test(kept_by_the_program), cmocka_unit_test(all_at_once))
