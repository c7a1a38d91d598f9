#include "control/report.h"

#include <string.h>

#include "base/profile.h"
#include "control/arithmetic.h"
#include "control/policy.h"
#include "os/os.h"
#include "pool/bin_size.h"

enum { EVENTS = 64, POINTS = 64 };

static struct hak_ace_settings configured;
static uint64_t first_values[HAK_TURNED_KNOBS];

/* ---- What is told ------------------------------------------------------------------------------------------------ */

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
    struct {
        HAK_ATOMIC(uint32_t) points[HAK_STRATEGIES], matches[HAK_STRATEGIES]; /* where arms are rated */
        HAK_ATOMIC(uint32_t) gain, outcome, block_bytes;                      /* a gain in millionths */
        HAK_ATOMIC(uint64_t) decided_ms; /* when a trial first came to an end; 0: none did */
    } dimensions[HAK_DIMENSION_COUNT];
    HAK_ATOMIC(uint32_t) tried, tried_block_bytes; /* dimension that has another arm than the chosen one, */
    HAK_ATOMIC(uint64_t) chosen;                   /* and what that is */
    HAK_ATOMIC(uint64_t) begun_ms, settled_ms;     /* settled: when the first round ended, in any phase; 0: none has */
} shown = {.periods_per_point = 1, .tried = HAK_DIMENSION_COUNT};

static uint32_t millionths(double share) { return (uint32_t)(hak_clamp(share, 0, HAK_COST_MOST) * 1e6 + 0.5); }

static uint64_t since_begin_ms(void) { return hak_os_clock_ms() - hak_atomic_load(&shown.begun_ms, relaxed); }

/* The first time that something has happened. */
static void note_first(HAK_ATOMIC(uint64_t) *ms) {
    if (hak_atomic_load(ms, relaxed) == 0) hak_atomic_store(ms, since_begin_ms(), relaxed);
}

