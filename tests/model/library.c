/* The library's sources, which harnesses run, as one unit: so what is static in them can be put back. */
#include "base/version.c"
#include "base/format.c"
#include "base/knobs.c"
#include "base/profile.c"
#include "base/experiment.c"
#include "base/config.c"
#include "base/counters.c"
#include "base/memory.c"

#include "slab/size_class.c"
#include "slab/slab.c"

#include "region/directory.c"
#include "region/guard.c"
#include "region/in_hand.c"
#include "region/generation.c"
#include "region/allowance.c"
#include "region/owed.c"
#include "region/range.c"
#include "region/hints.c"

static void *clear_first_words(void *start, size_t bytes) { /* as far as harnesses look */
    for (size_t at = 0; at < bytes; at += HAK_UNIT_BYTES) *(uint64_t *)(void *)((char *)start + at) = 0;
    return start;
}
#define memset(start, value, bytes) clear_first_words(start, bytes)
#include "region/units.c"
#undef memset

#include "region/density.c"
#include "region/governor.c"
#include "region/heap_count.c"
#include "region/page_policy.c"
#include "region/mapping_cache.c"
#include "region/decay.c"
#include "region/run_quarantine.c"
#include "region/large.c"

#include "pool/canary.c"
#include "pool/partial_set.c"
#include "pool/bin.c"
#include "pool/bin_size.c"
#include "pool/freed.c"
#include "pool/held.c"
#include "pool/quarantine.c"
#include "pool/ration.c"
#include "pool/vacant.c"
#include "pool/heap.c"
#include "pool/put.c"
#include "pool/pool.c"
#include "pool/drain.c"
#include "pool/fork.c"
#include "pool/holder.c"
#include "pool/purge.c"
#include "pool/shrink.c"
#include "pool/sparse.c"

#include "observe/probes.h"
HAK_ATOMIC(uint16_t) hak_probe_alloc_semaphore;
void hak_probe_alloc(const void *block, size_t size, uint64_t weight) { (void)block, (void)size, (void)weight; }
void hak_probe_free(const void *block) { (void)block; }
#include "observe/crash.h"
void hak_crash_install_for_guards(void) {}

/* Tables that say of each address the address itself. A stack has one: walks are of the thread's own memory. */
#include "observe/unwind.h"
struct hak_unwind_rule hak_unwind_rule_at(uintptr_t code) {
    return (struct hak_unwind_rule){.kind = HAK_UNWIND_BY_STACK, .words = (int32_t)code};
}
bool hak_unwind_can_read(uintptr_t *page, uintptr_t at, size_t bytes) {
    return (void)page, (void)at, (void)bytes, false;
}
#include "os/inspect.h"
bool hak_os_peek_memory(uintptr_t from, void *to, size_t bytes) { return (void)from, (void)to, (void)bytes, false; }
#define hak_stack_walk walk_for_real
#include "observe/stack.c"
#undef hak_stack_walk
uint32_t hak_stack_walk(const void *frame, uintptr_t *addresses);
uint32_t hak_stack_walk(const void *frame, uintptr_t *addresses) {
    addresses[0] = 0x1000;
    return (void)frame, 1;
}
/* No interpreter. */
#include "observe/python.h"
void hak_python_look_for(void) {}
bool hak_python_is_there(void) { return false; }
bool hak_python_add_refusal(struct hak_text *text) { return (void)text, false; }
struct hak_python_walk hak_python_begin(void) {
    return (struct hak_python_walk){.frame = 0};
}
bool hak_python_step(struct hak_python_walk *walk, struct hak_python_frame *frame) {
    return (void)walk, (void)frame, false;
}
bool hak_python_describe(struct hak_python_walk *walk, struct hak_python_frame *frame) {
    return (void)walk, (void)frame, false;
}
#include "observe/profile.c"

#define hak_directory_for_each_mapping(visit, context) ((void)(visit), (void)(context)) /* looks at 4096 locations */
#include "observe/stats.c"

#include "front/routes.c"
#include "front/miss.c"
#include "front/tight.c"

