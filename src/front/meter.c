#include "front/meter.h"

#include "front/background.h"
#include "front/process.h"
#include "front/routes.h"
#include "os/os.h"

/* A window of WINDOW_US in each cell of CELL_US, where malloc is called more than MOST_PER_MS times a ms: that many
 * cost half a percent of the time of one processor, whatever else the program does. */
enum {
    WINDOW_US = 2000,
    RARITY = 16,
    CELL_US = RARITY * WINDOW_US,
    FIRST_LOOK_US = 4000,
    MOST_PER_MS = 500,
    CALM_CELLS = 16,      /* in a row, until malloc is metered all the time again: bursts find windows */
    MEASURED_CELLS = 128, /* how many are remembered, with less and less weight, */
    PLANNED_CELLS = 16,   /* and as how many of them the plan counts in the beginning */
    MOST_CLOCKS = 64,     /* of threads, read at once */
};

/* What a call costs that is metered, about: so it is known how long a window would have been without. Samples are
 * timed, and lie no closer than what makes them a fiftieth of a window: what comes after them, in caches and when they
 * are freed, is not. */
enum { CALL_NS = 7, MOST_SAMPLING_SHARE = 50 };

HAK_ATOMIC(uint32_t) hak_meter_rarity = HAK_RARITY_ONE;
HAK_ATOMIC(uint32_t) hak_meter_density = 1;

HAK_ATOMIC(bool) hak_meter_is_traced;
static HAK_ATOMIC(bool) is_for_tracer; /* the profile was switched on because there is one */

static HAK_ATOMIC(uint32_t) starts; /* who steps begins anew when this has changed */

enum stage { ALL_THE_TIME, BEFORE_WINDOW, IN_WINDOW, AFTER_WINDOW };

/* What all threads have done so far, or meanwhile. */
struct counts {
    uint64_t calls, sampling_ns; /* while malloc was metered */
    uint64_t cpu_ns;             /* that they have run */
};

/* Of the background thread. */
static struct {
    uint32_t starts; /* seen; 0 before the first */
    enum stage stage;
    uint64_t stage_end_us, cell_start_us;
    uint64_t metered_since_us;    /* when metering began, */
    struct counts metered_before; /* and what was counted by then; */
    uint64_t cell_start_cpu_ns;   /* the same for the cell */
    struct counts in_window;      /* the last one */
    uint32_t calm_cells;
    int64_t windows_cpu_ns, cells_cpu_ns; /* without what metering took; sums over the cells that are remembered (M2) */
} meter;

/* ---- On and off -------------------------------------------------------------------------------------------------- */

static void meter_all_the_time(void) {
    hak_atomic_store(&hak_meter_rarity, HAK_RARITY_ONE, relaxed);
    hak_atomic_store(&hak_meter_density, 1, relaxed);
    hak_routes_meter(true);
}

static bool start_metering(uint64_t interval_bytes, bool in_runs) {
    if (!hak_process_initialize()) return false;
    hak_atomic_store(&hak_profile_in_runs, in_runs, relaxed);
    if (!hak_profile_begin(interval_bytes == 0 ? 1 : interval_bytes)) return false;
    hak_atomic_fetch_add(&starts, 1, relaxed);
    meter_all_the_time();
    hak_background_nudge();
    return true;
}

bool hak_meter_start(uint64_t interval_bytes) {
    hak_atomic_store(&is_for_tracer, false, relaxed);
    return start_metering(interval_bytes, false);
}

bool hak_meter_start_runs(uint64_t interval_bytes) {
    hak_atomic_store(&is_for_tracer, false, relaxed);
    return start_metering(interval_bytes, true);
}

static void stop_metering(void) {
    hak_profile_end();
    if (hak_process_initialize()) hak_routes_meter(false);
}

void hak_meter_stop(void) {
    stop_metering();
    hak_atomic_store(&hak_meter_is_traced, false, relaxed); /* if there is a tracer, the next look begins anew */
}

void hak_meter_follow_tracer(void) {
    uint64_t interval_bytes = hak_process_config()->heap_profile_interval_bytes;
    if (interval_bytes == 0) return; /* settings are not read yet */
    bool is_watched = hak_probes_are_watched(), was_watched = !is_watched;
    if (!hak_atomic_cas(&hak_meter_is_traced, &was_watched, is_watched, relaxed, relaxed)) return;
    if (is_watched && !hak_profile_is_on()) {
        hak_atomic_store(&is_for_tracer, true, relaxed);
        start_metering(interval_bytes, false);
    } else if (!is_watched && hak_atomic_load(&is_for_tracer, relaxed)) {
        hak_atomic_store(&is_for_tracer, false, relaxed);
        stop_metering();
    }
}

