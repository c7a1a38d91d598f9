/* A kernel that refuses: each operation on large objects, with its first memory call refused, its second, and so on
 * until it makes no more calls; one call, and all from there on; and with moves whose target is gone when they are
 * refused, or there still. Afterwards every block is where it was, or where the operation said, whole and known; all of
 * them can be freed; the counters say what there is; and nothing is left over that could have been given back. */
#include "heap_fixture.h"

#include "allowance.h"

#include <sys/wait.h>
#include <unistd.h>

#include "region/decay.h"
#include "region/in_hand.h"
#include "region/large.h"
#include "region/region.h"

enum { MOST_BLOCKS = 16, EXIT_NOTHING_REFUSED = 42 };

/* ---- What the program has ---------------------------------------------------------------------------------------- */

static struct live_block blocks[MOST_BLOCKS];
static int block_count;

static bool is_in_vain; /* the operation got no memory */

static struct live_block *add(void *start, size_t size) {
    is_in_vain = start == NULL;
    if (start == NULL) return NULL;
    UNIT_CHECK(block_count < MOST_BLOCKS);
    blocks[block_count] = (struct live_block){start, size, (unsigned char)(17 * block_count + 1)};
    block_fill(&blocks[block_count]);
    return &blocks[block_count++];
}

static struct live_block *alloc(size_t size) { return add(hak_large_alloc(size, HAK_ALIGNMENT, false), size); }

static struct hak_place place_of(const struct live_block *block) {
    struct hak_place place = hak_region_find((uintptr_t)block->bytes);
    UNIT_CHECK(place.kind == HAK_PLACE_RUN || place.kind == HAK_PLACE_MAPPING);
    UNIT_CHECK(place.start == (uintptr_t)block->bytes);
    UNIT_CHECK(place.bytes >= block->size);
    return place;
}

static void release(struct live_block *block) {
    struct hak_place place = place_of(block);
    UNIT_CHECK(hak_large_free(&place));
    UNIT_CHECK(!hak_large_free(&place));
    *block = blocks[--block_count];
}

/* As realloc does, up to where it would copy. */
static void resize(struct live_block *block, size_t size) {
    struct hak_place place = place_of(block);
    unsigned char *resized = hak_large_resize(&place, size);
    is_in_vain = resized == NULL;
    if (resized == NULL) {
        UNIT_CHECK(place_of(block).bytes == place.bytes);
        return;
    }
    block_check_part(resized, size < block->size ? size : block->size, block->size, block->seed);
    block->bytes = resized;
    block->size = size;
    block_fill(block);
}

/* ---- What there is ----------------------------------------------------------------------------------------------- */

static uint64_t leaf_bytes(void) {
    HAK_ATOMIC(void *) const *leaves = hak_directory_root;
    uint64_t bytes = 0;
    for (size_t i = 0; i < (size_t)1 << HAK_DIRECTORY_ROOT_SHIFT; i++)
        if (leaves[i] != NULL) bytes += sizeof(uint64_t) << HAK_DIRECTORY_LEAF_SHIFT;
    return bytes;
}

/* Of units: each is free or a run's, dirty ones are counted. */
static void check_units(void) {
    uint64_t dirty_units = 0, run_units = 0, used_units = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++) {
        struct hak_range *range = hak_region_range(i);
        for (uint32_t unit = 0; unit < range->super_slab_count * HAK_UNITS_PER_SUPER_SLAB; unit++) {
            uint64_t word = range->super_slabs[unit / 32].free_units;
            bool is_free = (hak_units_free(word) >> unit % 32 & 1) != 0;
            UNIT_CHECK(is_free == (hak_page_map_class(range, unit) == HAK_CLASS_NONE));
            dirty_units += hak_units_dirty(word) >> unit % 32 & 1;
            used_units += !is_free;
        }
    }
    for (int i = 0; i < block_count; i++) {
        struct hak_place place = place_of(&blocks[i]);
        if (place.kind == HAK_PLACE_RUN) run_units += (place.bytes + HAK_UNIT_BYTES - 1) / HAK_UNIT_BYTES;
    }
    UNIT_CHECK(run_units == used_units);
    UNIT_CHECK(dirty_units == hak_dirty_units);
}

