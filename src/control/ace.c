#include "control/ace.h"

#include <string.h>

#include "base/knobs.h"
#include "base/memory.h"
#include "base/profile.h"
#include "control/arithmetic.h"
#include "control/life_cycle.h"
#include "control/phase.h"
#include "control/reward.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/bin_size.h"
#include "pool/heap.h"
#include "region/directory.h"
#include "region/mapping_cache.h"

/* What a dimension may save, and from which share of it on it is worth trying. */
enum saving { SAVES_MISS, SAVES_KERNEL, SAVES_LARGE };

static const double worth_miss = 0.02, worth_kernel = 0.03, worth_kept = 0.25;

static const uint64_t worth_large = 16; /* page runs and mappings in a period */
static const double worth_class = 0.1;  /* of the misses */

enum {
    CLASS_DIMENSIONS = 4, /* bins of the classes that miss most; then knobs, then the strategies */
    CLASS_ARMS = 5,       /* half of the slots, all, 2, 4, 8 times as many */
    EVENTS = 64,
    POINTS = 64,
    SAMPLE_MASK = 63,  /* of 64 misses one is timed, */
    TRYING_MASK = 3,   /* while something is tried one of 4: bins that are to be smaller are, soon */
    RECENT = 4,        /* periods */
    FEW_BLOCKS = 4096, /* that left bins in a period, 64 of one class at once: they say nothing of the program */
    BUSY_SHARE = 16,   /* a program that takes less than this part of one processor is left alone */
};

enum { USED_PART, LARGE_PART, THREADS_PART, REMOTE_PART, PARTS };
_Static_assert((int)PARTS == (int)HAK_SIGNATURE_PARTS, "a signature has these");

struct knob_dimension {
    enum hak_knob_number knob;
    uint32_t factor;
    enum saving saving;
};

static const struct knob_dimension knob_dimensions[] = {
#define HAK_ARMS(name, arms, first, factor, periods, saving) {HAK_KNOB_##name, factor, SAVES_##saving},
#include "control/arms.def"
#undef HAK_ARMS
    {HAK_KNOB_run_limit_bytes, 0, SAVES_LARGE},
};

enum {
    KNOBS = sizeof knob_dimensions / sizeof knob_dimensions[0],
    COUNT = CLASS_DIMENSIONS + KNOBS,
    RATED = COUNT - 1,
    CLASS_BITS = (1 << CLASS_DIMENSIONS) - 1,
    BUDGET_BIT = 1 << CLASS_DIMENSIONS, /* the first row of arms.def */
};
_Static_assert((int)COUNT <= (int)HAK_DIMENSIONS && (int)HAK_STRATEGIES <= (int)HAK_ACE_ARMS, "all fit");

static const struct hak_dimension dimensions[COUNT] = {
    {CLASS_ARMS, 1, 2, false},
    {CLASS_ARMS, 1, 2, false},
    {CLASS_ARMS, 1, 2, false},
    {CLASS_ARMS, 1, 2, false},
#define HAK_ARMS(name, arms, first, factor, periods, saving) {arms, first, periods, false},
#include "control/arms.def"
#undef HAK_ARMS
    {HAK_STRATEGIES, HAK_STRATEGIES - 1, 2, true},
};

/* What is to be tried: a dimension and an arm, so that 0 is nothing. */
static HAK_ATOMIC(uint32_t) asked;
enum { ARM_BITS = 8 };

/* Sums over heaps at some moment. */
struct sums {
    uint64_t misses, large, flushed, remote, sampled_ticks, samples, active_heaps;
    uint64_t cached_bytes;
    uint64_t class_misses[HAK_CLASS_LIMIT];
    struct hak_os_usage usage;
    uint64_t ticks, now_ms;
};

struct learned {
    struct hak_life_cycle cycle;
    uint32_t classes[CLASS_DIMENSIONS]; /* 0: none */
};

static struct hak_ace_settings configured;
static uint64_t first_values[KNOBS]; /* where the knobs stand when main begins */

/* The background thread's. */
static struct {
    bool has_begun, has_sums;
    uint64_t begun_ms, timed_ms, timed_ticks; /* when steps began, and when slow paths began to be timed */
    uint64_t value[KNOBS];                    /* where the knobs were put */
    uint32_t own;                             /* bits of dimensions that nobody else turns (A2) */
    struct sums last;
    struct hak_phases phases;
    struct learned learned[HAK_PHASES];
    struct hak_rating rating;
    uint64_t used_bytes[RECENT]; /* at the ends of the last periods, by number */
    uint64_t recent_bytes;       /* the most of them */
    double mean_costs[3];
} ace;

/* ---- What is shown ----------------------------------------------------------------------------------------------- */

struct event {
    HAK_ATOMIC(uint64_t) ms, from, to;
    HAK_ATOMIC(uint32_t) dimension, block_bytes, why, phase;
    HAK_ATOMIC(int32_t) gain; /* thousandths */
    HAK_ATOMIC(uint32_t) odds;
};
struct point {
    HAK_ATOMIC(uint64_t) ms;
    HAK_ATOMIC(uint32_t) cost, miss, kernel, kept; /* millionths */
    HAK_ATOMIC(uint32_t) phase, state;
};