/* As many calls as make a program busy at the first look. */
bool hak_meter_wants_thread(void) {
    static const uint64_t calls = (uint64_t)MOST_PER_MS * FIRST_LOOK_US / 1000;
    return hak_profile_is_on() && hak_owned_get(&hak_thread_heap->metered_count) >= calls;
}

void hak_meter_without_thread(void) {
    hak_atomic_fetch_add(&starts, 1, relaxed);
    if (hak_profile_is_on()) meter_all_the_time();
}

/* ---- Windows ----------------------------------------------------------------------------------------------------- */

/* The kernel counts what a running thread has run at its ticks, and when somebody asks for that thread. Ticks are right
 * on average: of many threads, not all are asked for. */
static uint64_t program_cpu_ns(void) {
    uint32_t clocks = 0;
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL && clocks < MOST_CLOCKS; heap = heap->next) {
        if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE) continue;
        hak_os_thread_cpu_ns(hak_atomic_load(&heap->thread_id, relaxed));
        clocks++;
    }
    uint64_t own_ns = hak_os_own_cpu_ns();
    return hak_os_cpu_ns() - own_ns;
}

static struct counts count_all(void) {
    struct counts all = {.cpu_ns = program_cpu_ns()};
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        all.calls += hak_owned_peek(&heap->metered_count);
        all.sampling_ns += hak_owned_peek(&heap->sampling_ns);
    }
    return all;
}

static struct counts counts_since_metered(void) {
    struct counts now = count_all(), *before = &meter.metered_before;
    return (struct counts){now.calls - before->calls, now.sampling_ns - before->sampling_ns,
                           now.cpu_ns - before->cpu_ns};
}

static int64_t metering_ns(const struct counts *counts) {
    return (int64_t)(counts->calls * CALL_NS + counts->sampling_ns);
}

static void begin_metering(uint64_t since_us) {
    meter.metered_since_us = since_us;
    meter.metered_before = count_all();
}

/* Whether what was metered until now would be felt if all of it were. */
static bool is_busy(const struct counts *counts, uint64_t now_us) {
    return counts->calls * 1000 > (now_us - meter.metered_since_us) * MOST_PER_MS;
}

/* Samples lie as close as is needed for as many as without windows, but not too close. */
static void choose_density(const struct counts *counts) {
    uint32_t density = hak_atomic_load(&hak_meter_density, relaxed);
    if (counts->sampling_ns * MOST_SAMPLING_SHARE > counts->cpu_ns && density > 1) density /= 2;
    else if (counts->sampling_ns * MOST_SAMPLING_SHARE * 4 < counts->cpu_ns && density < RARITY) density *= 2;
    hak_atomic_store(&hak_meter_density, density, relaxed);
}

static void enter_stage(enum stage stage, uint64_t end_us) {
    meter.stage = stage;
    meter.stage_end_us = end_us;
}

static void begin_all_the_time(uint64_t now_us, uint64_t length_us) {
    begin_metering(now_us);
    enter_stage(ALL_THE_TIME, now_us + length_us);
    meter_all_the_time();
}

static uint64_t random_below(uint64_t limit) { return hak_profile_random() % limit; }

static void begin_cell(uint64_t start_us) {
    meter.cell_start_us = start_us;
    meter.cell_start_cpu_ns = program_cpu_ns();
    enter_stage(BEFORE_WINDOW, start_us + random_below(CELL_US - WINDOW_US));
}

/* What is counted begins and ends behind the change of routes, which takes its time. */
static void open_window(uint64_t now_us) {
    hak_routes_meter(true);
    begin_metering(now_us);
    enter_stage(IN_WINDOW, now_us + WINDOW_US);
}

/* Where the thread wakes up late, the cell becomes as long as the window was for it. */
static void close_window(uint64_t now_us) {
    uint64_t length_us = now_us - meter.metered_since_us;
    hak_routes_meter(false);
    meter.in_window = counts_since_metered();
    meter.calm_cells = is_busy(&meter.in_window, now_us) ? 0 : meter.calm_cells + 1;
    choose_density(&meter.in_window);
    if (length_us > CELL_US) length_us = CELL_US; /* the process was stopped meanwhile */
    enter_stage(AFTER_WINDOW, meter.cell_start_us + length_us * RARITY);
}

