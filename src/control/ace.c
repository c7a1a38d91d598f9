#include "control/ace.h"

#include <string.h>

#include "base/memory.h"
#include "control/measure.h"
#include "control/report.h"
#include "pool/bin_size.h"
#include "pool/heap.h"

static const double worth_trying = 0.02; /* an expected gain, in the processor's time */
static const double worth_class = 0.1;   /* of the misses */

enum {
    SAMPLE_MASK = 63, /* of 64 misses one is timed, */
    TRYING_MASK = 3,  /* while something is tried one of 4: bins that are to be smaller are, soon */
    BUSY_SHARE = 16,  /* a program that takes less than this part of one processor rests */
    ARM_BITS = 8,
};

/* What is to be tried: a dimension and an arm, so that 0 is nothing. */
static HAK_ATOMIC(uint32_t) asked;

/* What is known of a phase. */
struct learned {
    struct hak_life_cycle cycle;
    uint32_t classes[HAK_CLASS_PLACES]; /* 0: none */
};

static struct hak_ace_settings configured;
static uint64_t first_values[HAK_TURNED_KNOBS];              /* where the knobs stand when main begins, */
static HAK_ATOMIC(uint64_t) chosen_values[HAK_TURNED_KNOBS]; /* and now, but for what is on trial */

/* The background thread's. */
static struct {
    bool has_begun, has_sums;
    uint64_t value[HAK_TURNED_KNOBS]; /* where the knobs were put */
    uint32_t own;                     /* bits of dimensions that nobody else turns (A2) */
    struct hak_sums last;
    struct hak_measure measure;
    struct hak_activity mean; /* of late, while nothing was tried */
    struct hak_phases phases;
    struct learned learned[HAK_PHASES];
    struct hak_rating ratings[HAK_DIMENSION_COUNT];
} ace;

static struct learned *current(void) { return &ace.learned[ace.phases.current]; }

/* Something is tried, or about to be. */
static bool has_focus(void) { return current()->cycle.focus < HAK_DIMENSION_COUNT; }

/* An arm other than the chosen one is in force. */
static bool is_trying(void) {
    const struct hak_life_cycle *cycle = &current()->cycle;
    return has_focus() && cycle->in_force[cycle->focus] != cycle->chosen[cycle->focus];
}

static uint64_t value_of(uint32_t dimension, uint32_t arm) {
    return hak_dimension_value(dimension, arm, first_values[dimension - HAK_CLASS_PLACES]);
}

/* ---- Turning the knobs ------------------------------------------------------------------------------------------- */

/* At most one dimension is tried (Y2). */
static void tell_trial(void) {
    const struct learned *learned = current();
    uint32_t focus = learned->cycle.focus;
    bool is_class = hak_dimension_is_class(focus);
    if (!is_trying() || (is_class && learned->classes[focus] == 0)) {
        hak_report_trial(HAK_DIMENSION_COUNT, 0, 0);
        return;
    }
    uint32_t size_class = is_class ? learned->classes[focus] : 0, arm = learned->cycle.chosen[focus];
    hak_report_trial(focus, hak_size_classes[size_class].block_bytes,
                     is_class ? hak_dimension_slots(size_class, arm) : value_of(focus, arm));
}

/* A move is told of if it changes something, or is a verdict. */
static void tell_move(const struct hak_move *move, uint64_t from, uint64_t to, uint32_t block_bytes) {
    bool is_verdict = move->why == HAK_WHY_ROLL_BACK || move->why == HAK_WHY_KEEP || move->why == HAK_WHY_END;
    if (from != to || is_verdict) hak_report_event(move, ace.phases.current, from, to, block_bytes);
}

