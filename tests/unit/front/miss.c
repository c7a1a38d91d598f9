/* front/miss.h: how bins fill and empty, what serves when there is no heap or no memory, and misuse seen at once. */
#include "heap_fixture.h"

#include "allowance.h"
#include "misuse.h"

#include "front/background.h"
#include "front/miss.h"
#include "front/routes.h"
#include "region/heap_count.h"
#include "front/thread.h"
#include "observe/profile.h"
#include "region/owed.h"
#include "pool/bin.h"
#include "pool/bin_size.h"
#include "pool/drain.h"
#include "pool/pool.h"

struct call {
    void (*function)(void *);
    void *block;
};

static void make_call(void *context) {
    const struct call *call = context;
    call->function(call->block);
}

static const struct fake_report *catch_call(void (*function)(void *), void *block) {
    struct call call = {function, block};
    return fake_os_catch(make_call, &call);
}

/* What a drainer has asked for is done at the end of the next slow path. */
static void drained_when_asked(void **state) {
    (void)state;
    struct hak_heap *heap = hak_thread_attach();
    void *kept = hak_malloc(64), *other;
    assert_true(hak_heap_cached(heap, hak_size_class_of(64)) > 0);
    hak_atomic_store(&heap->drain_wanted, 1, relaxed);
    other = hak_malloc(500);
    assert_int_equal(hak_atomic_load(&heap->drain_wanted, relaxed), 0);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) assert_int_equal(hak_heap_cached(heap, i), 0);
    hak_free(kept);
    hak_free(other);
}

static void bins(void **state) {
    (void)state;
    struct hak_heap *heap = hak_thread_attach();
    assert_non_null(heap);
    assert_ptr_equal(hak_thread_heap, heap);
    uint32_t c = hak_size_class_of(64);
    struct hak_bin *bin = &heap->bins[c];
    assert_int_equal(hak_heap_cached(heap, c), 0);
    char *first = hak_malloc(64);
    size_t slots = (size_t)(bin->limit - bin->base);
    assert_int_equal(slots, 8);
    assert_int_equal(hak_heap_cached(heap, c), slots * 3 / 8 - 1);
    assert_null(bin->base[-1]);
    for (size_t i = 1; i < slots * 3 / 8; i++)
        assert_ptr_equal(hak_malloc(64), first + i * 64); /* in order of address */
    assert_int_equal(hak_heap_cached(heap, c), 0);
    hak_free(first + 64);
    hak_free(first);
    assert_ptr_equal(hak_malloc(64), first); /* the newest first */
    assert_ptr_equal(hak_malloc(64), first + 64);
}

/* A miss leaves a bin three eighths full; the fifth of a kind in a row, and those after it, full or empty. */
static void batches(void **state) {
    (void)state;
    static void *blocks[1000];
    struct hak_heap *heap = hak_thread_attach();
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed); /* no bin earns more */
    uint32_t c = hak_size_class_of(1024), count = 0;
    const struct hak_bin *bin = &heap->bins[c];
    while (count < 200) blocks[count++] = hak_malloc(1024);
    while (hak_heap_cached(heap, c) != 0 || count % 64 != 0) blocks[count++] = hak_malloc(1024); /* whole slabs */
    size_t slots = (size_t)(bin->limit - bin->base), left = (3 * slots + 4) / 8;
    assert_in_range(slots, 8, 64);
    blocks[count++] = hak_malloc(1024);
    assert_int_equal(hak_heap_cached(heap, c), slots - 1);
    for (int flush = 1; flush <= 5; flush++) {
        while (hak_heap_cached(heap, c) != slots) hak_free(blocks[--count]);
        hak_free(blocks[--count]);
        assert_int_equal(hak_heap_cached(heap, c), (flush < 5 ? left : 0) + 1);
    }
    for (int refill = 1; refill <= 5; refill++) {
        while (hak_heap_cached(heap, c) != 0) blocks[count++] = hak_malloc(1024);
        blocks[count++] = hak_malloc(1024);
        assert_int_equal(hak_heap_cached(heap, c), (refill < 5 ? left : slots) - 1);
    }
}

/* In a long run also a bin of many slots is filled, or emptied, by one miss; else a miss moves 64 blocks at most. */
static void long_runs(void **state) {
    (void)state;
    enum { SLOTS = 256, COUNT = 8 * SLOTS };
    static void *blocks[COUNT];
    struct hak_heap *heap = hak_thread_attach();
    uint32_t c = hak_size_class_of(64), count = 0;
    const struct hak_counters *counters = &heap->counters;
    while (count < COUNT / 2 || hak_heap_cached(heap, c) != SLOTS - 1) {
        assert_true(count < COUNT);
        blocks[count++] = hak_malloc(64);
    }
    while (count > 0) {
        uint64_t flushes = counters->flushes, flushed = counters->flushed_blocks;
        hak_free(blocks[--count]);
        if (counters->flushes == flushes) continue;
        bool is_long = hak_heap_is_for_frees(heap, c);
        assert_int_equal(counters->flushed_blocks - flushed, is_long ? SLOTS : 64);
        if (is_long) return;
    }
    fail();
}