/* What the service answers and writes. */
#include "front/requests.h"
#include "observe/metrics.h"
void hak_request_answer(char *line, struct hak_answer *answer) { (void)line, (void)answer; }
void hak_snapshot_write_metrics(const struct hak_snapshot *snapshot, struct hak_text *out) {
    (void)snapshot, (void)out;
}
#include "front/service.c"

#include <pthread.h>
#include "front/meter.c"
#include "front/background.c"
#define hak_routes_initialize() fill(0, 8)                                      /* as far as harnesses look */
#define pthread_atfork(prepare, parent, child) ((void)(prepare), (void)(child)) /* mutants run in children */
#include "front/process.c"

#include "library.h"

uintptr_t library_rule_of(uintptr_t code) { return (uintptr_t)rule_at(code).words; }

struct hak_heap *library_heaps[LIBRARY_HEAPS];

/* In place of front/thread.c: a thread's heap is given to it by the harness. */
static struct hak_heap no_heap;
__thread struct hak_heap *hak_thread_heap = &no_heap;

bool hak_thread_initialize(void) { return true; }
void hak_thread_after_fork(void) {}
uintptr_t hak_thread_identity(void) { return 2 + model_thread(); }
void hak_thread_refuse_heap(void) {}
bool hak_thread_is_between_heaps(void) { return false; }
void hak_thread_abandon_heap(void) { library_be(&no_heap); }
void library_be(struct hak_heap *heap) {
    hak_thread_heap = heap;
    hak_large_hand = heap == &no_heap ? NULL : &heap->large_hand;
}

struct hak_heap *hak_thread_attach(void) {
    struct hak_heap *heap = hak_thread_heap;
    return heap->number == 0 || hak_atomic_load(&heap->busy, relaxed) != 0 ? NULL : heap;
}

/* In place of os/memory_limit.c: a limit that is never near. */
void hak_memory_groups_find(struct hak_memory_groups *found) { found->limit_count = 1; }
struct hak_memory_use hak_memory_use(const struct hak_memory_groups *found, int64_t more_bytes) {
    (void)found, (void)more_bytes;
    return (struct hak_memory_use){.limit_bytes = 64 * HAK_MIB, .used_bytes = 0};
}

/* In place of control/ace.c and front/follow.c: knobs that nobody turns. */
void hak_ace_configure(const struct hak_ace_settings *given) { (void)given; }
uint64_t hak_ace_wait_ms(uint64_t most_ms) { return most_ms; }
void hak_ace_step(bool times) { (void)times; }
void hak_ace_rest(void) {}
void hak_ace_after_fork(void) {}
bool hak_follow_policy(const char *setting, char *const *environment, bool explains, struct hak_text *messages) {
    return (void)setting, (void)environment, (void)explains, (void)messages, false;
}

void library_in_child(void) {
    model_recovers = true;
    last_child = 0; /* it is another process */
    in_child();
    model_recovers = false;
}
void library_let_serve(void) {
    settings.ctl = 1;
    fake_os.has_service = true;
}
void library_let_look(void) {
    is_looking = 0;
    groups.limit_count = 1;
    hak_look_at_pages = 0;
}
bool library_finds_in_bin(struct hak_heap *heap, uint32_t size_class, const void *block) {
    return find_newest(heap, size_class, block) != NULL && is_there_for_sure(heap, size_class, block);
}

uint64_t library_growth_seen(void) { return seen.grown_bytes; }
void library_fill_routes(size_t first, size_t last) { fill(first, last); }
void library_change_routes(uint32_t size_class, bool is_metered, size_t first, size_t last) {
    change(size_class == 0 ? METERED : bit_of_group(size_class), is_metered, first, last);
}
void *library_take_of_ration(uint32_t size_class) {
    struct hak_bin *ration = &hak_thread_heap->bins[hak_sampled_class(size_class)];
    void **top = hak_owned_get(&ration->top);
    if (!hak_relaxed_below(&ration->base, top)) return NULL;
    void *block = top[-1];
    hak_bin_set_top(ration, top - 1);
    return block;
}
void library_skip_guard_turns(uint64_t count) { hak_atomic_fetch_add(&guard_turns, count, relaxed); }
void library_background_sleep(void) { sleep_until_miss(); }
void library_background_period(void) { end_period(); }
void library_background_start(void) {
    try_to_join();
    start_thread();
}
void library_background_look(void) {
    hak_os_settle_thread();
    end_beginning();
}
void library_background_run(void) { run_background(); }
void library_background_finish(void) { finish(); }

