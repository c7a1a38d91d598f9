#include "control/expected_gain.h"

#include "control/arithmetic.h"
#include "os/os.h"
#include "region/mapping_cache.h"

/* What a page costs about that goes back and is faulted in again, on the processors of today. */
static const double page_ns = 500;

/* ---- Shares ------------------------------------------------------------------------------------------------------ */

static double of_time(const struct hak_activity *activity, double ns) {
    return activity->cpu_ns > 0 ? hak_clamp(ns / activity->cpu_ns, 0, 1) : 0;
}

/* The share that so much more kept memory would be. */
static double of_memory(const struct hak_activity *activity, double bytes) {
    return hak_clamp(bytes / (activity->kept_bytes + activity->used_bytes + HAK_SMALL_HEAP_BYTES), 0, 1);
}

/* The time that pages cost which went back in vain. */
static double returned_in_vain(const struct hak_activity *activity) {
    double bytes = hak_clamp(activity->reused_bytes, 0, activity->given_back_bytes);
    return of_time(activity, bytes / (double)hak_os_page_bytes() * page_ns);
}

/* More is kept than now: of what goes back in a period `times` as much, but no more than the program uses. */
static double kept_longer(const struct hak_activity *activity, double times) {
    return of_memory(activity, hak_clamp(activity->given_back_bytes * times, 0, activity->used_bytes));
}

/* ---- Estimates, one for each knob -------------------------------------------------------------------------------- */

struct hak_change_of_knob {
    const struct hak_activity *activity;
    const struct hak_costs *weights;
    uint64_t from, to;
    double times; /* to / from */
};

/* Bins that are so many times as large: misses become as much rarer, what lies in bins as much more. */
static double larger_bins(const struct hak_change_of_knob *change, double miss_ns, double bytes, double times) {
    double miss = of_time(change->activity, miss_ns), saved_or_lost = miss * (1 - 1 / times);
    double kept = of_memory(change->activity, bytes), more_or_less = hak_clamp(kept * (times - 1), -kept, 1);
    return change->weights->miss * saved_or_lost - change->weights->kept * more_or_less;
}

/* The share is a divisor of the heap: bins have no more than all of it. */
static HAK_COLD double of_bin_budget_share(const struct hak_change_of_knob *change) {
    return larger_bins(change, change->activity->miss_ns, change->activity->bin_bytes, 1 / change->times);
}

/* Later, as many fewer pages go back in vain, and what goes back is kept as much longer. Sooner, the reverse. */
static HAK_COLD double of_decay_ms(const struct hak_change_of_knob *change) {
    const struct hak_activity *activity = change->activity;
    double vain = returned_in_vain(activity) * (1 - 1 / change->times);
    double kept =
        change->times > 1
            ? kept_longer(activity, change->times - 1)
            : (change->times - 1) * of_memory(activity, hak_clamp(activity->dirty_bytes, 0, activity->kept_bytes));
    return change->weights->kernel * vain - change->weights->kept * kept;
}

/* Objects that lie between two limits, in bands that do in part, and about what they come to. */
struct objects {
    double count, bytes;
};

static struct objects between(const struct hak_activity *activity, uint64_t one, uint64_t other) {
    uint64_t low = one < other ? one : other, high = one < other ? other : one;
    struct objects sum = {0, 0};
    for (uint32_t i = 0; i < HAK_LARGE_BANDS; i++) {
        uint64_t first = (uint64_t)1 << (HAK_LARGE_FIRST_SHIFT + i);
        if (low >= 2 * first || high <= first) continue;
        sum.count += activity->large[i];
        sum.bytes += activity->large[i] * 1.5 * (double)first;
    }
    return sum;
}

bool hak_run_limits_differ(const struct hak_activity *activity, uint64_t one, uint64_t other) {
    return one != other && between(activity, one, other).count > 0;
}

/* Freed mappings stay for a while, each for objects of its size: as much as was asked for in a period, within the
 * cache's bounds. Objects that use the same mapping again and again are counted each time. */
static double kept_mappings(const struct hak_activity *activity, double bytes) {
    double share = hak_clamp(activity->used_bytes / 4, (double)HAK_SMALL_CACHE_BYTES, 1e18),
           most = hak_clamp((double)hak_knob(mapping_cache_bytes), 0, share);
    return of_memory(activity, hak_clamp(bytes, 0, hak_clamp(activity->used_bytes, 0, most)));
}

/* Whether runs or mappings take less time nobody knows before. So half of what the objects may be to blame for: of the
 * kernel's time and the kept memory as large a share as they are of the large objects. What is known is that mappings
 * keep more. */
static HAK_COLD double of_run_limit_bytes(const struct hak_change_of_knob *change) {
    const struct hak_activity *activity = change->activity;
    struct objects moved = between(activity, change->from, change->to);
    double all = 0, more = change->to < change->from ? kept_mappings(activity, moved.bytes) : 0;
    for (uint32_t i = 0; i < HAK_LARGE_BANDS; i++) all += activity->large[i];
    double blamed = change->weights->kernel * of_time(activity, activity->kernel_ns) +
                    change->weights->kept * of_memory(activity, activity->kept_bytes);
    return all > 0 ? blamed * hak_clamp(moved.count / all, 0, 1) / 2 - change->weights->kept * more : 0;
}

static double (*const estimates[HAK_KNOB_COUNT])(const struct hak_change_of_knob *change) = {
    [HAK_KNOB_bin_budget_share] = of_bin_budget_share,
    [HAK_KNOB_decay_ms] = of_decay_ms,
    [HAK_KNOB_run_limit_bytes] = of_run_limit_bytes,
};

static double bounded(double gain) { return hak_clamp(gain, -HAK_COST_MOST, HAK_COST_MOST); } /* R1 */

double hak_expected_gain(const struct hak_activity *activity, const struct hak_costs *weights,
                         enum hak_knob_number knob, uint64_t from, uint64_t to) {
    struct hak_change_of_knob change = {activity, weights, from, to, 1};
    if ((uint32_t)knob >= HAK_KNOB_COUNT || estimates[knob] == NULL || from == to) return 0;
    change.times = (double)(to == 0 ? 1 : to) / (double)(from == 0 ? 1 : from);
    return bounded(estimates[knob](&change));
}

double hak_expected_gain_of_class(const struct hak_activity *activity, const struct hak_costs *weights, double misses,
                                  double bin_bytes, double from, double to) {
    struct hak_change_of_knob change = {.activity = activity, .weights = weights};
    if (!(from > 0 && to > 0 && activity->misses > 0) || from == to) return 0;
    double share = hak_clamp(misses / activity->misses, 0, 1);
    return bounded(larger_bins(&change, activity->miss_ns * share, bin_bytes, to / from));
}
