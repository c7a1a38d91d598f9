/* Measure: what the program has done in a period, from hakmem's counters, and what there is at its end. Reads what
 * other threads write: a look at a heap in motion. For one thread at a time, that of control/ace.c. */
#ifndef HAK_CONTROL_MEASURE_H
#define HAK_CONTROL_MEASURE_H

#include "control/expected_gain.h"
#include "control/phase.h"
#include "os/os.h"
#include "slab/size_class.h"

/* Sums over heaps at some moment. */
struct hak_sums {
    uint64_t misses, sampled_ticks, samples, active_heaps;
    uint64_t bin_bytes[HAK_CLASS_LIMIT];
    uint32_t class_misses[HAK_CLASS_LIMIT]; /* as wide as heaps count: differences are right where one has wrapped */
    uint64_t large_bands[HAK_LARGE_BANDS];
    uint64_t given_back_bytes, reused_pages;
    struct hak_os_usage usage;
    uint64_t ticks, now_ms;
};

enum { HAK_RECENT_LOOKS = 4 };

/* What is remembered from period to period. */
struct hak_measure {
    bool is_timed, may_ask;
    uint64_t timed_ms, timed_ticks; /* when slow paths began to be timed */
    uint32_t looks;
    uint64_t used_bytes[HAK_RECENT_LOOKS], dirty_bytes[HAK_RECENT_LOOKS];
    uint64_t recent_bytes;                  /* the most of used_bytes */
    uint32_t steady_periods, quiet_periods; /* of late, with many large objects in each; with none */
    bool is_without_large;                  /* that there are none is no chance */
};

/* The parts of a signature. */
enum hak_part { HAK_USED_PART, HAK_LARGE_PART, HAK_THREADS_PART };

/* `may_ask` as in struct hak_ace_settings. */
void hak_measure_begin(struct hak_measure *measure, bool may_ask);

/* With `times` the processor's counter is read, as slow paths do. */
void hak_measure_sums(struct hak_measure *measure, struct hak_sums *sums, bool times);

/* Of the period between two moments. */
struct hak_period hak_measure_period(struct hak_measure *measure, const struct hak_sums *from,
                                     const struct hak_sums *to);
struct hak_activity hak_measure_activity(const struct hak_measure *measure, const struct hak_period *period,
                                         const struct hak_sums *from, const struct hak_sums *to);

/* What a phase is known by: what the program asks for, which no knob moves. */
struct hak_signature hak_measure_signature(struct hak_measure *measure, const struct hak_sums *from,
                                           const struct hak_sums *to);

/* The mean of activities, which follows the last one. */
void hak_activity_follow(struct hak_activity *mean, const struct hak_activity *now, double part);

#endif