static void choose_rarity(void) {
    static const int64_t most_rarity = (int64_t)256 * HAK_RARITY_ONE;
    int64_t rarity = most_rarity;
    if (meter.windows_cpu_ns > 0) rarity = meter.cells_cpu_ns * HAK_RARITY_ONE / meter.windows_cpu_ns;
    if (rarity < HAK_RARITY_ONE) rarity = HAK_RARITY_ONE;
    if (rarity > most_rarity) rarity = most_rarity;
    hak_atomic_store(&hak_meter_rarity, (uint32_t)rarity, relaxed);
}

/* M2. What is added may be less than 0: it is right on average. */
static void measure_cell(void) {
    int64_t taken_ns = metering_ns(&meter.in_window), window_cpu_ns = (int64_t)meter.in_window.cpu_ns;
    int64_t cell_cpu_ns = (int64_t)(program_cpu_ns() - meter.cell_start_cpu_ns);
    meter.windows_cpu_ns += window_cpu_ns - taken_ns - meter.windows_cpu_ns / MEASURED_CELLS;
    meter.cells_cpu_ns += cell_cpu_ns - taken_ns - meter.cells_cpu_ns / MEASURED_CELLS;
    choose_rarity();
}

/* Until cells have been measured: with one thread, and metering that takes as large a part of its time as until now. */
static void plan_rarity(const struct counts *counts) {
    int64_t taken_us = counts->cpu_ns == 0 ? 0 : WINDOW_US * metering_ns(counts) / (int64_t)counts->cpu_ns;
    if (taken_us > WINDOW_US / 2) taken_us = WINDOW_US / 2;
    meter.windows_cpu_ns = (int64_t)PLANNED_CELLS * 1000 * (WINDOW_US - taken_us);
    meter.cells_cpu_ns = (int64_t)PLANNED_CELLS * 1000 * (CELL_US - taken_us);
    choose_rarity();
}

/* From all the time to windows, in the middle of a cell: so the moments to come are in a window as likely as any
 * other. */
static void begin_windows(const struct counts *counts, uint64_t now_us) {
    uint64_t cell_start_us = now_us - random_below(CELL_US);
    begin_cell(cell_start_us);
    meter.calm_cells = 0;
    meter.in_window = (struct counts){0};
    plan_rarity(counts);
    if (meter.stage_end_us <= now_us) open_window(meter.stage_end_us);
    if (meter.stage_end_us <= now_us) enter_stage(AFTER_WINDOW, cell_start_us + CELL_US);
    hak_routes_meter(meter.stage == IN_WINDOW);
}

static void end_all_the_time(uint64_t now_us) {
    struct counts counts = counts_since_metered();
    if (is_busy(&counts, now_us)) begin_windows(&counts, now_us);
    else begin_all_the_time(now_us, CELL_US);
}

static void end_stage(uint64_t now_us) {
    uint64_t end_us = meter.stage_end_us;
    switch (meter.stage) {
    case ALL_THE_TIME: end_all_the_time(now_us); break;
    case BEFORE_WINDOW: open_window(now_us); break;
    case IN_WINDOW: close_window(now_us); break;
    case AFTER_WINDOW:
        measure_cell();
        if (meter.calm_cells >= CALM_CELLS) begin_all_the_time(now_us, CELL_US);
        else begin_cell(now_us - end_us > CELL_US ? now_us : end_us); /* far behind: as above */
        break;
    }
}

uint64_t hak_meter_step(uint64_t now_us) {
    if (!hak_profile_is_on()) {
        hak_routes_meter(false); /* if it was switched off while a window was being opened */
        return UINT64_MAX;
    }
    uint32_t now_starts = hak_atomic_load(&starts, relaxed);
    if (meter.starts != now_starts) {
        meter.starts = now_starts;
        begin_all_the_time(now_us, FIRST_LOOK_US);
    }
    while (meter.stage_end_us <= now_us) end_stage(now_us);
    return meter.stage_end_us - now_us;
}

void hak_meter_rest(void) {
    if (hak_profile_is_on() && meter.stage != ALL_THE_TIME) begin_all_the_time(hak_os_clock_ns() / 1000, FIRST_LOOK_US);
}