void hak_report_event(const struct hak_move *move, uint32_t phase, uint64_t from, uint64_t to, uint32_t block_bytes) {
    uint32_t count = hak_atomic_load(&shown.event_count, relaxed);
    struct event *event = &shown.events[count % EVENTS];
    hak_atomic_store(&event->ms, since_begin_ms(), relaxed);
    hak_atomic_store(&event->from, from, relaxed);
    hak_atomic_store(&event->to, to, relaxed);
    hak_atomic_store(&event->dimension, move->dimension, relaxed);
    hak_atomic_store(&event->block_bytes, block_bytes, relaxed);
    hak_atomic_store(&event->why, (uint32_t)move->why, relaxed);
    hak_atomic_store(&event->phase, phase, relaxed);
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
void hak_report_costs(const struct hak_costs *costs, double cost, uint32_t phase, enum hak_life_state state) {
    uint32_t in_point = hak_atomic_load(&shown.periods_in_point, relaxed);
    if (in_point >= hak_atomic_load(&shown.periods_per_point, relaxed)) {
        if (hak_atomic_load(&shown.point_count, relaxed) == POINTS) halve_points();
        in_point = 0;
    }
    if (in_point == 0) hak_counter_add(&shown.point_count, 1);
    uint32_t count = hak_atomic_load(&shown.point_count, relaxed);
    struct point *point = &shown.points[(count - 1) % POINTS]; /* a handler may have forked since it was read */
    uint32_t now[] = {millionths(cost), millionths(costs->miss), millionths(costs->kernel), millionths(costs->kept)},
             at = 0;
#define ADD(field)                                                                                                     \
    {                                                                                                                  \
        uint64_t before = in_point == 0 ? 0 : hak_atomic_load(&point->field, relaxed);                                 \
        hak_atomic_store(&point->field, (uint32_t)((before * in_point + now[at++]) / (in_point + 1)), relaxed);        \
    }
    FOR_COURSE(ADD)
#undef ADD
    hak_atomic_store(&point->ms, since_begin_ms(), relaxed);
    hak_atomic_store(&point->phase, phase, relaxed);
    hak_atomic_store(&point->state, (uint32_t)state, relaxed);
    hak_atomic_store(&shown.periods_in_point, in_point + 1, relaxed);
}

void hak_report_state(const struct hak_phases *phases, const struct hak_life_cycle *cycle,
                      const struct hak_prospect *prospects, const uint32_t *block_bytes,
                      const struct hak_rating *ratings) {
    hak_atomic_store(&shown.phase, phases->current, relaxed);
    hak_atomic_store(&shown.phase_count, phases->count, relaxed);
    hak_atomic_store(&shown.state, (uint32_t)cycle->state, relaxed);
    if (cycle->state == HAK_FROZEN) note_first(&shown.settled_ms);
    for (uint32_t i = 0; i < HAK_DIMENSION_COUNT; i++) {
        hak_atomic_store(&shown.dimensions[i].gain, millionths(prospects[i].gain), relaxed);
        hak_atomic_store(&shown.dimensions[i].outcome, cycle->outcomes[i], relaxed);
        if (cycle->outcomes[i] != HAK_OUTCOME_UNTRIED) note_first(&shown.dimensions[i].decided_ms);
        hak_atomic_store(&shown.dimensions[i].block_bytes, block_bytes[i], relaxed);
        for (uint32_t k = 0; hak_dimensions[i].is_rated && k < hak_dimensions[i].arm_count; k++) {
            hak_atomic_store(&shown.dimensions[i].points[k], (uint32_t)ratings[i].points[k], relaxed);
            hak_atomic_store(&shown.dimensions[i].matches[k], ratings[i].matches[k], relaxed);
        }
    }
}

void hak_report_trial(uint32_t dimension, uint32_t block_bytes, uint64_t chosen) {
    hak_atomic_store(&shown.tried, dimension, relaxed);
    if (dimension == HAK_DIMENSION_COUNT) return;
    hak_atomic_store(&shown.tried_block_bytes, block_bytes, relaxed);
    hak_atomic_store(&shown.chosen, chosen, relaxed);
}

void hak_report_configure(const struct hak_ace_settings *settings, const uint64_t *values) {
    configured = *settings;
    memcpy(first_values, values, sizeof first_values);
}

void hak_report_begin(uint64_t now_ms) { hak_atomic_store(&shown.begun_ms, now_ms, relaxed); }

void hak_report_after_fork(void) {
    memset(&shown, 0, sizeof shown);
    hak_atomic_store(&shown.periods_per_point, 1, relaxed);
    hak_atomic_store(&shown.tried, HAK_DIMENSION_COUNT, relaxed);
}

/* ---- Writing it out ---------------------------------------------------------------------------------------------- */

static const char *const state_names[] = {"learn", "canary", "frozen"};
static const char *const why_names[] = {"explore", "canary", "keep", "roll back", "end", "phase"};
static const char *const names_of_goals[] = {"balanced", "balanced", "speed", "memory", "latency"};

static const char *const outcome_names[] = {"untried", "left", "kept", "rolled back"};

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
                 hak_dimension_name(hak_atomic_load(&event->dimension, relaxed)));
    uint32_t block_bytes = hak_atomic_load(&event->block_bytes, relaxed);
    if (block_bytes != 0) hak_text_add(out, " (%u)", block_bytes);
    hak_text_add(out, " %lu -> %lu, gain %s%d/1000, odds %u\n", (unsigned long)hak_atomic_load(&event->from, relaxed),
                 (unsigned long)hak_atomic_load(&event->to, relaxed), gain < 0 ? "-" : "", gain < 0 ? -gain : gain,
                 hak_atomic_load(&event->odds, relaxed));
}