static void turn(uint32_t dimension, const struct hak_move *move) {
    if ((ace.own >> dimension & 1) == 0) return;
    if (hak_dimension_is_class(dimension)) {
        uint32_t size_class = current()->classes[dimension];
        if (size_class == 0) return;
        size_t from = hak_heap_most_slots(size_class);
        hak_atomic_store(&hak_class_slots[size_class], hak_dimension_slots(size_class, move->to), relaxed);
        tell_move(move, from, hak_heap_most_slots(size_class), hak_size_classes[size_class].block_bytes);
        return;
    }
    uint32_t knob = dimension - HAK_CLASS_PLACES;
    uint64_t *value = &ace.value[knob], from = *value, to = value_of(dimension, move->to);
    hak_atomic_store(&chosen_values[knob], value_of(dimension, current()->cycle.chosen[dimension]), relaxed);
    if (!hak_knob_turn(hak_dimension_knob(dimension), from, to)) return; /* A1, A2 */
    *value = to;
    tell_move(move, from, to, 0);
}

static bool has_class(const struct learned *learned, uint32_t size_class) {
    for (uint32_t i = 0; i < HAK_CLASS_PLACES; i++)
        if (learned->classes[i] == size_class) return true;
    return false;
}

/* Bins of the classes that the current phase doesn't have are as the knobs say; so are all, where these were given. */
static void put_classes_back(void) {
    const struct hak_move back = {.why = HAK_WHY_PHASE};
    bool are_own = (ace.own & HAK_CLASS_BITS) != 0;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        if ((are_own && has_class(current(), i)) || hak_atomic_load(&hak_class_slots[i], relaxed) == 0) continue;
        hak_report_event(&back, ace.phases.current, hak_heap_most_slots(i), hak_heap_usual_slots(i),
                         hak_size_classes[i].block_bytes);
        hak_atomic_store(&hak_class_slots[i], 0, relaxed);
    }
}

/* What is being tried is somebody else's by now: it ends where he has put it. */
static void give_up_focus(struct learned *learned) {
    uint32_t focus = learned->cycle.focus;
    bool is_class = hak_dimension_is_class(focus);
    uint32_t size_class = is_class ? learned->classes[focus] : 0;
    uint64_t value = is_class ? hak_heap_most_slots(size_class) : hak_knob_get(hak_dimension_knob(focus));
    const struct hak_move end = {.dimension = focus, .why = HAK_WHY_END};
    tell_move(&end, value, value, hak_size_classes[size_class].block_bytes);
    hak_life_cycle_leave(&learned->cycle);
}

static void see_whose_knobs(void) { /* A2 */
    /* Bins of classes follow from what it says. */
    if (hak_knob_is_given(HAK_KNOB_bin_bytes)) ace.own &= ~(uint32_t)HAK_CLASS_BITS;
    for (uint32_t i = HAK_CLASS_PLACES; i < HAK_DIMENSION_COUNT; i++)
        if (hak_knob_is_given(hak_dimension_knob(i))) ace.own &= ~((uint32_t)1 << i);
    put_classes_back();
    if (has_focus() && (ace.own >> current()->cycle.focus & 1) == 0) give_up_focus(current());
}