static struct {
    HAK_ATOMIC(uint32_t) event_count; /* so far */
    struct event events[EVENTS];
    HAK_ATOMIC(uint32_t) point_count;
    struct point points[POINTS];
    HAK_ATOMIC(uint32_t) periods_per_point, periods_in_point;
    HAK_ATOMIC(uint32_t) state, phase, phase_count, kept, rolled_back;
    HAK_ATOMIC(uint32_t) points_of_strategy[HAK_STRATEGIES], matches[HAK_STRATEGIES];
    HAK_ATOMIC(uint32_t) tried, tried_block_bytes; /* dimension that has another arm than the chosen one, */
    HAK_ATOMIC(uint64_t) chosen;                   /* and what that is */
} shown = {.periods_per_point = 1, .tried = COUNT};

static uint32_t millionths(double share) { return (uint32_t)(hak_clamp(share, 0, HAK_COST_MOST) * 1e6 + 0.5); }

static void show_event(const struct hak_move *move, uint64_t from, uint64_t to, uint32_t block_bytes) {
    uint32_t count = hak_atomic_load(&shown.event_count, relaxed);
    struct event *event = &shown.events[count % EVENTS];
    hak_atomic_store(&event->ms, hak_os_clock_ms() - ace.begun_ms, relaxed);
    hak_atomic_store(&event->from, from, relaxed);
    hak_atomic_store(&event->to, to, relaxed);
    hak_atomic_store(&event->dimension, move->dimension, relaxed);
    hak_atomic_store(&event->block_bytes, block_bytes, relaxed);
    hak_atomic_store(&event->why, (uint32_t)move->why, relaxed);
    hak_atomic_store(&event->phase, ace.phases.current, relaxed);
    hak_atomic_store(&event->gain, (int32_t)(hak_clamp(move->gain, -1000, 1) * 1000), relaxed);
    hak_atomic_store(&event->odds, (uint32_t)hak_clamp(move->odds, 0, 1e6), relaxed);
    hak_atomic_store(&shown.event_count, count + 1, relaxed);
    if (move->why == HAK_WHY_KEEP) hak_counter_add(&shown.kept, 1);
    if (move->why == HAK_WHY_ROLL_BACK) hak_counter_add(&shown.rolled_back, 1);
}

#define FOR_COURSE(row) row(cost) row(miss) row(kernel) row(kept)

static void merge(HAK_ATOMIC(uint32_t) *to, const HAK_ATOMIC(uint32_t) *first, const HAK_ATOMIC(uint32_t) *second) {
    uint64_t sum = (uint64_t)hak_atomic_load(first, relaxed) + hak_atomic_load(second, relaxed);
    hak_atomic_store(to, (uint32_t)(sum / 2), relaxed);
}

/* Two become one. */
static void halve_points(void) {
    for (uint32_t i = 0; i < POINTS; i += 2) {
        struct point *to = &shown.points[i / 2];
        const struct point *first = &shown.points[i], *second = &shown.points[i + 1];
        hak_atomic_store(&to->ms, hak_atomic_load(&second->ms, relaxed), relaxed);
        hak_atomic_store(&to->phase, hak_atomic_load(&second->phase, relaxed), relaxed);
        hak_atomic_store(&to->state, hak_atomic_load(&second->state, relaxed), relaxed);
#define MERGE(field) merge(&to->field, &first->field, &second->field);
        FOR_COURSE(MERGE)
#undef MERGE
    }
    hak_atomic_store(&shown.point_count, POINTS / 2, relaxed);
    hak_counter_add(&shown.periods_per_point, hak_atomic_load(&shown.periods_per_point, relaxed));
}

/* Points are means of as many periods each, of more when there is no place left. */
static void show_point(const struct hak_costs *costs, double cost) {
    uint32_t in_point = hak_atomic_load(&shown.periods_in_point, relaxed);
    if (in_point >= hak_atomic_load(&shown.periods_per_point, relaxed)) {
        if (hak_atomic_load(&shown.point_count, relaxed) == POINTS) halve_points();
        in_point = 0;
    }
    if (in_point == 0) hak_counter_add(&shown.point_count, 1);
    uint32_t count = hak_atomic_load(&shown.point_count, relaxed);
    struct point *point = &shown.points[count - 1];
    uint32_t now[] = {millionths(cost), millionths(costs->miss), millionths(costs->kernel), millionths(costs->kept)},
             at = 0;
#define ADD(field)                                                                                                     \
    {                                                                                                                  \
        uint64_t before = in_point == 0 ? 0 : hak_atomic_load(&point->field, relaxed);                                 \
        hak_atomic_store(&point->field, (uint32_t)((before * in_point + now[at++]) / (in_point + 1)), relaxed);        \
    }
    FOR_COURSE(ADD)
#undef ADD
    hak_atomic_store(&point->ms, hak_os_clock_ms() - ace.begun_ms, relaxed);
    hak_atomic_store(&point->phase, ace.phases.current, relaxed);
    hak_atomic_store(&point->state, (uint32_t)ace.learned[ace.phases.current].cycle.state, relaxed);
    hak_atomic_store(&shown.periods_in_point, in_point + 1, relaxed);
}

