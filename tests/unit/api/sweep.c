/* The sweep: one scripted run of the whole allocator, repeated with its Nth memory call refused, for every N, and with
 * all from the Nth on. Whatever is refused, a request that fails says ENOMEM and changes nothing; every live block
 * keeps its contents; everything can be freed, with the counters adding up; and once the kernel gives memory again,
 * all works again. */
#include "heap_fixture.h"

#include "front/background.h"
#include "front/front.h"
#include "front/thread.h"
#include "region/page_policy.h"

#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 160, OPERATIONS = 500, DENSE_BLOCKS = 720, EXIT_NOTHING_REFUSED = 42 };

static struct live_block slots[SLOTS];
static size_t refused_requests;

/* Small ones, runs, mappings: what a program may ask for, with many of those that need memory calls. */
static size_t pick_size(uint64_t *random) {
    uint64_t pick = unit_random(random) % 100;
    if (pick < 50) return 1 + unit_random(random) % 2048;
    if (pick < 75) return 1 + unit_random(random) % HAK_SMALL_MAX;
    if (pick < 92) return HAK_SMALL_MAX + unit_random(random) % HAK_MIB;
    return HAK_MIB + unit_random(random) % (3 * HAK_MIB);
}

static void expect_refusal(const void *block) {
    UNIT_CHECK(block == NULL && errno == ENOMEM);
    refused_requests++;
}

static void make_block(struct live_block *slot, uint64_t *random) {
    size_t size = pick_size(random), alignment = 1;
    uint64_t how = unit_random(random) % 8;
    unsigned char *bytes;
    errno = 0;
    if (how == 0) {
        bytes = hak_calloc(1, size);
        for (size_t i = 0; bytes != NULL && i < size; i += block_step(i, size)) UNIT_CHECK(bytes[i] == 0);
    } else if (how == 1) {
        alignment = (size_t)16 << unit_random(random) % 18;
        bytes = hak_aligned_alloc(alignment, size);
    } else {
        bytes = hak_malloc(size);
    }
    *slot = (struct live_block){bytes, size, (unsigned char)unit_random(random)};
    if (bytes == NULL) {
        expect_refusal(bytes);
        return;
    }
    UNIT_CHECK((uintptr_t)bytes % alignment == 0);
    block_fill(slot);
}

static void resize_block(struct live_block *slot, uint64_t *random) {
    size_t size = slot->size > HAK_MIB ? slot->size + unit_random(random) % HAK_MIB : pick_size(random);
    errno = 0;
    unsigned char *bytes = hak_realloc(slot->bytes, size);
    if (bytes == NULL) {
        expect_refusal(bytes);
        block_check(slot);
        return;
    }
    /* Kept bytes beyond the sparse middle were written densely only near the old end: look where both have written. */
    size_t kept = size < slot->size ? size : slot->size;
    block_check_part(bytes, kept, slot->size, slot->seed);
    slot->bytes = bytes;
    slot->size = size;
    block_fill(slot);
}

static void free_block(struct live_block *slot) {
    block_check(slot);
    errno = 4321;
    if (slot->seed % 2) hak_free(slot->bytes);
    else hak_free_sized(slot->bytes, slot->size);
    UNIT_CHECK(errno == 4321);
    slot->bytes = NULL;
}

static void check_all(void) {
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].bytes != NULL) block_check(&slots[i]);
}

static void run_script(uint64_t seed) {
    uint64_t random = seed;
    for (int i = 0; i < OPERATIONS; i++) {
        struct live_block *slot = &slots[unit_random(&random) % SLOTS];
        uint64_t pick = unit_random(&random) % 10;
        if (slot->bytes == NULL) make_block(slot, &random);
        else if (pick < 3) resize_block(slot, &random);
        else free_block(slot);
        if (i % 200 == 100) hak_purge();
        if (i % 200 == 180) fake_os.clock_ms += 2000;
    }
}

static void free_all(void) {
    struct hak_snapshot snapshot;
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].bytes != NULL) free_block(&slots[i]);
    check_equations(&snapshot);
    UNIT_CHECK(snapshot.total.live_blocks == 0);
}

/* ---- A heap that grows, with two threads and the background thread ----------------------------------------------- */

static struct hak_heap *other_heap;

/* Goes on as the other thread. */
static void change_threads(void) {
    struct hak_heap *heap = hak_thread_attach();
    if (heap == NULL) return;
    if (other_heap == NULL) other_heap = hak_heap_acquire();
    if (other_heap == NULL) return;
    hak_thread_heap = other_heap;
    other_heap = heap;
}