void hak_report_write_text(struct hak_text *out) {
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
                 hak_dimension_name(hak_atomic_load(&event->dimension, relaxed)),
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
    struct hak_policy_program program = {.build_id = id, .build_id_bytes = hak_os_build_id(id, sizeof id)};
    hak_text_add(out, "\"program\": \"");
    hak_policy_add_id(out, &program);
    hak_text_add(out, "\",\n  \"knobs\": {");
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        hak_text_add(out, "%s\"%s\": %lu", i == 0 ? "" : ", ", hak_knob_table[i].name,
                     (unsigned long)hak_knob_get((enum hak_knob_number)i));
    hak_text_add(out, "},\n  \"at_start\": {");
    const char *comma = "";
    for (uint32_t i = 0; i < HAK_TURNED_KNOBS; i++) {
        enum hak_knob_number knob = hak_dimension_knob(HAK_CLASS_PLACES + i);
        if (hak_knob_is_given(knob)) continue;
        hak_text_add(out, "%s\"%s\": %lu", comma, hak_knob_table[knob].name, (unsigned long)first_values[i]);
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
    if (tried < HAK_DIMENSION_COUNT)
        hak_text_add(out, "{\"knob\": \"%s\", \"block_bytes\": %u, \"chosen\": %lu}", hak_dimension_name(tried),
                     hak_atomic_load(&shown.tried_block_bytes, relaxed),
                     (unsigned long)hak_atomic_load(&shown.chosen, relaxed));
    hak_text_add(out, "]");
}

/* Of dimensions that promise something, or have been tried. */
static void write_json_prospects(struct hak_text *out) {
    const char *comma = "";
    for (uint32_t i = 0; i < HAK_DIMENSION_COUNT; i++) {
        uint32_t gain = hak_atomic_load(&shown.dimensions[i].gain, relaxed),
                 outcome = hak_atomic_load(&shown.dimensions[i].outcome, relaxed);
        uint64_t decided_ms = hak_atomic_load(&shown.dimensions[i].decided_ms, relaxed);
        if (gain == 0 && decided_ms == 0) continue;
        hak_text_add(out, "%s\n   {\"knob\": \"%s\", \"block_bytes\": %u, \"gain_ppm\": %u, \"outcome\": \"%s\"", comma,
                     hak_dimension_name(i), hak_atomic_load(&shown.dimensions[i].block_bytes, relaxed), gain,
                     outcome_names[outcome % 4]);
        hak_text_add(out, ", \"decided_ms\": %lu}", (unsigned long)decided_ms);
        comma = ",";
    }
}

static void write_json_strategies(struct hak_text *out) {
    const char *comma = "";
    for (uint32_t i = HAK_CLASS_PLACES; i < HAK_DIMENSION_COUNT; i++)
        for (uint32_t k = 0; hak_dimensions[i].is_rated && k < hak_dimensions[i].arm_count; k++) {
            hak_text_add(out, "%s{\"knob\": \"%s\", \"value\": %lu, \"points\": %u, \"matches\": %u}", comma,
                         hak_dimension_name(i),
                         (unsigned long)hak_dimension_value(i, k, first_values[i - HAK_CLASS_PLACES]),
                         hak_atomic_load(&shown.dimensions[i].points[k], relaxed),
                         hak_atomic_load(&shown.dimensions[i].matches[k], relaxed));
            comma = ", ";
        }
}

void hak_report_write_json(struct hak_text *out) {
    hak_text_add(out, "\"control\": {\"state\": \"%s\", \"goal\": \"%s\", \"profile\": \"%s\", ", state_name(),
                 names_of_goals[configured.goal], hak_profile_names[configured.profile]);
    hak_text_add(out, "\"phase\": %u, \"phases\": %u, \"kept\": %u, \"rolled_back\": %u, \"settled_ms\": %lu,\n  ",
                 hak_atomic_load(&shown.phase, relaxed), hak_atomic_load(&shown.phase_count, relaxed),
                 hak_atomic_load(&shown.kept, relaxed), hak_atomic_load(&shown.rolled_back, relaxed),
                 (unsigned long)hak_atomic_load(&shown.settled_ms, relaxed));
    write_json_settings(out);
    hak_text_add(out, ",\n  \"prospects\": [");
    write_json_prospects(out);
    hak_text_add(out, "],\n  \"strategies\": [");
    write_json_strategies(out);
    hak_text_add(out, "],\n  \"switches\": %u, \"events\": [", hak_atomic_load(&shown.event_count, relaxed));
    for_each_event(write_json_event, EVENTS, out);
    hak_text_add(out, "],\n  \"course\": [");
    write_json_points(out);
    hak_text_add(out, "]}");
}
