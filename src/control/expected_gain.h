/* Expected gain: how much less another value of a knob would cost, as far as the program's own counters tell before it
 * is tried (a counterfactual). Pure.
 *
 * The unit is the processor's time: 0.01 is a hundredth of it, and memory is worth as much time as the goal says. An
 * estimate is right about what a value can't do: where the counters say that nothing would change, the gain is 0, and
 * nobody tries it. About the rest it is a guess, which orders the tries; what a value does is found out by a trial.
 *
 *   R1  Estimates are finite numbers, whatever the counters are; the value that is in force gains 0.
 */
#ifndef HAK_CONTROL_EXPECTED_GAIN_H
#define HAK_CONTROL_EXPECTED_GAIN_H

#include "base/knobs.h"
#include "control/reward.h"
#include "region/large.h"

/* What happened in a period, and what there is at its end. */
struct hak_activity {
    double cpu_ns, miss_ns, kernel_ns; /* as in struct hak_period */
    double misses;
    double given_back_bytes; /* to the kernel */
    double reused_bytes;     /* that had gone back, and came into use again */
    double large[HAK_LARGE_BANDS];
    double kept_bytes, used_bytes; /* as in struct hak_period */
    double dirty_bytes;            /* free units with memory: the most at one of the last looks */
    double bin_bytes;              /* blocks in bins */
};

/* Of a knob's value `to`, where `from` is in force. 0 for a knob of which nothing is known. */
HAK_COLD double hak_expected_gain(const struct hak_activity *activity, const struct hak_costs *weights,
                                  enum hak_knob_number knob, uint64_t from, uint64_t to);

/* Of `to` slots for the bins of a class, which have so many misses and bytes of the period's, and `from` slots. */
HAK_COLD double hak_expected_gain_of_class(const struct hak_activity *activity, const struct hak_costs *weights,
                                           double misses, double bin_bytes, double from, double to);

/* True when the program had objects of a size that one of two values of run_limit_bytes makes page runs, and the other
 * mappings. */
bool hak_run_limits_differ(const struct hak_activity *activity, uint64_t one, uint64_t other);

#endif