static size_t waits_left;

static void end_after_some_periods(void) {
    fake_os.clock_ms += 2000;
    if (waits_left-- == 0) hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDING, relaxed);
}

/* The background thread, if there is one, has so many periods, and ends. */
static void run_background(size_t periods) {
    if (hak_atomic_load(&hak_background_state, relaxed) != HAK_BACKGROUND_AWAKE) return;
    waits_left = periods;
    fake_os.at_wait = end_after_some_periods;
    struct hak_heap *own = hak_thread_heap; /* the background thread, which is the same one here, has none */
    fake_os.thread();
    hak_thread_heap = own;
    fake_os.at_wait = NULL;
    UNIT_CHECK(hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_ENDED);
}

/* Grows by many blocks of one size, whose beginning is written, and of which every eighth stays until the end. */
static void run_growing(uint64_t seed) {
    static struct live_block dense[DENSE_BLOCKS];
    change_threads();
    for (int i = 0; i < DENSE_BLOCKS; i++) {
        errno = 0;
        dense[i] = (struct live_block){hak_malloc(HAK_SMALL_MAX), 64, (unsigned char)(2 * i + 1)};
        if (dense[i].bytes == NULL) expect_refusal(NULL);
        else block_fill(&dense[i]);
    }
    change_threads();
    for (int i = 0; i < DENSE_BLOCKS; i++)
        if (i % 8 != 0 && dense[i].bytes != NULL) free_block(&dense[i]);
    run_background(seed % 2 == 0 ? 5 : 1);
    change_threads();
    run_script(seed);
    hak_purge();
    for (int i = 0; i < DENSE_BLOCKS; i += 8)
        if (dense[i].bytes != NULL) free_block(&dense[i]);
    run_background(2);
}

static void purge_both(void) {
    hak_purge();
    if (other_heap == NULL) return;
    change_threads();
    hak_purge();
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static uint64_t huge_pages, lazy_purge; /* knobs */
static bool grows;
static size_t fences = SIZE_MAX; /* granted */

static void run(uint64_t seed) {
    if (grows) run_growing(seed);
    else run_script(seed);
}

/* In a process of its own. */
static _Noreturn void run_refusing(enum fake_call_kind kind, size_t first, size_t last) {
    struct hak_snapshot snapshot;
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, HAK_MIB, relaxed);
    hak_atomic_store(&hak_knobs.mapping_cache_bytes, 4 * HAK_MIB, relaxed);
    hak_atomic_store(&hak_knobs.run_limit_bytes, 2 * HAK_MIB, relaxed); /* spans, and mappings */
    hak_atomic_store(&hak_knobs.huge_page_mode, huge_pages, relaxed);
    hak_atomic_store(&hak_knobs.prefault_mode, huge_pages == HAK_HUGE_ON, relaxed);
    hak_atomic_store(&hak_knobs.lazy_purge_mode, lazy_purge, relaxed);
    fake_os.has_huge_pages = true;
    if (!grows) fake_os.window_room = HAK_PAGE_MAP_BYTES + 4 * HAK_MIB; /* ranges of one SuperSlab: several of them */
    hak_atomic_store(&hak_knobs.growth_floor_bytes, 0, relaxed);
    fake_os.fences_left = fences;
    fake_os.grows_in_place = false;
    fake_os.clock_ms = 1000;
    fake_os_refuse(kind, first, last);
    run(1);
    check_all();
    bool refused = fake_os.refused_count > 0 || fake_os.fences_left == 0;
    UNIT_CHECK(refused || refused_requests == 0);
    if (hak_malloc_usable_size(NULL) == 0 && hak_region_range(0) != NULL) check_equations(&snapshot);
    free_all();
    purge_both();

    fake_os_refuse_nothing();
    fake_os.fences_left = SIZE_MAX;
    refused_requests = 0;
    run_script(2);
    UNIT_CHECK(refused_requests == 0);
    check_all();
    free_all();
    purge_both();
    check_equations(&snapshot);
    UNIT_CHECK(snapshot.total.slabs == 0 && snapshot.total.large_blocks == 0);
    exit(refused ? 0 : EXIT_NOTHING_REFUSED);
}