/* ---- state --------------------------------------------------------------------------------------------------- */

static void set_class(uint32_t size_class, uint32_t blocks, uint32_t units, uint32_t most_bytes) {
    uint32_t bytes = (uint32_t)hak_align_down(units * HAK_UNIT_BYTES / blocks, HAK_ALIGNMENT);
    if (bytes > most_bytes) bytes = most_bytes;
    uint32_t grid = units == 1 ? bytes : 1u << hak_lowest_bit(bytes);
    hak_size_classes[size_class] = (struct hak_size_class){
        bytes, blocks, units, (uint32_t)((((uint64_t)1 << HAK_RECIPROCAL_SHIFT) + bytes - 1) / bytes),
        (uint32_t)((((uint64_t)1 << 32) + grid - 1) / grid)};
}

void library_reset(void) {
    static struct hak_knobs initial_knobs;
    static bool have_knobs;
    if (!have_knobs) initial_knobs = hak_knobs;
    have_knobs = true;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_ranges[i] != NULL; i++) {
        root[hak_ranges[i]->start / LEAF_SPAN] = root[hak_ranges[i]->start / LEAF_SPAN + 1] = NULL;
        hak_ranges[i] = NULL;
    }
    fake_os_reset();
    table_step = 1;
    model_refuses_fences = model_stops_anywhere = model_recovers = false;
    void *arena = hak_os_reserve(0, HAK_GRANULE_BYTES);
    root[(uintptr_t)arena / LEAF_SPAN] = root[(uintptr_t)arena / LEAF_SPAN + 1] = NULL;
    hak_knobs = initial_knobs;
    given_knobs = 0;
    for (uint32_t c = 1; c < HAK_CLASS_LIMIT; c++) hak_class_slots[c] = 4; /* two at first */
    hak_knobs.run_limit_bytes = (size_t)1 << 20; /* or there are no mappings in so small a world */
    hak_window = (struct hak_window){HAK_WINDOW_NOWHERE, 0};
    wiped = &unwatched;
    unwatched = (struct wiped){1, 0, 0};
    hak_generation = 1;
    hak_dirty_units = 0;
    hak_in_hand = 0;
    hak_in_hand_own = 0;
    hak_background_state = HAK_BACKGROUND_AWAKE; /* so that misses have nothing to do with it */
    hak_background_pays = 0;
    misses_seen = idle_periods = misses_to_skip = misses_to_look = 0;
    next_step_ms = next_holes_ms = 0;
    reused_at_rest = alone_until_ms = hak_allowance_limit_bytes = 0;
    is_forking = false;
    filter_calls = is_beginning = 0;
    may_leave_bytes = UINT64_MAX;
    left_to_sweep = UINT64_MAX;
    next_to_sweep = (struct cursor){0, 0};
    period_start_ms = fewest_dirty_units = next_holes_ms = 0;
    hak_owed_units = hak_mappings_owed = round_bytes = 0;
    round_place = HAK_PURGE_FROM_TOP;
    next_round_ms = next_round_units = released_units = 0;
    debt_us = to_skip = losses = calm_touches = calm_wanted = 0;
    hak_purge_place = HAK_PURGE_NO_ROUND;
    round_given_bytes = round_want_bytes = round_out_bytes = 0;
    memset(given_pages, 0, sizeof given_pages);
    next_given = 0;
    border_count = gap_count = gap_changes = cut_count = apart_count = 0;
    is_forked_child = false;
    memset(recent_zeros, 0, sizeof recent_zeros);
    memset(run_places, 0, sizeof run_places);
    memset(run_turns, 0, sizeof run_turns);
    run_kinds[0].places = 1;
    next_to_cut = changes_at_round = sum_in_vain = 0;
    was_ever_lazy = hak_memory_is_tight = false;
    hak_memory_tight_count = hak_memory_limit_bytes = 0;
    is_looking = 1; /* so that nobody looks, unless the harness wants it */
    memset(&seen, 0, sizeof seen);
    hak_pages_grown = hak_pages_reused = 0;
    hak_slab_bytes = hak_out_bytes = hak_slab_holes = 0;
    hak_look_at_pages = UINT32_MAX;
    away_bytes = free_left_bytes = most_at_once_bytes = last_given_ms = seen_pages = allowance = most_free_bytes = 0;
    pinned_bytes = pinned_at_ms = pinned_at_out_bytes = most_out_bytes = 0;
    shrink_at = growths = 0;
    memset(fills, 0, sizeof fills);
    next_look = 0;
    hak_vain_rounds = 0;
    largest_mapping = 0;
    hak_mapping_count = hak_mapping_bytes = 0;
    memset(places, 0, sizeof places);
    kept_bytes = 0;
    oldest = 0;
    hak_heaps = NULL;
    memset(last_heaps, 0, sizeof last_heaps);
    heap_count = unused_heaps = orphaned_heaps = hak_heaps_in_use = hak_heaps_about = 0;
    memset(kept_heaps, 0, sizeof kept_heaps);
    model_tag(&unused_heaps, ~hak_low_bits(HEAP_BITS), "unused heaps");
    memset(&hak_shared_counters, 0, sizeof hak_shared_counters);
    hak_atomic_store(&hak_os_counters.mapped_bytes, SIZE_MAX, relaxed); /* the kernel refuses nothing for good */
    memset(library_heaps, 0, sizeof library_heaps);
    start_state = START_NONE;
    settings.ctl = 0;
    service_state = SERVICE_NONE;
    service_thread = 0;
    service.line_length = 0;
    guard_pool = guard_turns = hak_guard_live_blocks = hak_guard_live_bytes = 0;
    guard_is_refused = false;
    memset(rows, 0, sizeof rows);
    least_places = most_places = 2;
    hak_profile_tables = NULL;
    hak_profile_interval = random_state = facts = hak_routes_turns = 0;
    memset(hak_pool_out_blocks, 0, sizeof hak_pool_out_blocks);
    memset(known_rules, 0, sizeof known_rules);
    hak_thread_abandon_heap();
    model_thread_local(&hak_background_is_starting, sizeof hak_background_is_starting);
    model_thread_local(&hak_thread_heap, sizeof hak_thread_heap);
    hak_own_hand = NULL;
    model_thread_local(&hak_own_hand, sizeof hak_own_hand);
    model_thread_local(&hak_large_hand, sizeof hak_large_hand);
    model_thread_local(&hak_in_hand_own, sizeof hak_in_hand_own);
    model_name(&hak_in_hand, "in hand");
    memset(hak_size_classes, 0, sizeof hak_size_classes);
    set_class(PAIR, 2, 1, UINT32_MAX);
    set_class(TRIPLE, 3, 1, UINT32_MAX);
    set_class(WIDE, 2, 2, UINT32_MAX);
    set_class(MANY, 128, 1, UINT32_MAX);
    set_class(FEWER, 96, 1, UINT32_MAX);
    set_class(SHORT, 2, 1, HAK_UNIT_BYTES / 4);
    for (uint32_t c = PAIR; c < CLASSES; c++) hak_size_classes[hak_sampled_class(c)] = hak_size_classes[c];
}