/* A class that misses by frees alone: its bin is closed to malloc, and the next malloc opens it again. */
static void for_frees_only(void **state) {
    (void)state;
    static void *blocks[1000];
    struct hak_heap *heap = hak_thread_attach();
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed); /* no bin earns more */
    uint32_t c = hak_size_class_of(1024), count = 0;
    while (count < 1000) blocks[count++] = hak_malloc(1024);
    uint64_t flushes = heap->counters.flushes;
    while (heap->counters.flushes < flushes + 4) hak_free(blocks[--count]);
    assert_false(hak_heap_is_for_frees(heap, c)); /* a few flushes may be chance */
    while (heap->counters.flushes < flushes + 5) hak_free(blocks[--count]);
    assert_true(hak_heap_is_for_frees(heap, c));
    for (int i = 0; i < 8; i++) hak_free(blocks[--count]);
    assert_true(hak_heap_is_for_frees(heap, c)); /* they were hits */
    size_t cached = hak_heap_cached(heap, c);
    uint64_t refills = heap->counters.refills;
    assert_ptr_equal(hak_malloc(1024), blocks[count]);
    assert_false(hak_heap_is_for_frees(heap, c));
    assert_int_equal(hak_heap_cached(heap, c), cached - 1);
    assert_int_equal(heap->counters.refills, refills);
    struct hak_snapshot snapshot;
    check_equations(&snapshot);
}

static void bins_grow_within_their_limits(void **state) {
    (void)state;
    static void *blocks[4000];
    hak_background_pay(true); /* what is free stays for a while */
    struct hak_heap *heap = hak_thread_attach();
    size_t least_bytes = 0; /* a few slots for every class, whatever the budget */
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        size_t bytes = hak_size_classes[c].block_bytes;
        least_bytes += 4 * bytes;
        for (int i = 0; i < 4000; i++) blocks[i] = hak_malloc(bytes);
        for (int i = 0; i < 4000; i++) hak_free(blocks[i]);
        size_t slots = (size_t)(heap->slots[c].end - heap->slots[c].start);
        assert_in_range(slots, 1, hak_heap_usual_slots(c));
        assert_in_range(hak_heap_cached(heap, c), 1, slots);
        assert_true(slots <= 8 || slots * bytes <= 256 << 10);
    }
    struct hak_snapshot snapshot;
    check_equations(&snapshot);
    uint64_t share = snapshot.total.committed_bytes / hak_knob(bin_budget_share);
    assert_true(snapshot.total.cached_bytes <= share + least_bytes);
}

/* No memory for a heap: every request goes to the pool itself. */
static void without_a_heap(void **state) {
    (void)state;
    static struct live_block blocks[1000];
    struct hak_snapshot snapshot;
    fake_os_refuse(FAKE_MAP, 1, SIZE_MAX);
    for (int i = 0; i < 1000; i++) {
        blocks[i] = (struct live_block){hak_malloc(1 + i * 37u), 1 + i * 37u, (unsigned char)i};
        assert_non_null(blocks[i].bytes);
        block_fill(&blocks[i]);
    }
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.heaps, 0);
    assert_int_equal(snapshot.total.live_blocks, 1000);
    for (int i = 0; i < 1000; i += 2) {
        block_check(&blocks[i]);
        hak_free(blocks[i].bytes);
    }
    assert_int_equal(hak_thread_prewarm(1024), 0);
    check_equations(&snapshot);
    fake_os_refuse_nothing();
    for (int i = 1; i < 1000; i += 2) hak_free(blocks[i].bytes); /* now with one */
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.heaps, 1);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

/* As many blocks as are to be had, in a list. */
static size_t fill(size_t size, void **blocks) {
    size_t count = 0;
    for (void *block; (block = hak_malloc(size)) != NULL; count++) {
        *(void **)block = *blocks;
        *blocks = block;
    }
    assert_int_equal(errno, ENOMEM);
    return count;
}

static void empty(void **blocks) {
    while (*blocks != NULL) {
        void *block = *blocks;
        *blocks = *(void **)block;
        hak_free(block);
    }
}

/* The kernel gives nothing more: there is a block as long as a purge would find one. */
static void what_is_kept_serves_where_the_kernel_refuses(void **state) {
    (void)state;
    static const size_t sizes[] = {64, 1000, 5000, 40000, HAK_UNIT_BYTES, 3 * HAK_UNIT_BYTES};
    void *blocks = NULL, *more[64] = {0};
    hak_free(hak_malloc(1));
    fake_os.address_space_room = fake_os.mapped_bytes + 8 * HAK_MIB;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (int k = 0; k < 64; k++) more[k] = hak_malloc(sizes[k % 5]);
            for (int k = 0; k < 64; k++) hak_free(more[k]);
            assert_in_range(fill(sizes[i], &blocks), 1, SIZE_MAX);
            hak_purge();
            assert_int_equal(fill(sizes[i], &blocks), 0);
            empty(&blocks);
        }
    struct hak_snapshot snapshot;
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

/* There is no block of the smaller size: all but a part of the large one is given up. */
static void shrinks_where_nothing_is_left(void **state) {
    static const size_t sizes[] = {48 * HAK_MIB, 20 * HAK_MIB, HAK_MIB};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *blocks = NULL;
        fake_os.address_space_room = SIZE_MAX;
        char *large = hak_malloc(sizes[i]);
        memset(large, 7, 1000);
        fake_os.address_space_room = fake_os.mapped_bytes + 4 * HAK_MIB;
        fill(HAK_MIB, &blocks);
        fill(40000, &blocks);
        fill(1000, &blocks);
        assert_null(hak_malloc(sizes[i] / 2));
        errno = 0;
        assert_ptr_equal(hak_realloc(large, 1000), large);
        assert_int_equal(errno, 0);
        for (int at = 0; at < 1000; at++) assert_int_equal(large[at], 7);
        void *other = hak_malloc(sizes[i] / 2);
        assert_non_null(other);
        hak_free(other);
        hak_free(large);
        empty(&blocks);
    }
}