static void show_state(void) {
    hak_atomic_store(&shown.phase, ace.phases.current, relaxed);
    hak_atomic_store(&shown.phase_count, ace.phases.count, relaxed);
    hak_atomic_store(&shown.state, (uint32_t)ace.learned[ace.phases.current].cycle.state, relaxed);
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) {
        hak_atomic_store(&shown.points_of_strategy[i], (uint32_t)ace.rating.points[i], relaxed);
        hak_atomic_store(&shown.matches[i], ace.rating.matches[i], relaxed);
    }
}

/* ---- Turning the knobs ------------------------------------------------------------------------------------------- */

static uint64_t knob_value(uint32_t dimension, uint32_t arm) {
    const struct knob_dimension *knob = &knob_dimensions[dimension - CLASS_DIMENSIONS];
    const struct hak_knob_row *row = &hak_knob_table[knob->knob];
    uint64_t value = first_values[dimension - CLASS_DIMENSIONS];
    if (dimension == RATED) return hak_strategy_bytes(arm);
    for (uint32_t i = dimensions[dimension].first; i > arm; i--) value /= knob->factor;
    for (uint32_t i = dimensions[dimension].first; i < arm && value <= row->highest; i++) value *= knob->factor;
    return value < row->lowest ? row->lowest : value > row->highest ? row->highest : value;
}

/* 0: as the knobs say. */
static uint16_t class_value(uint32_t size_class, uint32_t arm) {
    if (arm == 1) return 0;
    size_t slots = hak_heap_usual_slots(size_class) << arm >> 1;
    if (slots < HAK_LEAST_SLOTS) slots = HAK_LEAST_SLOTS;
    return (uint16_t)(slots > HAK_CLASS_MOST_SLOTS ? HAK_CLASS_MOST_SLOTS : slots);
}

/* At most one dimension is tried (Y2). */
static void show_trial(void) {
    const struct learned *learned = &ace.learned[ace.phases.current];
    uint32_t focus = learned->cycle.focus;
    bool is_class = focus < CLASS_DIMENSIONS, is_tried = focus < COUNT && (ace.own >> focus & 1) != 0 &&
                                                         (!is_class || learned->classes[focus] != 0) &&
                                                         learned->cycle.in_force[focus] != learned->cycle.chosen[focus];
    hak_atomic_store(&shown.tried, is_tried ? focus : COUNT, relaxed);
    if (!is_tried) return;
    uint32_t size_class = is_class ? learned->classes[focus] : 0, arm = learned->cycle.chosen[focus];
    hak_atomic_store(&shown.tried_block_bytes, hak_size_classes[size_class].block_bytes, relaxed);
    hak_atomic_store(&shown.chosen, is_class ? class_value(size_class, arm) : knob_value(focus, arm), relaxed);
}

static void turn(uint32_t dimension, const struct hak_move *move) {
    const struct learned *learned = &ace.learned[ace.phases.current];
    uint32_t arm = move->to, bit = (uint32_t)1 << dimension;
    if (dimension < CLASS_DIMENSIONS) {
        uint32_t size_class = learned->classes[dimension];
        if (size_class == 0) return;
        size_t from = hak_heap_most_slots(size_class);
        uint16_t value = class_value(size_class, arm);
        hak_atomic_store(&hak_class_slots[size_class], value, relaxed);
        size_t to = hak_heap_most_slots(size_class);
        if (from != to || move->why == HAK_WHY_ROLL_BACK || move->why == HAK_WHY_KEEP)
            show_event(move, from, to, hak_size_classes[size_class].block_bytes);
        return;
    }
    uint32_t at = dimension - CLASS_DIMENSIONS;
    if ((ace.own & bit) == 0) return;
    uint64_t from = ace.value[at], to = knob_value(dimension, arm);
    if (!hak_knob_turn(knob_dimensions[at].knob, from, to)) return; /* A1, A2 */
    ace.value[at] = to;
    if (from != to || move->why == HAK_WHY_ROLL_BACK || move->why == HAK_WHY_KEEP) show_event(move, from, to, 0);
}

static void see_whose_knobs(void) { /* A2 */
    /* Bins of classes follow from what it says. */
    if (hak_knob_is_given(HAK_KNOB_bin_bytes)) ace.own &= ~(uint32_t)CLASS_BITS;
    for (uint32_t i = 0; i < KNOBS; i++)
        if (hak_knob_is_given(knob_dimensions[i].knob)) ace.own &= ~((uint32_t)1 << (CLASS_DIMENSIONS + i));
}