void library_start(uint32_t super_slabs, uint32_t used, uint32_t units, uint32_t heaps) {
    library_reset();
    hak_region_initialize();
    hak_ranges[0]->super_slab_limit = super_slabs;
    for (uint32_t i = 0; i < used; i++) {
        uint32_t number, count;
        hak_region_new_super_slabs(&number, &count);
        hak_in_hand_keep();
        add_units(hak_ranges[0], number, hak_low_bits(units) << 32);
    }
    hak_heap_count_initialize();
    hak_routes_initialize();
    start_state = START_DONE;
    settings.background = 1;
    fake_os.maps_at_left = 0; /* no more than that */
    fake_os.reserves_left = 0;
    for (uint32_t i = 0; i < heaps; i++) library_heaps[i] = hak_heap_acquire();
    model_name(&hak_ranges[0]->super_slabs[0].free_units, "free units");
    model_name(&hak_ranges[0]->groups[0].hints[HAK_DIRTY_HINT], "dirty index");
    model_name(&hak_ranges[0]->groups[0].hints[0], "fresh index");
    model_name(&hak_ranges[0]->page_map[0], "page map[0]");
    model_name(&hak_ranges[0]->page_map[1], "page map[1]");
    for (uint32_t i = 0; i < 2; i++) {
        model_name(&hak_ranges[0]->slabs[i].state, i == 0 ? "state of slab 0" : "state of slab 1");
        model_name(&hak_ranges[0]->slabs[i].inline_bits[0], i == 0 ? "bits of slab 0" : "bits of slab 1");
    }
    for (uint32_t i = PAIR; i <= WIDE; i++) {
        static const char *const names[][2] = {
            {"", ""}, {"pairs", "index of pairs"}, {"triples", "index of triples"}, {"wide", "index of wide"}};
        model_name(&hak_ranges[0]->super_slabs[0].partial[i], names[i][0]);
        model_name(&hak_ranges[0]->groups[0].hints[HAK_PARTIAL_HINT + i], names[i][1]);
    }
}