/* Nothing changes: the kernel is asked once each time, and nothing is mapped for nothing. */
static void searched_in_vain_once(void **state) {
    enum { BYTES = 40 * HAK_MIB };
    (void)state;
    void *kept[64];
    for (int i = 0; i < 64; i++) kept[i] = hak_malloc(HAK_MIB);
    for (int i = 0; i < 64; i += 2) hak_free(kept[i]);
    fake_os.address_space_room = fake_os.mapped_bytes + HAK_MIB;
    for (int i = 0; i < 3; i++) assert_null(hak_malloc(BYTES + i));
    for (int i = 0; i < 5; i++) {
        fake_os_forget();
        errno = 0;
        assert_null(hak_malloc(BYTES + i));
        assert_int_equal(errno, ENOMEM);
        assert_int_equal(fake_os.call_count[FAKE_ANY], 1);
        assert_int_equal(fake_os.call_count[FAKE_MAP], 1);
    }
    fake_os.clock_ms += 99;
    fake_os_forget();
    assert_null(hak_malloc(BYTES));
    assert_int_equal(fake_os.call_count[FAKE_ANY], 1);
    fake_os.clock_ms++; /* other threads may have freed some, into their bins */
    assert_null(hak_malloc(BYTES));
    assert_true(fake_os.call_count[FAKE_ANY] > 3);
    for (int i = 1; i < 64; i += 2) hak_free(kept[i]); /* by now there is as much, in units */
    void *block = hak_malloc(BYTES);
    assert_non_null(block);
    assert_null(hak_malloc(BYTES));
    assert_null(hak_malloc(BYTES));
    fake_os.address_space_room = SIZE_MAX; /* nothing of hakmem's has changed */
    void *other = hak_malloc(BYTES);
    assert_non_null(other);
    hak_free(other);
    hak_free(block);
}

/* Who does nothing any more but use a unit that he keeps. */
static void idle_memory_is_looked_for(void **state) {
    static void *large[32];
    (void)state;
    allow_free_memory();
    for (int i = 0; i < 32; i++) large[i] = hak_malloc(HAK_MIB);
    for (int i = 0; i < 32; i++) hak_free(large[i]);
    hak_free(hak_malloc(40000));
    for (int round = 0; round < 20; round++) {
        fake_os.clock_ms += hak_knob(decay_ms);
        for (int i = 0; i < 40; i++) hak_free(hak_malloc(40000));
    }
    assert_in_range(hak_atomic_load(&hak_dirty_units, relaxed), 0, 64);
}

/* What went back and is used again is learned by who releases nothing in between. */
static void learns_without_releases(void **state) {
    (void)state;
    static void *large[32];
    fake_os.clock_ms = 1000;
    for (int i = 0; i < 32; i++) large[i] = hak_malloc(HAK_MIB);
    for (int i = 0; i < 32; i++) hak_free(large[i]);
    assert_int_equal(hak_allowance_bytes(), 0);
    hak_free(hak_malloc(40000));
    for (int i = 0; i < 32; i++) {
        fake_os.clock_ms += hak_knob(decay_ms) / 2;
        large[i] = hak_malloc(HAK_MIB);
        for (int k = 0; k < 40; k++) hak_free(hak_malloc(40000));
    }
    assert_in_range(hak_allowance_bytes(), 8 * HAK_MIB, 32 * HAK_MIB);
}

/* Who tries again and again finds what another thread has freed into its bins, a tenth of a second later. */
static void retries_find_others_blocks(void **state) {
    enum { COUNT = 8, LARGE = 3 * HAK_MIB };
    (void)state;
    void *blocks = NULL, *others[COUNT];
    struct hak_heap *own = hak_thread_attach(), *other = hak_heap_acquire();
    assert_non_null(other);
    fake_os.clock_ms = 1000;
    hak_thread_heap = other;
    for (int i = 0; i < COUNT; i++) others[i] = hak_malloc(1000);
    hak_thread_heap = own;
    fake_os.address_space_room = fake_os.mapped_bytes + 8 * HAK_MIB;
    for (size_t size = HAK_MIB; size >= 500; size /= 2) fill(size, &blocks);
    assert_null(hak_malloc(1000));
    assert_null(hak_malloc(LARGE));
    hak_thread_heap = other;
    for (int i = 0; i < COUNT; i++) hak_free(others[i]);
    hak_thread_heap = own;
    int tries = 0;
    while (tries < 30 && hak_malloc(1000) == NULL) {
        assert_null(hak_malloc(LARGE));
        fake_os.clock_ms += 10;
        tries++;
    }
    assert_in_range(tries, 0, 11);
    fake_os.address_space_room = SIZE_MAX;
}

/* Memory that was taken ahead of a heap that grows isn't idle. */
static void growth_gives_nothing_back(void **state) {
    (void)state;
    fake_os.has_huge_pages = true;
    for (int i = 0; i < 100000; i++) {
        if (i % 100 == 0) fake_os.clock_ms += hak_knob(decay_ms) / 100;
        assert_non_null(hak_malloc(1000));
    }
    assert_true(fake_os.call_count[FAKE_HUGE] > 0);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 0);
}

