/* region/density.h: what of a SuperSlab was handed out, as its slabs' records tell, and what has contents. */
#include "unit.h"

#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "fake_os.h"
#include "region/density.h"

static struct hak_range *range;

/* A SuperSlab that has just been made; the caller has all of its units. */
static struct hak_slab *start(void) {
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
    range = hak_region_range(0);
    return hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false);
}

static bool is_handed_out(void) { return hak_density_is_handed_out(range, 0, false); }
static bool is_surely_touched(void) { return hak_density_is_handed_out(range, 0, true); }

static void make_slab(struct hak_slab *units, uint32_t size_class) {
    hak_slab_initialize(units, hak_region_start_of(range, units), size_class,
                        range->bit_rows[hak_region_unit_of(range, units)], hak_slab_state(HAK_SLAB_HELD, 1));
    hak_region_mark(units, hak_size_classes[size_class].unit_count, size_class);
}

static void take(struct hak_slab *slab, uint32_t count) {
    static void *blocks[HAK_SLAB_MAX_BLOCKS];
    assert_int_equal(hak_slab_take(slab, blocks + count, count), count);
}

/* Slabs of the class all over the SuperSlab; of each, `of_eight` eighths of the blocks are taken. */
static struct hak_slab *fill(uint32_t size_class, uint32_t of_eight) {
    struct hak_slab *first = start();
    for (uint32_t i = 0; i < 32; i += hak_size_classes[size_class].unit_count) {
        make_slab(first + i, size_class);
        take(first + i, hak_size_classes[size_class].block_count * of_eight / 8);
    }
    return first;
}

static void run_at(struct hak_slab *units, uint32_t count) {
    hak_atomic_store(&units->run_pages, (uint32_t)(count * HAK_UNIT_BYTES / fake_os.page_bytes), relaxed);
    hak_region_mark(units, count, HAK_CLASS_RUN_BODY);
    hak_region_mark(units, 1, HAK_CLASS_RUN_HEAD);
}

static void nothing(void **state) {
    (void)state;
    start();
    assert_false(is_handed_out()); /* units that somebody keeps */
}

/* Of each class; what was claimed ahead was not handed out. */
static void slabs(void **state) {
    static const size_t sizes[] = {16, 96, 1000, 5000, 16384, 32768};
    (void)state;
    struct hak_slab *first = start();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t size_class = hak_size_class_of(sizes[i]), units = hak_size_classes[size_class].unit_count;
        for (uint32_t of_eight = 0; of_eight <= 8; of_eight++) {
            for (uint32_t at = 0; at < 32; at += units) {
                make_slab(first + at, size_class);
                take(first + at, hak_size_classes[size_class].block_count * of_eight / 8);
            }
            if (of_eight <= 5) assert_false(is_handed_out());
            if (of_eight == 8) assert_true(is_handed_out());
        }
    }
}

/* Where nothing may be taken in vain. */
static void surely(void **state) {
    (void)state;
    struct hak_slab *first = fill(hak_size_class_of(5000), 8);
    assert_true(is_handed_out());
    assert_false(is_surely_touched());
    for (uint32_t i = 0; i < 32; i++) make_slab(first + i, hak_size_class_of(1024));
    for (uint32_t i = 0; i < 32; i++) take(first + i, 64 * 7 / 8);
    assert_true(is_handed_out());
    assert_false(is_surely_touched());
    for (uint32_t i = 0; i < 32; i++) take(first + i, 64 / 8);
    assert_true(is_surely_touched());
}

/* What was freed since was handed out, too; also when the slab is nobody's. What was purged has no memory. */
static void freed_since(void **state) {
    (void)state;
    uint32_t size_class = hak_size_class_of(1024);
    struct hak_slab *first = fill(size_class, 8);
    for (uint32_t i = 0; i < 32; i++)
        hak_slab_set_bits(first + i, 0, hak_low_bits(hak_size_classes[size_class].block_count));
    assert_true(is_handed_out());
    for (uint32_t i = 0; i < 32; i++) hak_slab_unclaim(first + i);
    assert_true(is_handed_out());
    for (uint32_t i = 0; i < 9; i++) hak_atomic_store(&first[i].purged_pages, 0xffff, relaxed);
    assert_false(is_handed_out());
}