/* ---- the program --------------------------------------------------------------------------------------------- */

static uint64_t word_for(void *block) { return (uintptr_t)block ^ 0x5a5a5a5a; }

void library_touch(void *block) {
    uint64_t *word = block;
    model_assert(*word == word_for(block), "a block keeps what is written to it");
    *word = word_for(block);
}

void library_touch_new(void *block) { *(uint64_t *)block = word_for(block); }

void *library_take(struct hak_heap *heap, uint32_t size_class) {
    void *block;
    if (heap != NULL && !hak_heap_begin_slow_path(heap)) heap = NULL;
    uint32_t count = hak_pool_take(heap, size_class, &block + 1, 1);
    if (heap != NULL) hak_heap_end_slow_path(heap);
    if (count == 0) return NULL;
    library_touch_new(block);
    return block;
}

void library_put(struct hak_heap *heap, uint32_t size_class, void *block) {
    library_touch(block);
    *(uint64_t *)block = 0;
    if (heap != NULL && !hak_heap_begin_slow_path(heap)) heap = NULL;
    hak_pool_put(heap, size_class, &block, 1);
    if (heap != NULL) hak_heap_end_slow_path(heap);
}

void library_cache(struct hak_heap *heap, uint32_t size_class, void *block) {
    hak_heap_close_bin(heap, size_class);
    hak_heap_grow_bin(heap, size_class);
    hak_heap_open_bin(heap, size_class);
    struct hak_bin *bin = &heap->bins[size_class];
    library_touch(block);
    *(uint64_t *)block = 0;
    *bin->top = block;
    hak_bin_set_top(bin, bin->top + 1);
}

void library_free_to_wait(uint32_t size_class, void *block) {
    library_touch(block);
    *(uint64_t *)block = 0;
    free_to_quarantine(block, size_class);
}

/* ---- checks -------------------------------------------------------------------------------------------------- */

static uint32_t count_in_bins(struct hak_heap *heap, const struct hak_slab *slab, uint32_t size_class) {
    uint32_t count = 0;
    struct hak_bin *bin = &heap->bins[size_class];
    for (void **slot = hak_heap_lowest(heap, size_class); slot < bin->top; slot++)
        count += (uintptr_t)*slot - slab->start < hak_size_classes[size_class].unit_count * HAK_UNIT_BYTES;
    return count;
}