/* In a signal handler that interrupted a slow path the heap is not to be touched. */
static void with_a_busy_heap(void **state) {
    (void)state;
    struct hak_snapshot snapshot;
    void *before = hak_malloc(100);
    struct hak_heap *heap = hak_thread_attach();
    uint64_t refills = hak_atomic_load(&heap->counters.refills, relaxed);
    hak_atomic_store(&heap->busy, 1, relaxed);
    assert_null(hak_thread_attach());
    void *small = hak_malloc(3000), *large = hak_malloc(100000);
    assert_non_null(small);
    assert_non_null(large);
    hak_free(small);
    hak_free(large);
    hak_atomic_store(&heap->busy, 0, relaxed);
    assert_int_equal(hak_atomic_load(&heap->counters.refills, relaxed), refills);
    hak_free(before);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

static void refused_requests(void **state) {
    (void)state;
    volatile size_t too_large = (size_t)PTRDIFF_MAX + 1;
    errno = 0;
    assert_null(hak_malloc(too_large));
    assert_int_equal(errno, ENOMEM);
    errno = 0;
    assert_null(hak_front_alloc_large(SIZE_MAX, 16, false, NULL));
    assert_int_equal(errno, ENOMEM);
    errno = 0;
    assert_null(hak_malloc(PTRDIFF_MAX - 100));
    assert_int_equal(errno, ENOMEM);
}

static void prewarming(void **state) {
    (void)state;
    size_t ready = hak_thread_prewarm(1024);
    struct hak_heap *heap = hak_thread_attach();
    size_t count = 0;
    for (uint32_t c = 1; c <= hak_size_class_of(1024); c++) {
        assert_true(hak_heap_cached(heap, c) > 0);
        count += hak_heap_cached(heap, c);
    }
    assert_int_equal(ready, count);
    assert_int_equal(hak_heap_cached(heap, hak_size_class_of(1025)), 0);
    assert_int_equal(hak_thread_prewarm(1024), count); /* they are full already */
    fake_os_forget();
    for (size_t size = 1; size <= 1024; size += 16) hak_malloc(size);
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
    assert_true(hak_thread_prewarm(SIZE_MAX) > count);
}

/* Sizes above 1 KiB share the widest class of their group, until there are many of them. */
static void groups_open(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    static void *many[COUNT];
    struct hak_snapshot snapshot;
    assert_int_equal(hak_malloc_usable_size(many[0] = hak_malloc(1000)), 1024);
    hak_free(many[0]);
    hak_atomic_store(&hak_heaps_about, 2, relaxed); /* each of which may have a few */
    for (int i = 0; i < COUNT; i++) many[i] = hak_malloc(1100);
    assert_int_equal(hak_malloc_usable_size(many[0]), 1536);
    assert_int_equal(hak_malloc_usable_size(many[8 * 42]), 1536);
    assert_int_equal(hak_malloc_usable_size(many[COUNT - 1]), 1152);
    for (size_t size = 1025; size <= 1536; size += 128) {
        many[0] = hak_realloc(many[0], size);
        hak_free(many[0]);
        many[0] = hak_malloc(size);
        assert_int_equal(hak_malloc_usable_size(many[0]), size + 127);
    }
    void *other = hak_malloc(1537);
    assert_int_equal(hak_malloc_usable_size(other), 2048); /* another group */
    hak_free(other);
    hak_free_sized(many[1], 1100); /* of the widest class, though its size has another by now */
    for (int i = 0; i < COUNT; i++)
        if (i != 1) hak_free(many[i]);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

/* What one phase of a program leaves serves the next, whatever its sizes: of each class little is kept. */
static void phases(void **state) {
    (void)state;
    enum { PHASE_BYTES = 1 << 20 };
    static void *blocks[PHASE_BYTES / 16];
    hak_background_pay(true); /* what is free stays for a while */
    hak_free(hak_malloc(1));
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        size_t bytes = hak_size_classes[c].block_bytes, count = PHASE_BYTES / bytes;
        for (size_t i = 0; i < count; i++) assert_non_null(blocks[i] = hak_malloc(bytes));
        for (size_t i = 0; i < count; i++) hak_free(blocks[i]);
    }
    struct hak_snapshot snapshot;
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
    assert_in_range(snapshot.total.super_slabs, 1, 3);
}

/* A block of one unit, freed, serves the next such: no unit goes back to the region, or comes from it. */
static void kept_units(void **state) {
    (void)state;
    char *first = hak_malloc(40000);
    memset(first, 1, 40000);
    hak_free(first);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    char *second = hak_calloc(60000, 1);
    assert_ptr_equal(second, first);
    assert_int_equal(hak_malloc_usable_size(second), 61440);
    for (int i = 0; i < 60000; i++) assert_int_equal(second[i], 0);
    char *aligned = hak_aligned_alloc(HAK_UNIT_BYTES, 50000);
    hak_free(second);
    assert_ptr_not_equal(hak_malloc(HAK_UNIT_BYTES + 1), first);
    assert_ptr_not_equal(hak_aligned_alloc(2 * HAK_UNIT_BYTES, 40000), first);
    hak_free(aligned);
    assert_ptr_equal(hak_aligned_alloc(HAK_UNIT_BYTES, 100), aligned);
    void *many[8];
    for (int i = 0; i < 8; i++) many[i] = hak_malloc(HAK_UNIT_BYTES);
    for (int i = 0; i < 8; i++) hak_free(many[i]);
    assert_in_range(hak_atomic_load(&hak_dirty_units, relaxed), 4, 8); /* a few are kept */
    hak_purge();
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    assert_int_equal(hak_thread_heap->empty_count, 0);
}

static void ask_size(void *block) { hak_malloc_usable_size(block); }
static void resize(void *block) { assert_null(hak_realloc(block, 10)); }
static void resize_to_nothing(void *block) { assert_null(hak_realloc(block, 0)); }

static void misuse_at_once(void **state) {
    (void)state;
    char *block = hak_malloc(64), *run = hak_malloc(100000), *mapping = hak_malloc(3 * HAK_MIB);
    static char foreign[64];
    unit_expect_misuse(catch_call(hak_free, foreign), HAK_MISUSE_FOREIGN_POINTER, "free", foreign, 0, 0);
    unit_expect_misuse(catch_call(hak_free, (void *)0x40), HAK_MISUSE_FOREIGN_POINTER, "free", (void *)0x40, 0, 0);
    void *wild = (void *)0x4141414141414141;
    unit_expect_misuse(catch_call(hak_free, wild), HAK_MISUSE_FOREIGN_POINTER, "free", wild, 0, 0);
    hak_free(block);
    unit_expect_misuse(catch_call(hak_free, block), HAK_MISUSE_DOUBLE_FREE, "free", block, 0, 64);
    unit_expect_misuse(catch_call(hak_free, run + 4096), HAK_MISUSE_INTERIOR_POINTER, "free", run + 4096, 4096,
                       hak_align_up(100000, 4096));
    unit_expect_misuse(catch_call(hak_free, mapping + 16), HAK_MISUSE_INTERIOR_POINTER, "free", mapping + 16, 16,
                       3 * HAK_MIB);
}

/* Of a large object its thread knows that it was one. */
static void freed_large_objects(void **state) {
    (void)state;
    char *run = hak_malloc(100000), *mapping = hak_malloc(3 * HAK_MIB);
    hak_free(run);
    hak_free(mapping);
    static const size_t run_bytes = 102400;
    unit_expect_misuse(catch_call(hak_free, run), HAK_MISUSE_DOUBLE_FREE, "free", run, 0, run_bytes);
    unit_expect_misuse(catch_call(hak_free, mapping), HAK_MISUSE_DOUBLE_FREE, "free", mapping, 0, 3 * HAK_MIB);
    unit_expect_misuse(catch_call(resize, run), HAK_MISUSE_FREED_BLOCK, "realloc", run, 0, run_bytes);
    unit_expect_misuse(catch_call(ask_size, mapping), HAK_MISUSE_FREED_BLOCK, "malloc_usable_size", mapping, 0,
                       3 * HAK_MIB);
    unit_expect_misuse(catch_call(hak_free, run + 16), HAK_MISUSE_FOREIGN_POINTER, "free", run + 16, 0, 0);
    char *moved = hak_malloc(3 * HAK_MIB), *beside = hak_malloc(3 * HAK_MIB);
    assert_ptr_not_equal(hak_realloc(moved, 300 * HAK_MIB), moved);
    unit_expect_misuse(catch_call(hak_free, moved), HAK_MISUSE_DOUBLE_FREE, "free", moved, 0, 3 * HAK_MIB);
    hak_free(beside);
}

/* Whatever has emptied the bin since the block was freed, if nothing else has happened there. */
static void flush_all(void) { hak_heap_flush_bins(hak_thread_heap); }
static void purge(void) { hak_purge(); }
static void miss_when_asked(void) {
    hak_atomic_store(&hak_thread_heap->drain_wanted, 1, relaxed);
    hak_front_free_miss(hak_malloc(9000));
}
static void drain_by_another(void) {
    struct hak_drain drain = {.first_taken = NULL};
    hak_heap_begin_drain(hak_thread_heap, &drain);
    hak_heap_drain_taken(&drain);
    hak_heap_end_drains(&drain);
}

static void misuse_after_a_flush(void **state) {
    (void)state;
    void (*const ways[])(void) = {flush_all, purge, miss_when_asked, drain_by_another};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        for (int is_for_frees = 0; is_for_frees < 2; is_for_frees++) {
            void *other = hak_malloc(64), *block = hak_malloc(64);
            uint32_t c = hak_size_class_of(64);
            hak_free(block);
            hak_heap_close_bin(hak_thread_heap, c);
            if (is_for_frees) hak_heap_keep_for_frees(hak_thread_heap, c);
            else hak_heap_open_bin(hak_thread_heap, c);
            ways[i](); /* a drainer leaves the newest one of an open bin */
            assert_int_equal(hak_heap_cached(hak_thread_heap, c), ways[i] == drain_by_another && !is_for_frees);
            unit_expect_misuse(catch_call(hak_free, block), HAK_MISUSE_DOUBLE_FREE, "free", block, 0, 64);
            hak_heap_open_bin(hak_thread_heap, c); /* which a program that was told of it doesn't live to see */
            hak_heap_end_slow_path(hak_thread_heap);
            hak_free(other);
            hak_heap_flush_bins(hak_thread_heap);
        }
    }
}