static bool has_class(const struct learned *learned, uint32_t size_class) {
    for (uint32_t i = 0; i < CLASS_DIMENSIONS; i++)
        if (learned->classes[i] == size_class) return true;
    return false;
}

/* All as the current phase has it. */
static void turn_all(void) {
    const struct hak_life_cycle *cycle = &ace.learned[ace.phases.current].cycle;
    const struct hak_move back = {.why = HAK_WHY_PHASE};
    see_whose_knobs();
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        if (has_class(&ace.learned[ace.phases.current], i) || hak_atomic_load(&hak_class_slots[i], relaxed) == 0)
            continue;
        show_event(&back, hak_heap_most_slots(i), hak_heap_usual_slots(i), hak_size_classes[i].block_bytes);
        hak_atomic_store(&hak_class_slots[i], 0, relaxed);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        struct hak_move move = {.dimension = i, .to = cycle->in_force[i], .why = HAK_WHY_PHASE};
        turn(i, &move);
    }
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static void sum_heap(const struct hak_heap *heap, struct sums *sums) {
    uint64_t misses = hak_atomic_load(&heap->slow_paths, relaxed);
    sums->misses += misses;
    sums->large += hak_atomic_load(&heap->counters.large_allocs, relaxed);
    sums->flushed += hak_atomic_load(&heap->counters.flushed_blocks, relaxed);
    sums->remote += hak_atomic_load(&heap->counters.remote_frees, relaxed);
    sums->sampled_ticks += hak_atomic_load(&heap->sampled_ticks, relaxed);
    sums->samples += hak_atomic_load(&heap->sample_count, relaxed);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        sums->class_misses[i] += hak_atomic_load(&heap->class_misses[i], relaxed);
        sums->cached_bytes += hak_heap_cached(heap, i) * hak_size_classes[i].block_bytes;
    }
    sums->active_heaps += hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_IN_USE;
}

static void take_sums(struct sums *sums, bool times) {
    memset(sums, 0, sizeof *sums);
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) sum_heap(heap, sums);
    sums->usage = hak_os_usage(configured.may_ask);
    sums->ticks = times ? hak_ticks() : 0;
    sums->now_ms = hak_os_clock_ms();
}

/* Memory that is in use: of SuperSlabs, from their words, and mappings. */
static uint64_t used_bytes(void) {
    uint64_t units = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++) {
        const struct hak_range *range = hak_region_range(i);
        uint32_t count = hak_region_super_slabs(range);
        for (uint32_t k = 0; k < count; k++)
            units += HAK_UNITS_PER_SUPER_SLAB -
                     hak_bit_count(hak_units_free(hak_atomic_load(&range->super_slabs[k].free_units, relaxed)));
    }
    return units * HAK_UNIT_BYTES + hak_atomic_load(&hak_mapping_bytes, relaxed);
}

/* A heap that fills and empties many times in a second looks large or small, by when one looks. What it needed of late,
 * it will need again: that is its size, and what lies free up to there is not kept in vain. */
static void see_use(struct hak_period *period) {
    uint64_t used = period->used_bytes, recent = used;
    ace.used_bytes[ace.phases.period % RECENT] = used;
    for (uint32_t i = 0; i < RECENT; i++) recent = ace.used_bytes[i] > recent ? ace.used_bytes[i] : recent;
    uint64_t free_bytes = recent - used < period->kept_bytes ? recent - used : period->kept_bytes;
    ace.recent_bytes = recent;
    period->used_bytes = used + free_bytes;
    period->kept_bytes -= free_bytes;
}

static double ns_per_tick(const struct sums *now) {
    double ticks = (double)(now->ticks - ace.timed_ticks), ms = (double)(now->now_ms - ace.timed_ms);
    return ticks > 0 && ms > 0 ? ms * 1e6 / ticks : 0;
}

static struct hak_period period_between(const struct sums *from, const struct sums *to) {
    uint64_t samples = to->samples - from->samples, misses = to->misses - from->misses;
    double ticks = samples == 0 ? 0 : (double)(to->sampled_ticks - from->sampled_ticks) / (double)samples;
    return (struct hak_period){
        .cpu_ns = to->usage.cpu_ns - from->usage.cpu_ns,
        .kernel_ns = to->usage.kernel_ns - from->usage.kernel_ns,
        .miss_ns = (uint64_t)(ticks * ns_per_tick(to) * (double)misses),
        .kept_bytes =
            hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES + hak_mapping_cache_bytes() + to->cached_bytes,
        .used_bytes = used_bytes(),
    };
}

static double log_of(double count) { return hak_log2(1 + (count > 0 ? count : 0)); }

/* An arm other than the chosen one is in force. */
static bool is_trying(const struct hak_life_cycle *cycle) {
    return cycle->focus < COUNT && cycle->in_force[cycle->focus] != cycle->chosen[cycle->focus];
}

/* How many of the blocks that left bins were of slabs that their thread does not hold, 0..8. How many blocks leave is
 * up to the knobs, and how many slabs are held, too: so this says something of the program only while nothing is
 * tried. */