static bool is_linked(const struct hak_heap *heap, const struct hak_slab *slab, uint32_t size_class) {
    for (const struct hak_slab *at = heap->partial[size_class].first; at != NULL; at = at->next)
        if (at == slab) return true;
    return false;
}

/* Blocks of a slab that are the program's. */
static uint32_t check_slab(struct hak_range *range, struct hak_slab *slab, uint32_t size_class) {
    uint32_t unit = hak_region_unit_of(range, slab), super_slab = unit / HAK_UNITS_PER_SUPER_SLAB;
    uint32_t free_blocks = hak_slab_count_bits(slab->bits, slab->block_count), binned = 0;
    uint32_t kind = slab->state & HAK_SLAB_KIND_MASK, holders = 0;
    bool is_pooled = range->super_slabs[super_slab].partial[size_class] >> unit % HAK_UNITS_PER_SUPER_SLAB & 1;
    bool is_hinted = hak_hint_next(range, HAK_PARTIAL_HINT + size_class, super_slab) == super_slab;
    model_assert(slab->size_class == size_class, "the record is of the page map's class");
    for (uint32_t c = PAIR; c < HAK_CLASS_LIMIT; c++)
        if (c != size_class)
            model_assert((range->super_slabs[super_slab].partial[c] >> unit % HAK_UNITS_PER_SUPER_SLAB & 1) == 0,
                         "a slab is in the set of its class only");
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next) {
        /* Nothing is believed of the one, and no heap has blocks of the others. */
        if (heap->in_use == HAK_HEAP_GIVEN_UP || size_class > HAK_SMALL_CLASS_COUNT) continue;
        binned += count_in_bins(heap, slab, size_class);
        if (!is_linked(heap, slab, size_class)) continue;
        holders++;
        model_assert(slab->state == hak_slab_state(HAK_SLAB_HELD, heap->number), "a heap's slab is HELD by it");
    }
    free_blocks += hak_slab_count_claimed(slab, slab->block_count);
    model_assert(holders + is_pooled == (kind != HAK_SLAB_FULL), "a slab that is not full is in one place");
    model_assert(kind != HAK_SLAB_FULL || free_blocks == 0, "a full slab has no free blocks");
    is_hinted &= range->summaries[0].hints[HAK_PARTIAL_HINT + size_class] & 1;
    model_assert(kind == HAK_SLAB_POOLED ? is_pooled && is_hinted : !is_pooled, "a pooled slab is found");
    model_assert(kind != HAK_SLAB_POOLED || free_blocks < slab->block_count, "no empty slab stays in the pool (S8)");
    model_assert(free_blocks + binned <= slab->block_count, "no block is in two places");
    return slab->block_count - free_blocks - binned;
}

static bool is_free_unit(const struct hak_range *range, uint32_t unit) {
    uint64_t free_units = range->super_slabs[unit / HAK_UNITS_PER_SUPER_SLAB].free_units;
    return (free_units | free_units >> 32) >> unit % HAK_UNITS_PER_SUPER_SLAB & 1;
}

void library_check_run(const struct hak_place *run) {
    const struct hak_range *range = hak_region_range_of_record(run->slab);
    uint32_t first = hak_region_unit_of(range, run->slab), count = units_for(run->bytes);
    model_assert(run->slab->state == run_live, "nobody is at a run");
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size_class = i == 0 ? HAK_CLASS_RUN_HEAD : HAK_CLASS_RUN_BODY;
        model_assert(hak_page_map_class(range, first + i) == size_class, "a run has the units that its record says");
        model_assert(!is_free_unit(range, first + i), "no unit of a run is free");
    }
}

static void check_hints(const struct hak_range *range, uint32_t super_slab) {
    for (uint32_t hint = 0; hint < HAK_PARTIAL_HINT; hint++)
        model_assert(!hint_holds(range, hint, super_slab) || (hak_hint_next(range, hint, super_slab) == super_slab &&
                                                              (range->summaries[0].hints[hint] & 1) != 0),
                     "free units are found");
}