static void resize_by_flags(void *block) { hak_rallocx(block, 100, HAK_MALLOCX_LG_ALIGN(6)); }
static void ask_size_by_flags(void *block) { hak_sallocx(block, 0); }
static void keep_by_flags(void *block) { hak_xallocx(block, 10, 0, 0); }

static void misuse_of_other_functions(void **state) {
    (void)state;
    char *block = hak_malloc(1024);
    static char foreign[64];
    unit_expect_misuse(catch_call(resize, foreign), HAK_MISUSE_FOREIGN_POINTER, "realloc", foreign, 0, 0);
    unit_expect_misuse(catch_call(resize, block + 1023), HAK_MISUSE_INTERIOR_POINTER, "realloc", block + 1023, 1023,
                       1024);
    unit_expect_misuse(catch_call(resize_to_nothing, block + 16), HAK_MISUSE_INTERIOR_POINTER, "realloc", block + 16,
                       16, 1024);
    unit_expect_misuse(catch_call(ask_size, block + 1), HAK_MISUSE_INTERIOR_POINTER, "malloc_usable_size", block + 1, 1,
                       1024);
    unit_expect_misuse(catch_call(resize_by_flags, foreign), HAK_MISUSE_FOREIGN_POINTER, "rallocx", foreign, 0, 0);
    unit_expect_misuse(catch_call(ask_size_by_flags, block + 1), HAK_MISUSE_INTERIOR_POINTER, "sallocx", block + 1, 1,
                       1024);
    unit_expect_misuse(catch_call(keep_by_flags, block + 1), HAK_MISUSE_INTERIOR_POINTER, "xallocx", block + 1, 1,
                       1024);
}