static double remote_part(const struct sums *from, const struct sums *to) {
    uint64_t flushed = to->flushed - from->flushed, remote = to->remote - from->remote;
    if (flushed < FEW_BLOCKS || is_trying(&ace.learned[ace.phases.current].cycle)) return HAK_SIGNATURE_UNKNOWN;
    return 8 * (double)remote / (double)flushed;
}

/* What the knobs change little: how much is in use, large objects per time of the processor, how many threads, and what
 * they free of others'. */
static struct hak_signature signature_of(const struct sums *from, const struct sums *to,
                                         const struct hak_period *period) {
    double cpu_ms = (double)period->cpu_ns / 1e6 + 1;
    return (struct hak_signature){.parts = {
                                      [USED_PART] = log_of((double)ace.recent_bytes / (1 << 20)),
                                      [LARGE_PART] = log_of((double)(to->large - from->large) / cpu_ms),
                                      [THREADS_PART] = log_of((double)to->active_heaps),
                                      [REMOTE_PART] = remote_part(from, to),
                                  }};
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The classes that miss most get the places of those that are as the knobs say. */
static void choose_classes(struct learned *learned, const struct sums *from, const struct sums *to) {
    for (uint32_t place = 0; place < CLASS_DIMENSIONS; place++) {
        if (learned->cycle.chosen[place] != 1 || learned->cycle.focus == place) continue;
        uint64_t most = (uint64_t)((double)(to->misses - from->misses) * worth_class);
        learned->classes[place] = 0;
        for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
            uint64_t misses = to->class_misses[i] - from->class_misses[i];
            if (has_class(learned, i) || misses <= most) continue;
            most = misses;
            learned->classes[place] = i;
        }
    }
}

/* A larger share of the heap for its bins takes memory from the first trial on. */
static bool buys_time_with_memory(void) {
    return configured.goal == HAK_GOAL_SPEED || configured.goal == HAK_GOAL_LATENCY;
}

static uint32_t eligible_dimensions(const struct learned *learned, const struct sums *from, const struct sums *to) {
    uint32_t eligible = 0;
    double miss = ace.mean_costs[0], kernel = ace.mean_costs[1], kept = ace.mean_costs[2];
    bool has_large = to->large - from->large >= worth_large;
    for (uint32_t i = 0; i < COUNT; i++) {
        bool is_worth = false;
        enum saving saving = i < CLASS_DIMENSIONS ? SAVES_MISS : knob_dimensions[i - CLASS_DIMENSIONS].saving;
        if (i < CLASS_DIMENSIONS && learned->classes[i] == 0) continue;
        if (saving == SAVES_MISS) is_worth = miss >= worth_miss;
        else is_worth = (kernel >= worth_kernel || kept >= worth_kept) && (saving != SAVES_LARGE || has_large);
        if (is_worth) eligible |= (uint32_t)1 << i;
    }
    eligible &= ace.own;
    if (!buys_time_with_memory()) eligible &= ~(uint32_t)BUDGET_BIT;
    /* Bins of one class grow within what all may have. */
    bool has_budget = (eligible & ~learned->cycle.done & (uint32_t)BUDGET_BIT) != 0;
    return has_budget ? eligible & ~(uint32_t)CLASS_BITS : eligible;
}

static void begin_phase(struct learned *learned) {
    uint64_t slow_periods = configured.slow_ms / configured.fast_ms;
    memset(learned, 0, sizeof *learned);
    hak_life_cycle_begin(&learned->cycle, dimensions, COUNT, slow_periods == 0 ? 1 : (uint32_t)slow_periods,
                         ace.phases.period + 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t arm = dimensions[i].first;
        if (i == RATED) arm = hak_strategy_of(first_values[RATED - CLASS_DIMENSIONS]);
        learned->cycle.chosen[i] = learned->cycle.in_force[i] = (uint8_t)arm;
    }
}

static void begin(void) {
    memset(&ace, 0, sizeof ace);
    ace.has_begun = true;
    ace.begun_ms = hak_os_clock_ms();
    ace.own = ((uint32_t)1 << COUNT) - 1;
    memcpy(ace.value, first_values, sizeof first_values);
    hak_phases_begin(&ace.phases);
    hak_rating_begin(&ace.rating);
    for (uint32_t i = 0; i < HAK_PHASES; i++) begin_phase(&ace.learned[i]);
}

/* True when a trial begins: then this period is not of it. */
static bool begin_asked(struct learned *learned) {
    uint32_t wish = hak_atomic_exchange(&asked, 0, relaxed), dimension = wish >> ARM_BITS,
             arm = wish & ((1 << ARM_BITS) - 1);
    if (wish == 0 || (ace.own >> dimension & 1) == 0 || learned->cycle.chosen[dimension] == arm) return false;
    hak_life_cycle_try(&learned->cycle, dimension, arm);
    turn_all(); /* what was being tried, if anything, is no more */
    return true;
}