/* What ranges have: SuperSlabs that are mapped (R4), but for absent units, and tables. */
static uint64_t range_bytes(void) {
    uint64_t super_slabs = 0, absent = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++) {
        struct hak_range *range = hak_region_range(i);
        for (uint32_t first = 0; first < range->super_slab_count; first += HAK_SUPER_SLABS_PER_GROUP)
            super_slabs += hak_bit_count(range->groups[first / HAK_SUPER_SLABS_PER_GROUP].mapped);
        for (uint32_t n = 0; n < range->super_slab_count; n++)
            absent += hak_bit_count(hak_units_absent(range->super_slabs[n].free_units));
    }
    return super_slabs * HAK_SUPER_SLAB_BYTES - absent * HAK_UNIT_BYTES + hak_region_sums().metadata_bytes;
}

/* What is mapped that is nobody's. */
static uint64_t check_all(void) {
    uint64_t mappings = 0, mapping_bytes = 0, entries_bytes = 0;
    for (int i = 0; i < block_count; i++) {
        struct hak_place place = place_of(&blocks[i]);
        block_check_part(blocks[i].bytes, blocks[i].size, blocks[i].size, blocks[i].seed);
        if (place.kind != HAK_PLACE_MAPPING) continue;
        mappings++;
        mapping_bytes += place.bytes;
    }
    check_units();
    hak_directory_for_each_mapping(add_mapping_bytes, &entries_bytes);
    UNIT_CHECK(entries_bytes == mapping_bytes);
    UNIT_CHECK(hak_mapping_count == mappings);
    UNIT_CHECK(hak_mapping_bytes == mapping_bytes);
    UNIT_CHECK(hak_os_counters.mapped_bytes == fake_os.mapped_bytes);
    uint64_t known = range_bytes() + leaf_bytes() + mapping_bytes + hak_mapping_cache_bytes();
    UNIT_CHECK(fake_os.mapped_bytes >= known);
    return fake_os.mapped_bytes - known;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static struct live_block *run, *mapping;

/* A run with another behind it, a mapping, and one that is kept. */
static void prepare(void) {
    run = alloc(HAK_MIB - 8192);
    struct live_block *beside = alloc(HAK_MIB / 4);
    UNIT_CHECK(run != NULL && beside->bytes == run->bytes + HAK_MIB);
    mapping = alloc(4 * HAK_MIB);
    release(alloc(7 * HAK_MIB));
    UNIT_CHECK(hak_mapping_cache_bytes() == 7 * HAK_MIB);
}
static void forbid_growth(void) { fake_os.grows_in_place = false; }
static void forbid_keeping(void) { hak_atomic_store(&hak_knobs.mapping_cache_bytes, 0, relaxed); }
static void keep_no_mapping(void) { hak_mapping_cache_purge(); }

/* What is free has no addresses, either. */
static void unmap_free(void) { UNIT_CHECK(hak_region_unmap_units(SIZE_MAX) != 0); }

/* Kept mappings that the kernel has refused are used for anything. */
static void keep_refused(void) {
    struct live_block *other = alloc(16 * HAK_MIB);
    forbid_keeping();
    fake_os_refuse(FAKE_UNMAP, 1, SIZE_MAX);
    release(other);
    fake_os_refuse_nothing();
    UNIT_CHECK(hak_mapping_cache_bytes() == 23 * HAK_MIB);
}

static void alloc_run(void) { alloc(HAK_MIB); }
static void alloc_long_run(void) { alloc(2 * HAK_MIB); }
static void alloc_aligned_run(void) { add(hak_large_alloc(100000, 2 * HAK_MIB, true), 100000); }
static void alloc_mapping(void) { alloc(9 * HAK_MIB); }
static void alloc_kept(void) { alloc(6 * HAK_MIB); }
static void alloc_kept_clear(void) {
    struct live_block block = {hak_large_alloc(6 * HAK_MIB, HAK_ALIGNMENT, true), 6 * HAK_MIB, 0};
    for (size_t i = 0; block.bytes != NULL && i < block.size; i += block_step(i, block.size))
        UNIT_CHECK(block.bytes[i] == 0);
    add(block.bytes, block.size);
}
static void alloc_aligned(void) {
    struct live_block *block = add(hak_large_alloc(5 * HAK_MIB, 16 * HAK_MIB, false), 5 * HAK_MIB);
    UNIT_CHECK(block == NULL || (uintptr_t)block->bytes % (16 * HAK_MIB) == 0);
}
static void free_run(void) { release(run); }
static void free_mapping(void) { release(mapping); }
static void grow_run(void) { resize(&blocks[1], HAK_MIB / 2); }
static void grow_run_far(void) { resize(&blocks[1], 40 * HAK_MIB); }
static void move_run(void) { resize(run, 2 * HAK_MIB); }
static void move_run_far(void) { resize(run, 40 * HAK_MIB); }
static void grow_run_within(void) { resize(run, HAK_MIB - 4096); }
static void shrink_run(void) { resize(run, HAK_MIB / 2 - 8192); }
static void grow_mapping(void) { resize(mapping, 6 * HAK_MIB); }
static void shrink_mapping(void) { resize(mapping, 3 * HAK_MIB); }
static void shrink_and_grow_mapping(void) {
    shrink_mapping();
    grow_mapping();
    shrink_mapping();
}
static void purge_tail(void) {
    struct hak_range *range = hak_region_range(0);
    hak_large_purge_tail(range, hak_region_unit_of(range, place_of(run).slab));
}
static void purge_all(void) {
    release(run);
    hak_region_purge_units(UINT64_MAX, true);
    hak_mapping_cache_purge();
}
static void age_twice(void) {
    hak_mapping_cache_owe_all();
    while (hak_mappings_owed != 0) hak_mapping_cache_pay(HAK_TURN_BYTES);
}
static void push_out(void) {
    hak_atomic_store(&hak_knobs.mapping_cache_bytes, 8 * HAK_MIB, relaxed);
    release(mapping);
}

static const struct operation {
    const char *name;
    void (*before)(void); /* NULL: nothing */
    void (*run)(void);
    size_t least_calls; /* or the operation is not what it was */
} operations[] = {
    {"alloc_run", NULL, alloc_run, 0},
    {"alloc_long_run", NULL, alloc_long_run, 1},
    {"alloc_long_run_unmapped", unmap_free, alloc_long_run, 1},
    {"alloc_aligned_run", NULL, alloc_aligned_run, 1},
    {"alloc_mapping", NULL, alloc_mapping, 1},
    {"alloc_kept", NULL, alloc_kept, 0},
    {"alloc_kept_clear", NULL, alloc_kept_clear, 1},
    {"alloc_refused", keep_refused, alloc_mapping, 1},
    {"alloc_aligned", NULL, alloc_aligned, 1},
    {"alloc_aligned_none_kept", keep_no_mapping, alloc_aligned, 1},
    {"free_run", NULL, free_run, 0},
    {"free_mapping", NULL, free_mapping, 0},
    {"free_mapping_not_kept", forbid_keeping, free_mapping, 1},
    {"grow_run", NULL, grow_run, 0},
    {"grow_run_far", NULL, grow_run_far, 1},
    {"grow_run_within", NULL, grow_run_within, 0},
    {"move_run", NULL, move_run, 3},
    {"move_run_far", NULL, move_run_far, 3},
    {"shrink_run", NULL, shrink_run, 0},
    {"grow_mapping", NULL, grow_mapping, 1},
    {"move_mapping", forbid_growth, grow_mapping, 3},
    {"shrink_mapping", NULL, shrink_mapping, 1},
    {"shrink_and_grow_mapping", NULL, shrink_and_grow_mapping, 3},
    {"shrink_and_move_mapping", forbid_growth, shrink_and_grow_mapping, 5},
    {"purge_tail", NULL, purge_tail, 1},
    {"purge_all", NULL, purge_all, 2},
    {"age", NULL, age_twice, 1},
    {"push_out", NULL, push_out, 1},
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* ---- What others see --------------------------------------------------------------------------------------------- */

static uint64_t free_units(void) {
    uint64_t units = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++)
        for (uint32_t super_slab = 0; super_slab < hak_region_range(i)->super_slab_count; super_slab++)
            units += hak_bit_count(hak_units_free(hak_region_range(i)->super_slabs[super_slab].free_units));
    return units;
}

/* Another thread that looks for memory while the kernel is asked finds what there was before, or that somebody has some
 * in hand (I1 of region/in_hand.h). */
static uint64_t free_units_before;
static bool hides_units;
static void look_from_outside(void) {
    if (free_units() < free_units_before && !hak_in_hand_is_some()) hides_units = true;
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static bool intrudes;

/* When a move is refused, whose target the kernel has unmapped, another thread makes an object of the same size, and
 * gets the addresses. Its calls are granted. */
static void intrude(void) {
    static bool is_inside;
    size_t last = fake_os.call_count[FAKE_ANY] - 1;
    if (is_inside || fake_os.keeps_targets || !intrudes) return;
    is_inside = true;
    uintptr_t target = fake_os.calls[last].start;
    size_t bytes = fake_os.calls[last].bytes;
    fake_os_refuse_nothing();
    hak_mapping_cache_purge();
    fake_os.next_start = (void *)target;
    struct live_block *block = add(hak_large_alloc(bytes, 4 * HAK_MIB, false), bytes);
    UNIT_CHECK(block != NULL);
    if (target % (4 * HAK_MIB) == 0) UNIT_CHECK(block->bytes == (unsigned char *)target);
    fake_os.next_start = NULL;
}

/* In a process of its own. Which calls are refused: `first` to `last`. */
static _Noreturn void run_refusing(const struct operation *operation, size_t first, size_t last) {
    static struct hak_hand hand; /* as of a thread with a heap: what it is in the middle of is not counted */
    hak_large_hand = &hand;
    allow_free_memory();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 2 * HAK_MIB, relaxed);
    hak_size_class_initialize(0);
    UNIT_CHECK(hak_region_initialize());
    prepare();
    if (operation->before != NULL) operation->before();
    UNIT_CHECK(check_all() == 0);

    fake_os_forget();
    fake_os.at_refused_move = intrude;
    fake_os.at_call = intrudes ? NULL : look_from_outside;
    free_units_before = free_units();
    fake_os_refuse(FAKE_ANY, first, last);
    errno = 1234;
    operation->run();
    UNIT_CHECK(errno == 1234);
    fake_os_refuse_nothing();
    fake_os.at_refused_move = NULL;
    fake_os.at_call = NULL;
    UNIT_CHECK(!is_in_vain || !hides_units); /* what is used is nobody else's */
    bool refused = fake_os.refused_count != 0;
    if (!refused) UNIT_CHECK(fake_os.call_count[FAKE_ANY] >= operation->least_calls);

    /* If the kernel takes nothing back and commits nothing, what was reserved before is lost. */
    uint64_t lost = check_all();
    UNIT_CHECK(lost == 0 || last == SIZE_MAX);
    while (block_count > 0) release(&blocks[block_count - 1]);
    hak_region_purge_units(UINT64_MAX, true);
    hak_mapping_cache_purge();
    UNIT_CHECK(hak_mapping_cache_bytes() == 0);
    UNIT_CHECK(check_all() == lost);
    UNIT_CHECK(hak_dirty_units == 0);
    exit(refused ? 0 : EXIT_NOTHING_REFUSED);
}

static bool passes(const struct operation *operation, size_t first, size_t last) {
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(600);
        run_refusing(operation, first, last);
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != EXIT_NOTHING_REFUSED))
        fail_msg("%s, calls %zu to %zu, targets %s: wait status %#x", operation->name, first, last,
                 fake_os.keeps_targets ? "kept" : "unmapped", (unsigned)status);
    return WEXITSTATUS(status) == 0;
}

static void sweep(bool from_there_on) {
    for (size_t i = 0; i < OPERATIONS; i++)
        for (size_t call = 1; passes(&operations[i], call, from_there_on ? SIZE_MAX : call); call++) {
        }
}

static void one_call(void **state) {
    (void)state;
    sweep(false);
}
static void one_call_and_an_intruder(void **state) {
    (void)state;
    intrudes = true;
    sweep(false);
}
static void one_call_targets_kept(void **state) {
    (void)state;
    fake_os.keeps_targets = true;
    sweep(false);
}
static void from_each_call_on(void **state) {
    (void)state;
    sweep(true);
}
static void from_each_call_on_targets_kept(void **state) {
    (void)state;
    fake_os.keeps_targets = true;
    sweep(true);
}

UNIT_MAIN(cmocka_unit_test(one_call), cmocka_unit_test(one_call_and_an_intruder),
          cmocka_unit_test(one_call_targets_kept), cmocka_unit_test(from_each_call_on),
          cmocka_unit_test(from_each_call_on_targets_kept))