/* All as the current phase has it. */
static void turn_all(void) {
    const struct learned *learned = current();
    see_whose_knobs();
    for (uint32_t i = 0; i < HAK_DIMENSION_COUNT; i++) {
        struct hak_move move = {.dimension = i, .to = learned->cycle.in_force[i], .why = HAK_WHY_PHASE};
        turn(i, &move);
    }
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The classes that miss most get the places of those that are as the knobs say, and that no verdict is kept of. */
static void choose_classes(struct learned *learned, const struct hak_sums *from, const struct hak_sums *to) {
    const struct hak_life_cycle *cycle = &learned->cycle;
    for (uint32_t place = 0; place < HAK_CLASS_PLACES; place++) {
        bool is_done = (cycle->done >> place & 1) != 0;
        if (cycle->chosen[place] != HAK_CLASS_AS_IS || cycle->focus == place || is_done) continue;
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

/* Of the class that has this place, by its share of the misses. */
static double gain_of_slots(const struct learned *learned, uint32_t place, uint32_t arm, const struct hak_sums *from,
                            const struct hak_sums *to) {
    uint32_t size_class = learned->classes[place];
    double misses = (double)(to->misses - from->misses);
    if (size_class == 0 || !(misses > 0)) return 0;
    double share = (double)(to->class_misses[size_class] - from->class_misses[size_class]) / misses;
    struct hak_costs weights = hak_cost_weights(configured.goal);
    return hak_expected_gain_of_class(&ace.mean, &weights, share * ace.mean.misses, (double)to->bin_bytes[size_class],
                                      (double)hak_dimension_all_slots(size_class, learned->cycle.chosen[place]),
                                      (double)hak_dimension_all_slots(size_class, arm));
}

static double gain_of_value(const struct learned *learned, uint32_t dimension, uint32_t arm) {
    struct hak_costs weights = hak_cost_weights(configured.goal);
    return hak_expected_gain(&ace.mean, &weights, hak_dimension_knob(dimension),
                             value_of(dimension, learned->cycle.chosen[dimension]), value_of(dimension, arm));
}

/* Limits between which the program has no objects are one strategy. */
static bool is_another_strategy(uint32_t dimension, uint32_t arm, uint32_t arms) {
    for (uint32_t i = 0; dimension == HAK_LIMIT_DIMENSION && i < HAK_STRATEGIES; i++)
        if ((arms >> i & 1) != 0 && !hak_run_limits_differ(&ace.mean, hak_strategy_bytes(arm), hak_strategy_bytes(i)))
            return false;
    return true;
}

static struct hak_prospect prospect_of(const struct learned *learned, uint32_t dimension, const struct hak_sums *from,
                                       const struct hak_sums *to) {
    struct hak_prospect prospect = {0};
    for (uint32_t arm = 0; arm < hak_dimensions[dimension].arm_count; arm++) {
        double gain = hak_dimension_is_class(dimension) ? gain_of_slots(learned, dimension, arm, from, to)
                                                        : gain_of_value(learned, dimension, arm);
        if (!(gain >= worth_trying) || !is_another_strategy(dimension, arm, prospect.arms)) continue;
        prospect.arms |= (uint32_t)1 << arm;
        if (gain > prospect.gain) prospect.gain = gain;
    }
    return prospect;
}

/* A larger share of the heap for its bins takes memory from the first trial on. */
static bool buys_time_with_memory(void) {
    return configured.goal == HAK_GOAL_SPEED || configured.goal == HAK_GOAL_LATENCY;
}

static void see_prospects(const struct learned *learned, const struct hak_sums *from, const struct hak_sums *to,
                          struct hak_prospect prospects[HAK_DIMENSION_COUNT]) {
    uint32_t budget = hak_dimension_of_knob(HAK_KNOB_bin_budget_share), own = ace.own;
    if (!buys_time_with_memory()) own &= ~((uint32_t)1 << budget);
    for (uint32_t i = HAK_DIMENSION_COUNT; i-- > 0;) {
        bool may = (own >> i & 1) != 0;
        prospects[i] = may ? prospect_of(learned, i, from, to) : (struct hak_prospect){0};
        /* Bins of one class grow within what all may have. */
        bool has_budget = prospects[i].gain > 0 && (learned->cycle.done >> i & 1) == 0;
        if (i == budget && has_budget) own &= ~(uint32_t)HAK_CLASS_BITS;
    }
}

static void begin_phase(struct learned *learned) {
    uint64_t slow_periods = configured.slow_ms / configured.fast_ms;
    memset(learned, 0, sizeof *learned);
    hak_life_cycle_begin(&learned->cycle, hak_dimensions, HAK_DIMENSION_COUNT,
                         slow_periods == 0 ? 1 : (uint32_t)slow_periods, ace.phases.period + 1);
    for (uint32_t i = HAK_CLASS_PLACES; i < HAK_DIMENSION_COUNT; i++)
        learned->cycle.chosen[i] = learned->cycle.in_force[i] =
            (uint8_t)hak_dimension_first_arm(i, first_values[i - HAK_CLASS_PLACES]);
}

static void begin(void) {
    memset(&ace, 0, sizeof ace);
    ace.has_begun = true;
    ace.own = ((uint32_t)1 << HAK_DIMENSION_COUNT) - 1;
    memcpy(ace.value, first_values, sizeof first_values);
    hak_report_begin(hak_os_clock_ms());
    hak_measure_begin(&ace.measure, configured.may_ask);
    hak_phases_begin(&ace.phases);
    for (uint32_t i = 0; i < HAK_DIMENSION_COUNT; i++) hak_rating_begin(&ace.ratings[i]);
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
static bool is_on_trial(void) { return current()->cycle.state == HAK_CANARY && is_trying(); }

static void tell_state(const struct hak_prospect *prospects) {
    uint32_t block_bytes[HAK_DIMENSION_COUNT] = {0};
    for (uint32_t i = 0; i < HAK_CLASS_PLACES; i++)
        block_bytes[i] = hak_size_classes[current()->classes[i]].block_bytes;
    hak_report_state(&ace.phases, &current()->cycle, prospects, block_bytes, ace.ratings);
}

static void step_phase(struct learned *learned, double cost, const struct hak_prospect *prospects) {
    struct hak_move move = hak_life_cycle_step(&learned->cycle, cost, prospects, ace.ratings);
    if (move.is_made) turn(move.dimension, &move);
}

/* Signatures come first: a change of phase is no effect of an arm. */
static void control(const struct hak_sums *from, const struct hak_sums *to) {
    struct hak_prospect prospects[HAK_DIMENSION_COUNT];
    bool was_trying = is_trying();
    struct hak_period period = hak_measure_period(&ace.measure, from, to);
    struct hak_activity activity = hak_measure_activity(&ace.measure, &period, from, to);
    struct hak_signature signature = hak_measure_signature(&ace.measure, from, to);
    struct hak_costs costs = hak_costs_of(&period);
    double cost = hak_cost_by_goal(&costs, configured.goal);
    struct learned *before = current();
    enum hak_phase_change change =
        is_on_trial() ? hak_phases_stay(&ace.phases) : hak_phases_see(&ace.phases, &signature);
    see_whose_knobs();
    if (change == HAK_PHASE_SAME && !was_trying) hak_activity_follow(&ace.mean, &activity, 0.125);
    if (change == HAK_PHASE_NEW || change == HAK_PHASE_KNOWN) {
        ace.mean = activity;
        hak_life_cycle_pause(&before->cycle);
        if (change == HAK_PHASE_NEW) begin_phase(current());
        hak_life_cycle_pause(&current()->cycle);
        turn_all();
    }
    bool goes_on = change == HAK_PHASE_SAME && !begin_asked(current());
    if (goes_on) choose_classes(current(), from, to);
    see_prospects(current(), from, to, prospects);
    if (current() != before) hak_life_cycle_follow(&current()->cycle, &before->cycle, prospects);
    if (goes_on) step_phase(current(), cost, prospects);
    hak_report_costs(&costs, cost, ace.phases.current, current()->cycle.state);
    tell_state(prospects);
    tell_trial();
}

/* ---- From the background thread ---------------------------------------------------------------------------------- */

void hak_ace_configure(const struct hak_ace_settings *given) {
    configured = *given;
    for (uint32_t i = 0; i < HAK_TURNED_KNOBS; i++) {
        first_values[i] = hak_knob_get(hak_dimension_knob(HAK_CLASS_PLACES + i));
        hak_atomic_store(&chosen_values[i], first_values[i], relaxed);
    }
    hak_report_configure(given, first_values);
}

static bool is_acting(void) { return configured.is_enabled && !configured.is_pinned; }

const char *hak_ace_refusal(enum hak_knob_number knob) {
    if (!configured.is_enabled) return "the controller is off: HAKMEM_ACE_ENABLED=0";
    if (configured.is_pinned)
        return "a policy says where the knobs stand, and the controller turns none: HAKMEM_POLICY";
    return hak_knob_is_given(knob) ? "it was given its value by hand, and the controller leaves it at that" : NULL;
}

uint64_t hak_ace_chosen(enum hak_knob_number knob) {
    uint32_t dimension = hak_dimension_of_knob(knob);
    if (!is_acting() || dimension == HAK_DIMENSION_COUNT || hak_knob_is_given(knob)) return hak_knob_get(knob);
    return hak_atomic_load(&chosen_values[dimension - HAK_CLASS_PLACES], relaxed);
}

uint32_t hak_ace_arms(enum hak_knob_number knob, uint64_t values[HAK_ACE_ARMS]) {
    uint32_t dimension = hak_dimension_of_knob(knob);
    if (!is_acting() || dimension == HAK_DIMENSION_COUNT) return 0;
    uint32_t count = hak_dimensions[dimension].arm_count;
    for (uint32_t arm = 0; arm < count; arm++) values[arm] = value_of(dimension, arm);
    return count;
}

bool hak_ace_try(enum hak_knob_number knob, uint64_t value) {
    uint64_t values[HAK_ACE_ARMS];
    uint32_t count = hak_ace_arms(knob, values);
    for (uint32_t arm = 0; arm < count; arm++) {
        if (values[arm] != value) continue;
        hak_atomic_store(&asked, hak_dimension_of_knob(knob) << ARM_BITS | arm, relaxed);
        return true;
    }
    return false;
}

uint64_t hak_ace_wait_ms(uint64_t most_ms) {
    return ace.has_begun && ace.has_sums && has_focus() && configured.fast_ms < most_ms ? configured.fast_ms : most_ms;
}

void hak_ace_step(bool times) {
    static struct hak_sums now;
    if (!is_acting()) return;
    if (!ace.has_begun) begin();
    if (ace.has_sums && hak_os_clock_ms() - ace.last.now_ms < configured.fast_ms / 4 * 3) return;
    hak_measure_sums(&ace.measure, &now, times);
    bool is_tight = hak_atomic_load(&hak_memory_is_tight, relaxed), had_sums = ace.has_sums;
    uint64_t elapsed_ms = now.now_ms - ace.last.now_ms, cpu_ns = now.usage.cpu_ns - ace.last.usage.cpu_ns;
    bool is_busy = cpu_ns / 1000000 >= elapsed_ms / BUSY_SHARE;
    if (is_tight || !is_busy) hak_ace_rest();
    else if (had_sums) control(&ace.last, &now);
    if (!is_tight && times) hak_atomic_store(&hak_miss_sample_mask, has_focus() ? TRYING_MASK : SAMPLE_MASK, relaxed);
    ace.last = now;
    ace.has_sums = !is_tight;
}

void hak_ace_rest(void) {
    if (!ace.has_begun || !ace.has_sums) return;
    ace.has_sums = false;
    hak_atomic_store(&hak_miss_sample_mask, UINT64_MAX, relaxed);
    hak_life_cycle_pause(&current()->cycle);
    turn_all();
    tell_trial();
}

void hak_ace_after_fork(void) {
    hak_atomic_store(&asked, 0, relaxed);
    if (!ace.has_begun) return;
    for (uint32_t i = 0; i < HAK_TURNED_KNOBS; i++) { /* A3 */
        enum hak_knob_number knob = hak_dimension_knob(HAK_CLASS_PLACES + i);
        if (!hak_knob_is_given(knob)) hak_knob_set(knob, first_values[i]);
        hak_atomic_store(&chosen_values[i], first_values[i], relaxed);
    }
    hak_heap_clear_class_slots();
    hak_atomic_store(&hak_miss_sample_mask, UINT64_MAX, relaxed);
    hak_report_after_fork();
    ace.has_begun = false;
}