/* A candidate may be so bad that the program looks like another one. Its pulls are short, and then comes what was in
 * force before. */
static bool is_on_trial(const struct hak_life_cycle *cycle) { return cycle->state == HAK_CANARY && is_trying(cycle); }

/* Signatures come first: a change of phase is no effect of an arm. */
static void control(const struct sums *from, const struct sums *to) {
    struct hak_period period = period_between(from, to);
    see_use(&period);
    struct hak_costs costs = hak_costs_of(&period);
    struct hak_signature signature = signature_of(from, to, &period);
    uint32_t before = ace.phases.current;
    enum hak_phase_change change = is_on_trial(&ace.learned[before].cycle) ? hak_phases_stay(&ace.phases)
                                                                           : hak_phases_see(&ace.phases, &signature);
    const double now[] = {costs.miss, costs.kernel, costs.kept};
    for (uint32_t i = 0; i < 3; i++)
        ace.mean_costs[i] += (now[i] - ace.mean_costs[i]) * (change == HAK_PHASE_SAME ? 0.125 : 1);
    struct learned *learned = &ace.learned[ace.phases.current];
    double cost = hak_cost_by_goal(&costs, configured.goal);
    see_whose_knobs();
    if (change == HAK_PHASE_NEW || change == HAK_PHASE_KNOWN) {
        hak_life_cycle_pause(&ace.learned[before].cycle);
        if (change == HAK_PHASE_NEW) begin_phase(learned);
        hak_life_cycle_pause(&learned->cycle);
        turn_all();
    } else if (change == HAK_PHASE_SAME && !begin_asked(learned)) {
        choose_classes(learned, from, to);
        struct hak_move move =
            hak_life_cycle_step(&learned->cycle, cost, eligible_dimensions(learned, from, to), &ace.rating);
        if (move.is_made) turn(move.dimension, &move);
        if (move.why == HAK_WHY_KEEP) hak_phases_forget(&ace.phases, REMOTE_PART);
    }
    show_point(&costs, cost);
    show_state();
    show_trial();
}

/* ---- From the background thread ---------------------------------------------------------------------------------- */

void hak_ace_configure(const struct hak_ace_settings *given) {
    configured = *given;
    for (uint32_t i = 0; i < KNOBS; i++) first_values[i] = hak_knob_get(knob_dimensions[i].knob);
}

static bool is_acting(void) { return configured.is_enabled && !configured.is_pinned; }

const char *hak_ace_refusal(enum hak_knob_number knob) {
    if (!configured.is_enabled) return "the controller is off: HAKMEM_ACE_ENABLED=0";
    if (configured.is_pinned)
        return "a policy says where the knobs stand, and the controller turns none: HAKMEM_POLICY";
    return hak_knob_is_given(knob) ? "it was given its value by hand, and the controller leaves it at that" : NULL;
}

uint32_t hak_ace_arms(enum hak_knob_number knob, uint64_t values[HAK_ACE_ARMS]) {
    for (uint32_t i = CLASS_DIMENSIONS; is_acting() && i < COUNT; i++) {
        if (knob_dimensions[i - CLASS_DIMENSIONS].knob != knob) continue;
        for (uint32_t arm = 0; arm < dimensions[i].arm_count; arm++) values[arm] = knob_value(i, arm);
        return dimensions[i].arm_count;
    }
    return 0;
}

bool hak_ace_try(enum hak_knob_number knob, uint64_t value) {
    uint64_t values[HAK_ACE_ARMS];
    uint32_t count = hak_ace_arms(knob, values), dimension = CLASS_DIMENSIONS;
    for (uint32_t arm = 0; arm < count; arm++) {
        if (values[arm] != value) continue;
        while (knob_dimensions[dimension - CLASS_DIMENSIONS].knob != knob) dimension++;
        hak_atomic_store(&asked, dimension << ARM_BITS | arm, relaxed);
        return true;
    }
    return false;
}

/* Something is tried, or about to be. */
static bool has_focus(void) { return ace.learned[ace.phases.current].cycle.focus < COUNT; }

uint64_t hak_ace_wait_ms(uint64_t most_ms) {
    return ace.has_begun && ace.has_sums && has_focus() && configured.fast_ms < most_ms ? configured.fast_ms : most_ms;
}

void hak_ace_step(bool times) {
    static struct sums now;
    if (!is_acting()) return;
    if (!ace.has_begun) begin();
    if (ace.has_sums && hak_os_clock_ms() - ace.last.now_ms < configured.fast_ms / 4 * 3) return;
    take_sums(&now, times);
    if (times && ace.timed_ticks == 0) {
        ace.timed_ms = now.now_ms;
        ace.timed_ticks = now.ticks;
    }
    bool is_tight = hak_atomic_load(&hak_memory_is_tight, relaxed), had_sums = ace.has_sums;
    uint64_t elapsed_ms = now.now_ms - ace.last.now_ms, cpu_ns = now.usage.cpu_ns - ace.last.usage.cpu_ns;
    if (is_tight) hak_ace_rest();
    else if (had_sums && cpu_ns / 1000000 >= elapsed_ms / BUSY_SHARE) control(&ace.last, &now);
    if (!is_tight && times) hak_atomic_store(&hak_miss_sample_mask, has_focus() ? TRYING_MASK : SAMPLE_MASK, relaxed);
    ace.last = now;
    ace.has_sums = !is_tight;
}

