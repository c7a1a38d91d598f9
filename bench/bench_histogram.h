/* A histogram of 64-bit values with a fixed relative precision, in the layout of Gil Tene's HdrHistogram, for a lowest
 * value of 1 and three significant digits.
 *
 * Values below 2048 have a count of their own each. From there on every doubling has 1024 counts, each of which stands
 * for 2, 4, 8, ... neighbouring values. So:
 *
 *   H1  the index of a count never falls as the value rises, and no index between is left out;
 *   H2  all values of one count differ by less than a thousandth of each of them;
 *   H3  a percentile is at least the exact one (nearest rank), and larger by less than a thousandth of it;
 *   H4  values from 2^40 on are counted as 2^40 - 1; `max` is exact all the same.
 *
 * A histogram belongs to one thread; bench_histogram_add joins those of several.
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

enum {
    BENCH_HISTOGRAM_VALUE_BITS = 40,
    BENCH_HISTOGRAM_SUB_BITS = 11, /* 2^11 >= 2 * 10^3: three digits */
    BENCH_HISTOGRAM_HALF = 1 << (BENCH_HISTOGRAM_SUB_BITS - 1),
    BENCH_HISTOGRAM_COUNTS = (BENCH_HISTOGRAM_VALUE_BITS - BENCH_HISTOGRAM_SUB_BITS + 2) * BENCH_HISTOGRAM_HALF
};

/* total is the sum of counts. */
struct bench_histogram {
    uint64_t total;
    uint64_t max;
    uint64_t counts[BENCH_HISTOGRAM_COUNTS];
};

/* How often the value was halved to find its count. */
static inline unsigned bench_histogram_scale(uint64_t value) {
    uint64_t unscaled = (UINT64_C(1) << BENCH_HISTOGRAM_SUB_BITS) - 1;
    return 64 - BENCH_HISTOGRAM_SUB_BITS - (unsigned)__builtin_clzll(value | unscaled);
}

static inline size_t bench_histogram_index(uint64_t value) {
    uint64_t highest = (UINT64_C(1) << BENCH_HISTOGRAM_VALUE_BITS) - 1;
    uint64_t counted = value < highest ? value : highest;
    unsigned scale = bench_histogram_scale(counted);
    return (size_t)scale * BENCH_HISTOGRAM_HALF + (size_t)(counted >> scale);
}

/* The greatest value that this count stands for. */
static inline uint64_t bench_histogram_value(size_t index) {
    size_t scale = index < 2 * BENCH_HISTOGRAM_HALF ? 0 : index / BENCH_HISTOGRAM_HALF - 1;
    uint64_t halved = index - scale * BENCH_HISTOGRAM_HALF;
    return ((halved + 1) << scale) - 1;
}

static inline void bench_histogram_record(struct bench_histogram *histogram, uint64_t value) {
    histogram->counts[bench_histogram_index(value)]++;
    histogram->total++;
    histogram->max = value > histogram->max ? value : histogram->max;
}

static inline void bench_histogram_add(struct bench_histogram *to, const struct bench_histogram *from) {
    for (size_t i = 0; i < BENCH_HISTOGRAM_COUNTS; i++) {
        to->counts[i] += from->counts[i];
    }
    to->total += from->total;
    to->max = from->max > to->max ? from->max : to->max;
}

/* The value that `millionths` of all values do not exceed, 999900 for p99.99; 0 of none. */
static inline uint64_t bench_histogram_percentile(const struct bench_histogram *histogram, uint64_t millionths) {
    uint64_t wanted = (histogram->total * millionths + 999999) / 1000000; /* total < 2^44 */
    wanted = wanted > 0 ? wanted : 1;
    uint64_t seen = 0;
    for (size_t i = 0; i < BENCH_HISTOGRAM_COUNTS; i++) {
        seen += histogram->counts[i];
        if (seen >= wanted) {
            uint64_t value = bench_histogram_value(i);
            return value < histogram->max ? value : histogram->max;
        }
    }
    return histogram->max;
}

#endif