/* The heaps that nobody has: each is found once, and has nothing. Kept ones are found. */
static void check_heaps(void) {
    uint32_t unused = 0, found = 0;
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next) {
        uint32_t stands = 0;
        for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++) stands += kept_heaps[i] == heap;
        model_assert(stands == (heap->in_use == HAK_HEAP_KEPT), "a heap that is kept is found, and no other one is");
        unused += heap->in_use == HAK_HEAP_UNUSED;
    }
    for (struct hak_heap *heap = topmost(unused_heaps); heap != NULL; heap = heap->below, found++) {
        model_assert(heap->in_use == HAK_HEAP_UNUSED && found < unused, "who has a heap is the only one");
        for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
            model_assert(heap->bins[i].limit == NULL && heap->slots[i].start == NULL && heap->partial[i].first == NULL,
                         "an unused heap is blank");
    }
    model_assert(found == unused, "an unused heap is found");
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next)
        found -= heap->in_use == HAK_HEAP_UNUSED || heap->in_use == HAK_HEAP_ORPHANED;
    for (struct hak_heap *heap = topmost(orphaned_heaps); heap != NULL; heap = heap->below, found++)
        model_assert(heap->in_use == HAK_HEAP_ORPHANED, "who has an orphaned heap is the only one");
    model_assert(found == 0, "an orphaned heap is found");
}

static uint32_t check_all(uint64_t *dirty_units) {
    uint32_t blocks = 0;
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next)
        if (heap->in_use != HAK_HEAP_GIVEN_UP) hak_heap_recheck_full(heap);
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_ranges[i] != NULL; i++) {
        struct hak_range *range = hak_ranges[i];
        uint32_t units = range->super_slab_count * HAK_UNITS_PER_SUPER_SLAB;
        for (uint32_t s = 0; s < range->super_slab_count; s++) check_hints(range, s);
        for (uint32_t unit = 0; unit < units; unit++) {
            uint64_t free_units = range->super_slabs[unit / HAK_UNITS_PER_SUPER_SLAB].free_units;
            bool is_free = (free_units | free_units >> 32) >> unit % HAK_UNITS_PER_SUPER_SLAB & 1;
            uint32_t size_class = hak_page_map_class(range, unit);
            *dirty_units += hak_units_dirty(free_units) >> unit % HAK_UNITS_PER_SUPER_SLAB & 1;
            model_assert(!is_free || size_class == HAK_CLASS_NONE, "R2");
            if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) continue;
            if (unit % hak_size_classes[size_class].unit_count != 0) {
                model_assert(hak_page_map_class(range, unit - 1) == size_class, "all units of a slab have its class");
                continue;
            }
            blocks += check_slab(range, &range->slabs[unit], size_class);
        }
    }
    return blocks;
}

uint32_t library_count_lone_units(void) {
    uint32_t lost = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_ranges[i] != NULL; i++) {
        const struct hak_range *range = hak_ranges[i];
        for (uint32_t unit = 0; unit < range->super_slab_count * HAK_UNITS_PER_SUPER_SLAB; unit++) {
            uint32_t size_class = hak_page_map_class(range, unit);
            bool is_slab = size_class != HAK_CLASS_NONE && size_class <= HAK_SLAB_CLASS_COUNT;
            lost += !is_slab && !is_free_unit(range, unit);
        }
    }
    for (const struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next)
        if (heap->in_use != HAK_HEAP_GIVEN_UP) lost -= heap->empty_count;
    return lost;
}

void library_drain(struct hak_heap *heap) {
    struct hak_drain drain = {.first_taken = NULL};
    if (!hak_heap_begin_drain(heap, &drain)) return;
    hak_heap_drain_taken(&drain);
    hak_heap_end_drains(&drain);
}

uint32_t library_check(void) {
    uint64_t dirty_units = 0;
    check_heaps();
    uint32_t blocks = check_all(&dirty_units);
    model_assert(dirty_units == hak_dirty_units, "hak_dirty_units counts the dirty units");
    return blocks;
}
