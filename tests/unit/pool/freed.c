/* pool/freed.h: the last large objects that each thread freed are known, and by their start only. */
#include "pool_fixture.h"

#include "pool/freed.h"

static void last_ones(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *other = hak_heap_acquire();
    char *objects = (char *)0x7000000;
    assert_int_equal(hak_freed_bytes(objects), 0);
    for (size_t i = 0; i <= HAK_FREED_KNOWN; i++) hak_freed_note(heap, objects + i * 4096, 1000 + i);
    hak_freed_note(other, objects + (HAK_FREED_KNOWN + 1) * 4096, 77);
    hak_freed_note(NULL, objects + (HAK_FREED_KNOWN + 2) * 4096, 77);
    assert_int_equal(hak_freed_bytes(objects), 0); /* the oldest one is forgotten */
    for (size_t i = 1; i <= HAK_FREED_KNOWN; i++) assert_int_equal(hak_freed_bytes(objects + i * 4096), 1000 + i);
    assert_int_equal(hak_freed_bytes(objects + 4096 + 16), 0);
    hak_freed_note(heap, objects + 5 * 4096, 5000); /* freed again, of another size */
    assert_int_equal(hak_freed_bytes(objects + 5 * 4096), 5000);
    assert_int_equal(hak_freed_bytes(objects + (HAK_FREED_KNOWN + 1) * 4096), 77);
    assert_int_equal(hak_freed_bytes(objects + (HAK_FREED_KNOWN + 2) * 4096), 0);
}

/* One after another had an object there, and each thread remembers its own. */
static void last_of_all_threads(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heaps[3];
    void *object = (void *)0x7000000;
    for (size_t i = 0; i < 3; i++) heaps[i] = hak_heap_acquire();
    for (size_t i = 0; i < 30; i++) {
        fake_os.clock_ms++;
        hak_freed_note(heaps[i * 7 % 3], object, 1000 + i);
        assert_int_equal(hak_freed_bytes(object), 1000 + i);
    }
}

static uint32_t clock_reads;
static void count_read(void) { clock_reads++; }

/* A program with one thread is not asked for the time of each free; what it has freed is older than what others free
 * later. */
static void one_heap_asks_no_clock(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *object = (void *)0x7000000;
    struct hak_heap *first = hak_heap_acquire();
    fake_os.clock_ms = 5;
    fake_os.at_clock = count_read;
    hak_freed_note(first, object, 1000);
    assert_int_equal(clock_reads, 0);
    struct hak_heap *second = hak_heap_acquire();
    hak_freed_note(second, object, 2000);
    assert_true(clock_reads > 0);
    assert_int_equal(hak_freed_bytes(object), 2000);
    fake_os.at_clock = NULL;
}

UNIT_MAIN(cmocka_unit_test(last_ones), cmocka_unit_test(last_of_all_threads), cmocka_unit_test(one_heap_asks_no_clock))