/* realloc finds a free block near the top of the bin; who only asks for a size is told it. */
static void resizes_of_what_is_free(void **state) {
    (void)state;
    enum { NEWEST = 32, COUNT = 100 };
    void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) blocks[i] = hak_malloc(64);
    hak_heap_flush_bin(hak_thread_heap, hak_routes_class_of(64));
    for (int i = 0; i < NEWEST + 1; i++) {
        hak_free(blocks[i]);
        for (int j = i - NEWEST + 1 > 0 ? i - NEWEST + 1 : 0; j <= i; j++)
            unit_expect_misuse(catch_call(resize, blocks[j]), HAK_MISUSE_FREED_BLOCK, "realloc", blocks[j], 0, 64);
        assert_ptr_equal(hak_realloc(blocks[i + 1], 63), blocks[i + 1]);
    }
    assert_ptr_equal(hak_realloc(blocks[0], 63), blocks[0]); /* too far down */
    void *newest = blocks[NEWEST];
    unit_expect_misuse(catch_call(resize_to_nothing, newest), HAK_MISUSE_FREED_BLOCK, "realloc", newest, 0, 64);
    unit_expect_misuse(catch_call(resize_by_flags, newest), HAK_MISUSE_FREED_BLOCK, "rallocx", newest, 0, 64);
    assert_int_equal(hak_malloc_usable_size(newest), 64);
    /* A signal handler that has interrupted a slow path sees blocks in motion, and doesn't look. */
    hak_atomic_store(&hak_thread_heap->busy, 1, relaxed);
    assert_ptr_equal(hak_realloc(newest, 63), newest);
    hak_atomic_store(&hak_thread_heap->busy, 0, relaxed);
}

/* A free that misses sees those that were freed before, not the newest only. */
static void misuse_at_a_miss(void **state) {
    (void)state;
    static void *blocks[1000];
    for (int i = 0; i < 1000; i++) blocks[i] = hak_malloc(64);
    uint32_t size_class = hak_routes_class_of(64);
    const struct hak_bin *bin = &hak_thread_heap->bins[size_class];
    int next = 0;
    do hak_free(blocks[next++]);
    while (hak_owned_peek(&bin->top) != hak_atomic_load(&bin->limit, relaxed));
    unit_expect_misuse(catch_call(hak_free, blocks[next - 32]), HAK_MISUSE_DOUBLE_FREE, "free", blocks[next - 32], 0,
                       64);
}

/* The other thread's first free of a block of this size: at later ones its bin isn't empty. */
static void misuse_of_another_threads_block(void **state) {
    (void)state;
    struct hak_heap *own = hak_thread_attach(), *other = hak_heap_acquire();
    void *blocks[4];
    for (int i = 0; i < 4; i++) blocks[i] = hak_malloc(64);
    for (int i = 1; i < 4; i++) hak_free(blocks[i]);
    hak_thread_heap = other;
    unit_expect_misuse(catch_call(hak_free, blocks[1]), HAK_MISUSE_DOUBLE_FREE, "free", blocks[1], 0, 64);
    assert_int_equal(hak_atomic_load(&own->drained, relaxed), 0);
}

static void flush(void *unused) {
    (void)unused;
    hak_purge();
}

static void misuse_at_the_flush(void **state) {
    (void)state;
    char *blocks[3] = {hak_malloc(64), hak_malloc(64), hak_malloc(64)};
    hak_free(blocks[0]);
    hak_free(blocks[1]);
    hak_free(blocks[0]); /* not the newest */
    unit_expect_misuse(catch_call(flush, NULL), HAK_MISUSE_DOUBLE_FREE, "free", blocks[0], 0, 64);
}

static size_t slots_of(size_t size) {
    const struct hak_slots *slots = &hak_thread_heap->slots[hak_routes_class_of(size)];
    return (size_t)(slots->end - slots->start);
}

/* Bins that may have less than they have get smaller at their next misses, also when there are only frees. */
static void bins_shrink(void **state) {
    (void)state;
    static void *many[2000];
    for (int i = 0; i < 2000; i++) many[i] = hak_malloc(64);
    for (int i = 0; i < 1000; i++) hak_free(many[i]);
    assert_int_equal(slots_of(64), 256);
    hak_atomic_store(&hak_class_slots[hak_routes_class_of(64)], 16, relaxed);
    for (int i = 1000; i < 2000; i++) hak_free(many[i]);
    assert_int_equal(slots_of(64), 16);
    hak_atomic_store(&hak_class_slots[hak_routes_class_of(64)], 0, relaxed);
    for (int i = 0; i < 2000; i++) many[i] = hak_malloc(64);
    for (int i = 0; i < 1000; i++) hak_free(many[i]);
    assert_int_equal(slots_of(64), 256);
    hak_atomic_store(&hak_class_slots[hak_routes_class_of(64)], 16, relaxed);
    for (int i = 0; i < 1000; i++) many[i] = hak_malloc(64);
    assert_int_equal(slots_of(64), 16);
}

