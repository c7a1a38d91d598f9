/* slab/size_class.h: exhaustively, for there are only 32768 sizes. */
#include "unit.h"

#include "slab/size_class.h"

static void every_size_has_a_class(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    for (size_t size = 1; size <= HAK_SMALL_MAX; size++) {
        uint32_t size_class = hak_size_class_of(size);
        assert_in_range(size_class, 1, HAK_SMALL_CLASS_COUNT);
        size_t bytes = hak_size_classes[size_class].block_bytes, waste = bytes - size;
        assert_true(bytes >= size);
        assert_true(size_class == 1 ||
                    hak_size_classes[size_class - 1].block_bytes < size); /* the smallest that does */
        assert_true(waste < 16 || waste * 8 <= bytes);
    }
    assert_int_equal(hak_size_class_of(0), 1);
}

static void every_alignment_has_a_class(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    for (size_t alignment = 1; alignment <= HAK_SMALL_MAX; alignment *= 2) {
        for (size_t size = 0; size <= HAK_SMALL_MAX; size++) {
            uint32_t size_class = hak_size_class_of_aligned(alignment, size);
            assert_in_range(size_class, hak_size_class_of(size), HAK_SMALL_CLASS_COUNT);
            assert_int_equal(hak_size_classes[size_class].block_bytes % alignment, 0);
            assert_int_equal(hak_size_classes[hak_widest_of_group(size_class)].block_bytes % alignment, 0);
        }
    }
    assert_int_equal(hak_size_class_of_aligned(16, HAK_SMALL_MAX + 1), HAK_CLASS_NONE);
    assert_int_equal(hak_size_class_of_aligned(2 * HAK_SMALL_MAX, 1), HAK_CLASS_NONE);
    assert_int_equal(hak_size_class_of_aligned(64, 65), hak_size_class_of(128));
}

static void expect_class(size_t size, size_t block_bytes) {
    uint32_t size_class = hak_size_class_of(size);
    assert_int_equal(hak_size_classes[size_class].block_bytes, block_bytes);
    assert_int_equal(hak_size_classes[size_class].unit_count, 1);
    assert_int_equal(hak_size_classes[size_class].block_count, HAK_UNIT_BYTES / block_bytes);
}

static void the_64_byte_class(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    expect_class(64, 64);
    expect_class(49, 64);
    expect_class(65, 80);
    assert_int_equal(hak_size_class_of(64), 4);
}

static void the_1024_byte_class(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    expect_class(1024, 1024);
    expect_class(1023, 1024);
    expect_class(961, 1024);
    expect_class(960, 960);
    expect_class(1025, 1152);
}

static void largest_classes(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    const struct hak_size_class *last = &hak_size_classes[HAK_SMALL_CLASS_COUNT];
    assert_int_equal(last->block_bytes, HAK_SMALL_MAX);
    assert_int_equal(last->unit_count, 4);
    assert_int_equal(last->block_count, 8);
    assert_int_equal(hak_size_classes[HAK_CLASS_NONE].block_bytes, 0);
    assert_int_equal(hak_size_classes[HAK_CLASS_RUN_HEAD].block_bytes, 0);
    assert_int_equal(hak_size_classes[HAK_CLASS_RUN_BODY].block_bytes, 0);
}

static void slabs_of_every_class(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_size_class *facts = &hak_size_classes[i];
        assert_true(facts->block_bytes > hak_size_classes[i - 1].block_bytes);
        assert_int_equal(facts->block_bytes % HAK_ALIGNMENT, 0);
        assert_true(hak_is_power_of_two(facts->unit_count));
        assert_true(facts->unit_count <= 4);
        assert_in_range(facts->block_count, 8, HAK_SLAB_MAX_BLOCKS);
        size_t slab_bytes = facts->unit_count * HAK_UNIT_BYTES;
        assert_true(facts->block_count * facts->block_bytes <= slab_bytes);
        assert_true(slab_bytes - facts->block_count * facts->block_bytes < facts->block_bytes);
    }
}

static void block_index_is_a_division(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_size_class *facts = &hak_size_classes[i];
        uint32_t wrong = 0;
        for (uint32_t offset = 0; offset < facts->unit_count * HAK_UNIT_BYTES; offset++)
            wrong += hak_block_index(offset, facts->reciprocal) != offset / facts->block_bytes;
        assert_int_equal(wrong, 0);
    }
}

static void blocks_begin_on_the_grid(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_size_class *facts = &hak_size_classes[i];
        uint32_t bytes = facts->block_bytes, grid = facts->unit_count == 1 ? bytes : bytes & -bytes, wrong = 0;
        for (uintptr_t offset = 0; offset < facts->unit_count * HAK_UNIT_BYTES; offset++)
            wrong += hak_is_on_grid((void *)offset, facts->grid_reciprocal) != (offset % HAK_UNIT_BYTES % grid == 0);
        for (uintptr_t at = 0; at < facts->unit_count * HAK_UNIT_BYTES; at += bytes)
            wrong += !hak_is_on_grid((void *)at, facts->grid_reciprocal);
        assert_int_equal(wrong, 0);
    }
}

/* Whatever a class of a group can serve, the widest can: sizes, and alignments, for which an aligned request picks the class. */
static void the_widest_serves_its_group(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        uint32_t widest = hak_widest_of_group(i), bytes = hak_size_classes[i].block_bytes;
        assert_in_range(widest, i, HAK_SMALL_CLASS_COUNT);
        assert_true(bytes <= 1024 ? widest == i : widest % HAK_GROUP_CLASSES == 0);
        assert_in_range(hak_size_classes[widest].block_bytes, bytes, bytes + bytes / 2);
        assert_int_equal(hak_size_classes[widest].block_bytes % (bytes & -bytes), 0);
    }
}

UNIT_MAIN(cmocka_unit_test(every_size_has_a_class), cmocka_unit_test(every_alignment_has_a_class),
          cmocka_unit_test(the_64_byte_class), cmocka_unit_test(the_1024_byte_class), cmocka_unit_test(largest_classes),
          cmocka_unit_test(slabs_of_every_class), cmocka_unit_test(block_index_is_a_division),
          cmocka_unit_test(blocks_begin_on_the_grid), cmocka_unit_test(the_widest_serves_its_group))