/* True when a call was refused, false when the run makes fewer calls than that. */
static bool passes(enum fake_call_kind kind, size_t first, size_t last) {
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(600);
        run_refusing(kind, first, last);
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != EXIT_NOTHING_REFUSED))
        fail_msg("kind %d, call %zu to %zu: wait status %#x", (int)kind, first, last, (unsigned)status);
    return WEXITSTATUS(status) == 0;
}

static void undisturbed(void **state) {
    (void)state;
    assert_false(passes(FAKE_ANY, 0, 0));
}

static void sweep(enum fake_call_kind kind, bool from_there_on, size_t at_least) {
    size_t call = 1, step = grows && kind == FAKE_ANY ? 3 : 1; /* growth repeats itself */
    while (passes(kind, call, from_there_on ? SIZE_MAX : call)) call += step;
    print_message("%zu calls\n", call - 1);
    assert_true(call > at_least); /* or the script has lost its point */
}

static void each_call(void **state) {
    (void)state;
    sweep(FAKE_ANY, false, 100);
}
static void from_each_call_on(void **state) {
    (void)state;
    sweep(FAKE_ANY, true, 100);
}
static void from_each_map_on(void **state) {
    (void)state;
    sweep(FAKE_MAP, true, 10);
}
static void from_each_map_at_on(void **state) {
    (void)state;
    sweep(FAKE_MAP_AT, true, 10);
}
static void from_each_purge_on(void **state) {
    (void)state;
    sweep(FAKE_PURGE, true, 3);
}
static void from_each_unmap_on(void **state) {
    (void)state;
    sweep(FAKE_UNMAP, true, 3);
}
static void from_each_reserve_on(void **state) {
    (void)state;
    sweep(FAKE_RESERVE, true, 3);
}
static void huge_pages_refused(void **state) {
    (void)state;
    huge_pages = HAK_HUGE_ON;
    sweep(FAKE_HUGE, false, 3);
    sweep(FAKE_HUGE, true, 3);
    sweep(FAKE_NO_HUGE, true, 3);
    sweep(FAKE_BREAK, true, 2);
    sweep(FAKE_POPULATE, true, 3);
}
static void lazy_purges_refused(void **state) {
    (void)state;
    lazy_purge = 1;
    sweep(FAKE_LAZY_PURGE, false, 3);
    sweep(FAKE_LAZY_PURGE, true, 3);
}
static void from_each_move_on(void **state) {
    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        fake_os.keeps_targets = keeps != 0;
        sweep(FAKE_MOVE, false, 3);
        sweep(FAKE_MOVE, true, 3);
        sweep(FAKE_MOVE_PAGES, true, 0);
    }
}
static void from_each_remap_on(void **state) {
    (void)state;
    sweep(FAKE_REMAP, true, 1);
}

/* A heap that grows, is looked at, and gets huge pages or is populated ahead; and has a background thread. */
static void growth_each_call(void **state) {
    (void)state;
    grows = true;
    huge_pages = HAK_HUGE_AUTO;
    sweep(FAKE_ANY, false, 100);
}
static void growth_from_each_call_on(void **state) {
    (void)state;
    grows = true;
    huge_pages = HAK_HUGE_AUTO;
    sweep(FAKE_ANY, true, 100);
}
static void growth_ahead_refused(void **state) {
    (void)state;
    grows = true;
    sweep(FAKE_POPULATE, false, 3);
    sweep(FAKE_POPULATE, true, 3);
}
static void from_each_fence_on(void **state) {
    (void)state;
    grows = true;
    for (fences = 0; passes(FAKE_ANY, 0, 0);) fences++;
    print_message("%zu fences\n", fences);
    assert_true(fences > 3);
}

UNIT_MAIN(cmocka_unit_test(undisturbed), cmocka_unit_test(each_call), cmocka_unit_test(from_each_call_on),
          cmocka_unit_test(from_each_map_on), cmocka_unit_test(from_each_map_at_on),
          cmocka_unit_test(from_each_purge_on), cmocka_unit_test(from_each_unmap_on),
          cmocka_unit_test(huge_pages_refused), cmocka_unit_test(lazy_purges_refused),
          cmocka_unit_test(from_each_move_on), cmocka_unit_test(from_each_remap_on),
          cmocka_unit_test(from_each_reserve_on), cmocka_unit_test(growth_each_call),
          cmocka_unit_test(growth_from_each_call_on), cmocka_unit_test(growth_ahead_refused),
          cmocka_unit_test(from_each_fence_on))