void hak_ace_rest(void) {
    if (!ace.has_begun || !ace.has_sums) return;
    ace.has_sums = false;
    hak_atomic_store(&hak_miss_sample_mask, UINT64_MAX, relaxed);
    hak_life_cycle_pause(&ace.learned[ace.phases.current].cycle);
    turn_all();
    show_trial();
}

void hak_ace_after_fork(void) {
    if (!ace.has_begun) return;
    for (uint32_t i = 0; i < KNOBS; i++) /* A3 */
        if (!hak_knob_is_given(knob_dimensions[i].knob)) hak_knob_set(knob_dimensions[i].knob, first_values[i]);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) hak_atomic_store(&hak_class_slots[i], 0, relaxed);
    hak_atomic_store(&hak_miss_sample_mask, UINT64_MAX, relaxed);
    hak_atomic_store(&shown.tried, COUNT, relaxed);
    hak_atomic_store(&asked, 0, relaxed);
    ace.has_begun = false;
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static const char *const state_names[] = {"learn", "canary", "frozen"};
static const char *const why_names[] = {"explore", "canary", "keep", "roll back", "end", "phase"};
static const char *const names_of_goals[] = {"balanced", "balanced", "speed", "memory", "latency"};

static const char *name_of_dimension(uint32_t dimension) {
    return dimension < CLASS_DIMENSIONS || dimension >= COUNT
               ? "class_slots"
               : hak_knob_table[knob_dimensions[dimension - CLASS_DIMENSIONS].knob].name;
}

static const char *state_name(void) {
    return !configured.is_enabled ? "off"
           : configured.is_pinned ? "pinned"
                                  : state_names[hak_atomic_load(&shown.state, relaxed) % 3];
}

/* Calls `write` for the last `most` events, oldest first. */
static void for_each_event(void (*write)(const struct event *event, bool is_first, struct hak_text *out), uint32_t most,
                           struct hak_text *out) {
    uint32_t count = hak_atomic_load(&shown.event_count, relaxed);
    uint32_t first = count > most ? count - most : 0;
    for (uint32_t i = first; i < count; i++) write(&shown.events[i % EVENTS], i == first, out);
}

static void write_text_event(const struct event *event, bool is_first, struct hak_text *out) {
    (void)is_first;
    int gain = hak_atomic_load(&event->gain, relaxed);
    hak_text_add(out, "  %10lu ms  %-10s %-20s", (unsigned long)hak_atomic_load(&event->ms, relaxed),
                 why_names[hak_atomic_load(&event->why, relaxed) % 6],
                 name_of_dimension(hak_atomic_load(&event->dimension, relaxed)));
    uint32_t block_bytes = hak_atomic_load(&event->block_bytes, relaxed);
    if (block_bytes != 0) hak_text_add(out, " (%u)", block_bytes);
    hak_text_add(out, " %lu -> %lu, gain %s%d/1000, odds %u\n", (unsigned long)hak_atomic_load(&event->from, relaxed),
                 (unsigned long)hak_atomic_load(&event->to, relaxed), gain < 0 ? "-" : "", gain < 0 ? -gain : gain,
                 hak_atomic_load(&event->odds, relaxed));
}

void hak_ace_write_text(struct hak_text *out) {
    enum { LAST_EVENTS = 16 };
    hak_text_add(out, "  control: %s, goal %s, profile %s, phase %u of %u, %u kept, %u rolled back\n", state_name(),
                 names_of_goals[configured.goal], hak_profile_names[configured.profile],
                 hak_atomic_load(&shown.phase, relaxed), hak_atomic_load(&shown.phase_count, relaxed),
                 hak_atomic_load(&shown.kept, relaxed), hak_atomic_load(&shown.rolled_back, relaxed));
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        if (hak_knob_get((enum hak_knob_number)i) != hak_knob_table[i].initial)
            hak_text_add(out, "  knob %-20s %16lu (default %lu)\n", hak_knob_table[i].name,
                         (unsigned long)hak_knob_get((enum hak_knob_number)i),
                         (unsigned long)hak_knob_table[i].initial);
    for_each_event(write_text_event, LAST_EVENTS, out);
}