static void free_units(void **state) {
    (void)state;
    struct hak_slab *first = fill(hak_size_class_of(64), 8);
    hak_region_mark(first, 16, HAK_CLASS_NONE);
    hak_region_release(first, 16);
    assert_true(is_handed_out()); /* dirty ones */
    hak_region_purge_units(UINT64_MAX, true);
    assert_false(is_handed_out());
}

/* Of a short run the first page counts; a long one says nothing, and half of the SuperSlab must be known. */
static void runs(void **state) {
    (void)state;
    struct hak_slab *first = fill(hak_size_class_of(64), 8);
    for (uint32_t i = 0; i < 16; i += 4) run_at(first + i, 4);
    assert_false(is_handed_out());
    run_at(first, 8);
    run_at(first + 8, 8);
    assert_true(is_handed_out());
    run_at(first, 16);
    assert_true(is_handed_out());
    run_at(first, 17);
    assert_false(is_handed_out());
    for (uint32_t i = 0; i < 32; i++) run_at(first + i, 1);
    assert_false(is_handed_out());
}

/* A run that began in the SuperSlab before, and one that ends in the next. */
static void runs_across_borders(void **state) {
    (void)state;
    struct hak_slab *first = fill(hak_size_class_of(64), 8);
    hak_region_mark(first, 2, HAK_CLASS_RUN_BODY);
    run_at(first + 30, 2);
    hak_atomic_store(&first[30].run_pages, 1000, relaxed);
    assert_true(is_handed_out());
}

/* A single page with contents is little, wherever it lies; one in four isn't. */
static void sparse(void **state) {
    (void)state;
    start();
    size_t page = fake_os.page_bytes, pages = HAK_MIB / page;
    char *memory = (char *)range->start;
    assert_true(hak_density_is_sparse(range->start, HAK_MIB));
    for (size_t at = 0; at < pages; at++) {
        memory[at * page + 77] = 1;
        assert_true(hak_density_is_sparse(range->start, HAK_MIB));
        memory[at * page + 77] = 0;
    }
    for (size_t step = 2; step <= 4; step++) {
        for (size_t first = 0; first < step; first++) {
            for (size_t at = first; at < pages; at += step) memory[at * page + 77] = 1;
            assert_false(hak_density_is_sparse(range->start, HAK_MIB));
            for (size_t at = first; at < pages; at += step) memory[at * page + 77] = 0;
        }
    }
}

static void contents(void **state) {
    (void)state;
    start();
    size_t page = fake_os.page_bytes, pages = HAK_SUPER_SLAB_BYTES / page;
    char *memory = (char *)range->start;
    assert_false(hak_density_has_contents(range, 0));
    for (size_t i = 0; i < pages; i++) memory[i * page + (i * 37) % page] = 1;
    assert_true(hak_density_has_contents(range, 0));
    for (size_t i = 0; i < pages / 16; i++) memset(memory + i * 5 % pages * page, 0, page);
    assert_true(hak_density_has_contents(range, 0));
    memset(memory + (HAK_SUPER_SLAB_BYTES - page), 0, page);
    assert_false(hak_density_has_contents(range, 0));
}

static long faults_of_a_look(void) {
    struct rusage before, after;
    assert_int_equal(madvise((void *)range->start, HAK_SUPER_SLAB_BYTES, MADV_DONTNEED), 0);
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    assert_false(hak_density_has_contents(range, 0));
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    return after.ru_minflt - before.ru_minflt;
}

/* To read a page that nobody has written to is a page fault: a SuperSlab without memory costs two of them. What the code
 * itself touches for the first time, or a sanitizer's, is none of them: so the fewest of some looks count. */
static void looks_at_untouched_pages(void **state) {
    (void)state;
    long fewest = LONG_MAX;
    start();
    for (int i = 0; i < 5; i++) {
        long faults = faults_of_a_look();
        if (faults < fewest) fewest = faults;
    }
    assert_in_range(fewest, 0, 2);
}

UNIT_MAIN(cmocka_unit_test(nothing), cmocka_unit_test(slabs), cmocka_unit_test(surely), cmocka_unit_test(freed_since),
          cmocka_unit_test(free_units), cmocka_unit_test(runs), cmocka_unit_test(runs_across_borders),
          cmocka_unit_test(sparse), cmocka_unit_test(contents), cmocka_unit_test(looks_at_untouched_pages))
