/* region/directory.h: addresses here are numbers; nothing is mapped at them. */
#include "unit.h"

#include "fake_os.h"
#include "region/directory.h"

#define GIB_64 ((uintptr_t)1 << 36) /* what a leaf covers */
static const uintptr_t base = 5 * GIB_64;

static uintptr_t granule(intptr_t number) { return base + (uintptr_t)number * HAK_GRANULE_BYTES; }

static void empty(void **state) {
    (void)state;
    uintptr_t start;
    size_t bytes;
    const uintptr_t addresses[] = {0, 1, base, ((uintptr_t)1 << 48) - 1, (uintptr_t)1 << 48, UINTPTR_MAX};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        assert_int_equal(hak_directory_get(addresses[i]), HAK_ENTRY_NONE);
        assert_false(hak_directory_find_mapping(addresses[i], &start, &bytes));
        assert_false(hak_directory_replace(addresses[i], HAK_ENTRY_NONE, hak_entry_for_range(1)));
    }
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
}

static void entries(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 250; i++) assert_true(hak_directory_set(granule(i) + 17, hak_entry_for_range(i)));
    for (uint32_t i = 0; i < 250; i++) {
        assert_int_equal(hak_directory_get(granule(i)), hak_entry_for_range(i));
        assert_int_equal(hak_directory_get(granule(i + 1) - 1), hak_entry_for_range(i));
    }
    assert_int_equal(hak_directory_get(granule(250)), HAK_ENTRY_NONE);
    assert_int_equal(hak_directory_get(granule(-1)), HAK_ENTRY_NONE);
    assert_int_equal(fake_os.call_count[FAKE_MAP], 1); /* one leaf */
}

static void the_ends_of_48_bits(void **state) {
    (void)state;
    uintptr_t last = ((uintptr_t)1 << 48) - HAK_GRANULE_BYTES;
    assert_true(hak_directory_set(0, hak_entry_for_range(1)));
    assert_true(hak_directory_set(last, hak_entry_for_range(2)));
    assert_int_equal(hak_directory_get(1), hak_entry_for_range(1));
    assert_int_equal(hak_directory_get(last + 1), hak_entry_for_range(2));
    assert_false(hak_directory_set((uintptr_t)1 << 48, hak_entry_for_range(3)));
    assert_false(hak_directory_set(UINTPTR_MAX, hak_entry_for_range(3)));
}

static void no_memory_for_a_leaf(void **state) {
    (void)state;
    fake_os_refuse(FAKE_MAP, 1, 1);
    assert_false(hak_directory_set(base, hak_entry_for_range(1)));
    assert_int_equal(hak_directory_get(base), HAK_ENTRY_NONE);
    assert_true(hak_directory_set(base, hak_entry_for_range(1)));
    assert_int_equal(hak_directory_get(base), hak_entry_for_range(1));
}

static void replacing(void **state) {
    (void)state;
    uint64_t one = hak_entry_for_mapping(4096), two = hak_entry_for_mapping(8192);
    hak_directory_set(base, one);
    assert_false(hak_directory_replace(base, two, HAK_ENTRY_NONE));
    assert_int_equal(hak_directory_get(base), one);
    assert_true(hak_directory_replace(base, one, two));
    assert_false(hak_directory_replace(base, one, two));
    assert_int_equal(hak_directory_get(base), two);
}

static void expect_mapping(uintptr_t address, uintptr_t expected_start, size_t expected_bytes) {
    uintptr_t start = 0;
    size_t bytes = 0;
    bool found = hak_directory_find_mapping(address, &start, &bytes);
    assert_int_equal(found, expected_bytes != 0);
    if (!found) return;
    assert_int_equal(start, expected_start);
    assert_int_equal(bytes, expected_bytes);
}

static void mappings(void **state) {
    (void)state;
    size_t small = 4096, large = 3 * HAK_GRANULE_BYTES + 8192;
    hak_directory_set(granule(0), hak_entry_for_mapping(small));
    hak_directory_set(granule(1), hak_entry_for_mapping(large));
    hak_directory_set(granule(5), hak_entry_for_range(3));
    expect_mapping(granule(0), granule(0), small);
    expect_mapping(granule(0) + small - 1, granule(0), small);
    expect_mapping(granule(0) + small, 0, 0);
    for (int i = 1; i <= 4; i++) expect_mapping(granule(i), granule(1), large);
    expect_mapping(granule(1) + large - 1, granule(1), large);
    expect_mapping(granule(1) + large, 0, 0);
    expect_mapping(granule(5), 0, 0); /* a range */
    expect_mapping(granule(6), 0, 0); /* behind it */
    expect_mapping(granule(-1), 0, 0);
    assert_int_equal(hak_entry_mapping_bytes(hak_entry_for_mapping(large)), large);
}

/* A mapping may reach over leaves that have no entries, and that do not even exist. */
static void mapping_over_leaves(void **state) {
    (void)state;
    size_t bytes = 3 * GIB_64;
    hak_directory_set(granule(-1), hak_entry_for_mapping(bytes));
    expect_mapping(granule(-1) + bytes - 1, granule(-1), bytes);
    expect_mapping(base + 2 * GIB_64 + 12345, granule(-1), bytes);
    expect_mapping(granule(-1) + bytes, 0, 0);
    assert_int_equal(fake_os.call_count[FAKE_MAP], 1);
    hak_directory_set(base + GIB_64, hak_entry_for_range(1)); /* a leaf of its own */
    hak_directory_set(base + GIB_64, HAK_ENTRY_NONE);
    expect_mapping(base + 2 * GIB_64 + 12345, granule(-1), bytes);
}

struct visits {
    size_t count, bytes;
    uintptr_t last;
};

static void visit(uintptr_t start, size_t bytes, void *context) {
    struct visits *visits = context;
    assert_true(visits->count == 0 || start > visits->last);
    visits->count++;
    visits->bytes += bytes;
    visits->last = start;
}

static void visiting(void **state) {
    (void)state;
    struct visits visits = {0, 0, 0};
    hak_directory_for_each_mapping(visit, &visits);
    assert_int_equal(visits.count, 0);
    hak_directory_set(granule(0), hak_entry_for_mapping(4096));
    hak_directory_set(granule(1), hak_entry_for_range(1));
    hak_directory_set(granule(1 << 15), hak_entry_for_mapping(8192)); /* the next leaf */
    hak_directory_set(granule(-1), hak_entry_for_mapping(16384));     /* the one before */
    hak_directory_set(granule(7), hak_entry_for_mapping(32768));
    hak_directory_set(granule(7), HAK_ENTRY_NONE);
    hak_directory_for_each_mapping(visit, &visits);
    assert_int_equal(visits.count, 3);
    assert_int_equal(visits.bytes, 4096 + 8192 + 16384);
}

UNIT_MAIN(cmocka_unit_test(empty), cmocka_unit_test(entries), cmocka_unit_test(the_ends_of_48_bits),
          cmocka_unit_test(no_memory_for_a_leaf), cmocka_unit_test(replacing), cmocka_unit_test(mappings),
          cmocka_unit_test(mapping_over_leaves), cmocka_unit_test(visiting))