static void write_json_event(const struct event *event, bool is_first, struct hak_text *out) {
    int gain = hak_atomic_load(&event->gain, relaxed);
    hak_text_add(out, "%s\n   {\"ms\": %lu, \"phase\": %u, \"why\": \"%s\", \"knob\": \"%s\", \"block_bytes\": %u",
                 is_first ? "" : ",", (unsigned long)hak_atomic_load(&event->ms, relaxed),
                 hak_atomic_load(&event->phase, relaxed), why_names[hak_atomic_load(&event->why, relaxed) % 6],
                 name_of_dimension(hak_atomic_load(&event->dimension, relaxed)),
                 hak_atomic_load(&event->block_bytes, relaxed));
    hak_text_add(out, ", \"from\": %lu, \"to\": %lu, \"gain_permille\": %s%d, \"odds\": %u}",
                 (unsigned long)hak_atomic_load(&event->from, relaxed),
                 (unsigned long)hak_atomic_load(&event->to, relaxed), gain < 0 ? "-" : "", gain < 0 ? -gain : gain,
                 hak_atomic_load(&event->odds, relaxed));
}

static void write_json_points(struct hak_text *out) {
    uint32_t count = hak_atomic_load(&shown.point_count, relaxed);
    for (uint32_t i = 0; i < count && i < POINTS; i++) {
        const struct point *point = &shown.points[i];
        hak_text_add(out, "%s\n   {\"ms\": %lu, \"phase\": %u, \"state\": \"%s\"", i == 0 ? "" : ",",
                     (unsigned long)hak_atomic_load(&point->ms, relaxed), hak_atomic_load(&point->phase, relaxed),
                     state_names[hak_atomic_load(&point->state, relaxed) % 3]);
#define ROW(field) hak_text_add(out, ", \"" #field "_ppm\": %u", hak_atomic_load(&point->field, relaxed));
        FOR_COURSE(ROW)
#undef ROW
        hak_text_add(out, "}");
    }
}

static void write_json_settings(struct hak_text *out) {
    unsigned char id[HAK_BUILD_ID_BYTES];
    size_t id_bytes = hak_os_build_id(id, sizeof id);
    hak_text_add(out, "\"program\": \"");
    for (size_t i = 0; i < id_bytes; i++) hak_text_add(out, "%s%lx", id[i] < 16 ? "0" : "", (unsigned long)id[i]);
    hak_text_add(out, "\",\n  \"knobs\": {");
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        hak_text_add(out, "%s\"%s\": %lu", i == 0 ? "" : ", ", hak_knob_table[i].name,
                     (unsigned long)hak_knob_get((enum hak_knob_number)i));
    hak_text_add(out, "},\n  \"at_start\": {");
    const char *comma = "";
    for (uint32_t i = 0; i < KNOBS; i++) {
        if (hak_knob_is_given(knob_dimensions[i].knob)) continue;
        hak_text_add(out, "%s\"%s\": %lu", comma, hak_knob_table[knob_dimensions[i].knob].name,
                     (unsigned long)first_values[i]);
        comma = ", ";
    }
    hak_text_add(out, "},\n  \"class_slots\": [");
    const char *separator = "";
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        uint32_t slots = hak_atomic_load(&hak_class_slots[i], relaxed);
        if (slots == 0) continue;
        hak_text_add(out, "%s{\"block_bytes\": %u, \"slots\": %u}", separator, hak_size_classes[i].block_bytes, slots);
        separator = ", ";
    }
    uint32_t tried = hak_atomic_load(&shown.tried, relaxed);
    hak_text_add(out, "],\n  \"tried\": [");
    if (tried < COUNT)
        hak_text_add(out, "{\"knob\": \"%s\", \"block_bytes\": %u, \"chosen\": %lu}", name_of_dimension(tried),
                     hak_atomic_load(&shown.tried_block_bytes, relaxed),
                     (unsigned long)hak_atomic_load(&shown.chosen, relaxed));
    hak_text_add(out, "],\n  \"strategies\": [");
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++)
        hak_text_add(out, "%s{\"bytes\": %lu, \"points\": %u, \"matches\": %u}", i == 0 ? "" : ", ",
                     (unsigned long)hak_strategy_bytes(i), hak_atomic_load(&shown.points_of_strategy[i], relaxed),
                     hak_atomic_load(&shown.matches[i], relaxed));
    hak_text_add(out, "]");
}

void hak_ace_write_json(struct hak_text *out) {
    hak_text_add(out, "\"control\": {\"state\": \"%s\", \"goal\": \"%s\", \"profile\": \"%s\", ", state_name(),
                 names_of_goals[configured.goal], hak_profile_names[configured.profile]);
    hak_text_add(out, "\"phase\": %u, \"phases\": %u, \"kept\": %u, \"rolled_back\": %u,\n  ",
                 hak_atomic_load(&shown.phase, relaxed), hak_atomic_load(&shown.phase_count, relaxed),
                 hak_atomic_load(&shown.kept, relaxed), hak_atomic_load(&shown.rolled_back, relaxed));
    write_json_settings(out);
    hak_text_add(out, ",\n  \"switches\": %u, \"events\": [", hak_atomic_load(&shown.event_count, relaxed));
    for_each_event(write_json_event, EVENTS, out);
    hak_text_add(out, "],\n  \"course\": [");
    write_json_points(out);
    hak_text_add(out, "]}");
}