static void misses_are_counted_and_timed(void **state) {
    (void)state;
    void *block = hak_malloc(64); /* a miss */
    uint32_t size_class = hak_routes_class_of(64);
    struct hak_heap *heap = hak_thread_heap;
    assert_int_equal(hak_atomic_load(&heap->class_misses[size_class], relaxed), 1);
    assert_int_equal(hak_atomic_load(&heap->sample_count, relaxed), 0); /* not unless asked for */
    hak_atomic_store(&hak_miss_sample_mask, 0, relaxed);
    for (int i = 0; i < 1000; i++) hak_malloc(64);
    uint64_t misses = hak_atomic_load(&heap->slow_paths, relaxed) - 1;
    assert_in_range(hak_atomic_load(&heap->sample_count, relaxed), misses - 1, misses);
    assert_in_range(hak_atomic_load(&heap->sampled_ticks, relaxed), 1, misses * HAK_MISS_MOST_TICKS);
    hak_free(block);
}

static void free_of_1024(void *block) { hak_free_sized(block, 1024); }

/* The bin has room: it is the hit that refuses them. */
static void interior_pointers_at_once(void **state) {
    (void)state;
    static const uint32_t offsets[] = {1, 8, 16, 24, 48, 500};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        char *block = hak_malloc(1024);
        const struct hak_bin *bin = &hak_thread_heap->bins[hak_routes_class_of(1024)];
        assert_true(bin->top < bin->limit);
        unit_expect_misuse(catch_call(hak_free, block + offsets[i]), HAK_MISUSE_INTERIOR_POINTER, "free",
                           block + offsets[i], offsets[i], 1024);
        unit_expect_misuse(catch_call(free_of_1024, block + offsets[i]), HAK_MISUSE_INTERIOR_POINTER, "free",
                           block + offsets[i], offsets[i], 1024);
        hak_free(block);
    }
}

/* Each free goes to the slab: others in between make no difference. */
static void direct_frees(void **state) {
    (void)state;
    enum { COUNT = 100 };
    void *blocks[COUNT];
    hak_atomic_store(&hak_knobs.direct_free_mode, 1, relaxed);
    for (int i = 0; i < COUNT; i++) blocks[i] = hak_malloc(64);
    uint32_t size_class = hak_routes_class_of(64);
    const struct hak_heap *heap = hak_thread_heap;
    while (hak_heap_cached(heap, size_class) < 2) assert_non_null(hak_malloc(64));
    uint64_t slow_paths = hak_atomic_load(&heap->slow_paths, relaxed);
    size_t cached = hak_heap_cached(heap, size_class);
    void *again = hak_malloc(64), *kept = hak_malloc(64); /* hits */
    assert_int_equal(hak_atomic_load(&heap->slow_paths, relaxed), slow_paths);
    for (int i = 0; i < COUNT; i++) hak_free(blocks[i]);
    assert_int_equal(hak_heap_cached(heap, size_class), cached - 2);
    assert_int_equal(hak_atomic_load(&heap->slow_paths, relaxed), slow_paths + COUNT);
    assert_int_equal(hak_malloc_usable_size(again), 64);
    unit_expect_misuse(catch_call(resize, blocks[0]), HAK_MISUSE_FREED_BLOCK, "realloc", blocks[0], 0, 64);
    unit_expect_misuse(catch_call(ask_size, blocks[COUNT - 1]), HAK_MISUSE_FREED_BLOCK, "malloc_usable_size",
                       blocks[COUNT - 1], 0, 64);
    hak_free(again);
    hak_free(kept);
    unit_expect_misuse(catch_call(hak_free, again), HAK_MISUSE_DOUBLE_FREE, "free", again, 0, 64);
}

/* A free block that the thread's heap has claimed with others is in no bin, and its bit is 0. */
static void direct_frees_of_what_is_claimed(void **state) {
    (void)state;
    enum { COUNT = 256 };
    void *blocks[COUNT], *claimed = NULL;
    hak_atomic_store(&hak_knobs.direct_free_mode, 1, relaxed);
    for (int i = 0; i < COUNT; i++) blocks[i] = hak_malloc(64);
    for (int i = 0; i < COUNT; i++) hak_free(blocks[i]);
    while (hak_pool_has_free(blocks[0], hak_routes_class_of(64))) assert_non_null(hak_malloc(64));
    void *live = hak_malloc(64);
    for (int i = 0; i < COUNT && claimed == NULL; i++) {
        struct hak_place place = hak_region_find((uintptr_t)blocks[i]);
        if (hak_pool_has_claimed(&place)) claimed = blocks[i];
    }
    assert_non_null(claimed);
    assert_int_equal(hak_malloc_usable_size(live), 64);
    unit_expect_misuse(catch_call(resize, claimed), HAK_MISUSE_FREED_BLOCK, "realloc", claimed, 0, 64);
    unit_expect_misuse(catch_call(ask_size, claimed), HAK_MISUSE_FREED_BLOCK, "malloc_usable_size", claimed, 0, 64);
    unit_expect_misuse(catch_call(hak_free, claimed), HAK_MISUSE_DOUBLE_FREE, "free", claimed, 0, 64);
}

/* What malloc would hand out next. */
static void free_of_what_is_in_the_bin(void **state) {
    (void)state;
    hak_atomic_store(&hak_knobs.direct_free_mode, 1, relaxed);
    assert_non_null(hak_malloc(64));
    void *next = hak_owned_peek(&hak_thread_heap->bins[hak_routes_class_of(64)].top)[-1];
    unit_expect_misuse(catch_call(resize, next), HAK_MISUSE_FREED_BLOCK, "realloc", next, 0, 64);
    unit_expect_misuse(catch_call(hak_free, next), HAK_MISUSE_DOUBLE_FREE, "free", next, 0, 64);
}

/* Where a slab is of several units, on its grid. */
static void interior_pointers_at_the_flush(void **state) {
    (void)state;
    char *block = hak_malloc(12288);
    hak_free(block + 4096);
    unit_expect_misuse(catch_call(flush, NULL), HAK_MISUSE_INTERIOR_POINTER, "free", block + 4096, 4096, 12288);
}

/* Past the bins: from the pool's lowest slab, and back to the slab at once. */
static void uncached(void **state) {
    (void)state;
    struct hak_heap *heap = hak_thread_attach();
    uint32_t c = hak_size_class_of(100);
    void *low = hak_front_alloc_uncached(100, NULL), *high = hak_front_alloc_uncached(97, NULL);
    assert_true(low < high);
    assert_int_equal(hak_region_find((uintptr_t)low).size_class, c);
    assert_int_equal(hak_heap_cached(heap, c), 0);
    hak_front_free_uncached(low);
    assert_int_equal(hak_heap_cached(heap, c), 0);
    assert_true(hak_pool_has_free(low, c));
    assert_ptr_equal(hak_mallocx(100, HAK_MALLOCX_TCACHE_NONE), low);
    hak_dallocx(low, HAK_MALLOCX_TCACHE_NONE);
    assert_true(hak_pool_has_free(low, c));
    assert_ptr_equal(hak_mallocx(100, HAK_MALLOCX_TCACHE_NONE), low);
    hak_sdallocx(low, 100, HAK_MALLOCX_TCACHE_NONE);
    assert_true(hak_pool_has_free(low, c));
    assert_ptr_equal(hak_front_alloc_uncached(100, NULL), low);
    hak_front_free_uncached(NULL);
    hak_front_free_uncached(hak_malloc(100000));
    hak_front_free_uncached(hak_malloc(100));
    unit_expect_misuse(catch_call(hak_front_free_uncached, (char *)low + 16), HAK_MISUSE_INTERIOR_POINTER, "free",
                       (char *)low + 16, 16, hak_size_classes[c].block_bytes);
    hak_front_free_uncached(high);
    unit_expect_misuse(catch_call(hak_front_free_uncached, high), HAK_MISUSE_DOUBLE_FREE, "free", high, 0,
                       hak_size_classes[c].block_bytes);
    hak_front_free_uncached(low);
}

static void uncached_free_of_a_free_block(void **state) {
    (void)state;
    void *block = hak_malloc(64), *other = hak_malloc(64);
    hak_free(block);
    hak_free(other);
    unit_expect_misuse(catch_call(hak_front_free_uncached, block), HAK_MISUSE_DOUBLE_FREE, "free", block, 0, 64);
}

/* One in a hundred of what is allocated, wherever refills begin and end. */
static void guarded_by_chance(void **state) {
    (void)state;
    enum { COUNT = 20000, ROUNDS = 5, IN = 100 };
    static void *made[COUNT];
    hak_profile_seed(3);
    hak_atomic_store(&hak_knobs.guard_share, IN, relaxed);
    size_t guarded = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++) {
            made[i] = hak_malloc(100);
            guarded += hak_region_find((uintptr_t)made[i]).kind == HAK_PLACE_GUARDED;
        }
        for (int i = 0; i < COUNT; i++) hak_free(made[i]);
    }
    assert_in_range(guarded, ROUNDS * COUNT / IN * 88 / 100, ROUNDS * COUNT / IN * 110 / 100);
    hak_atomic_store(&hak_knobs.guard_share, 0, relaxed);
    for (int i = 0; i < COUNT; i++)
        assert_int_not_equal(hak_region_find((uintptr_t)hak_malloc(100)).kind, HAK_PLACE_GUARDED);
}

UNIT_MAIN(cmocka_unit_test(guarded_by_chance), cmocka_unit_test(bins), cmocka_unit_test(uncached),
          cmocka_unit_test(uncached_free_of_a_free_block), cmocka_unit_test(drained_when_asked),
          cmocka_unit_test(batches), cmocka_unit_test(long_runs), cmocka_unit_test(for_frees_only),
          cmocka_unit_test(bins_grow_within_their_limits), cmocka_unit_test(without_a_heap),
          cmocka_unit_test(what_is_kept_serves_where_the_kernel_refuses), cmocka_unit_test(with_a_busy_heap),
          cmocka_unit_test(searched_in_vain_once), cmocka_unit_test(shrinks_where_nothing_is_left),
          cmocka_unit_test(idle_memory_is_looked_for), cmocka_unit_test(growth_gives_nothing_back),
          cmocka_unit_test(learns_without_releases), cmocka_unit_test(retries_find_others_blocks),
          cmocka_unit_test(refused_requests), cmocka_unit_test(prewarming), cmocka_unit_test(groups_open),
          cmocka_unit_test(kept_units), cmocka_unit_test(phases), cmocka_unit_test(misuse_at_once),
          cmocka_unit_test(freed_large_objects), cmocka_unit_test(misuse_after_a_flush),
          cmocka_unit_test(misuse_of_other_functions), cmocka_unit_test(misuse_at_the_flush),
          cmocka_unit_test(misuse_at_a_miss), cmocka_unit_test(misuse_of_another_threads_block),
          cmocka_unit_test(resizes_of_what_is_free), cmocka_unit_test(direct_frees),
          cmocka_unit_test(direct_frees_of_what_is_claimed), cmocka_unit_test(free_of_what_is_in_the_bin),
          cmocka_unit_test(interior_pointers_at_once), cmocka_unit_test(interior_pointers_at_the_flush),
          cmocka_unit_test(bins_shrink), cmocka_unit_test(misses_are_counted_and_timed))
