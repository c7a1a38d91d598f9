/* Tests bench_histogram.h: its layout (H1, H2) over all counts, and percentiles against sorted values (H3, H4). */
#include "bench.h"

#include "bench_histogram.h"

#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

enum { VALUE_COUNT = 100000 };

static uint64_t values[VALUE_COUNT];
static struct bench_histogram whole;
static struct bench_histogram halves[2];

static _Noreturn void fail(int line, const char *condition) {
    fprintf(stderr, "histogram_test.c:%d: not so: %s\n", line, condition);
    exit(EXIT_FAILURE);
}

static void test_layout(void) {
    /* What HdrHistogram itself says for (1, 2^40 - 1, 3 digits). */
    EXPECT(bench_histogram_index(0) == 0 && bench_histogram_index(1) == 1);
    EXPECT(bench_histogram_index(2047) == 2047 && bench_histogram_index(2048) == 2048);
    EXPECT(bench_histogram_index(2049) == 2048 && bench_histogram_index(2050) == 2049);
    EXPECT(bench_histogram_index(4095) == 3071 && bench_histogram_index(4096) == 3072);
    EXPECT(bench_histogram_index(1000000) == 11169 && bench_histogram_value(11169) == 1000447);

    uint64_t lowest = 0;
    for (size_t i = 0; i < BENCH_HISTOGRAM_COUNTS; i++) {
        uint64_t highest = bench_histogram_value(i);
        EXPECT(highest >= lowest);
        EXPECT(bench_histogram_index(lowest) == i && bench_histogram_index(highest) == i);
        EXPECT((highest - lowest) * 1000 <= lowest);
        lowest = highest + 1;
    }
    EXPECT(lowest == UINT64_C(1) << BENCH_HISTOGRAM_VALUE_BITS);
    EXPECT(bench_histogram_index(UINT64_MAX) == BENCH_HISTOGRAM_COUNTS - 1);
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left;
    uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* `spread`: values have up to so many bits, each number of bits as often as the others. */
static void test_percentiles(unsigned spread, size_t count) {
    static const uint64_t asked[] = {0, 1, 250000, 500000, 900000, 990000, 999000, 999900, 999999, 1000000};
    struct bench_random random = bench_random_seeded(spread, count);
    memset(&whole, 0, sizeof whole);
    memset(halves, 0, sizeof halves);
    for (size_t i = 0; i < count; i++) {
        values[i] = bench_random_next(&random) >> (64 - spread + bench_pick_index(bench_random_next(&random), spread));
        bench_histogram_record(&whole, values[i]);
        bench_histogram_record(&halves[i % 3 == 0], values[i]);
    }
    bench_histogram_add(&halves[0], &halves[1]);
    EXPECT(memcmp(&halves[0], &whole, sizeof whole) == 0);
    EXPECT(whole.total == count);

    qsort(values, count, sizeof *values, compare);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        size_t rank = (size_t)((count * asked[i] + 999999) / 1000000);
        uint64_t exact = values[rank > 0 ? rank - 1 : 0];
        uint64_t found = bench_histogram_percentile(&whole, asked[i]);
        EXPECT(found >= exact);
        EXPECT((found - exact) * 1000 <= exact);
    }
    EXPECT(bench_histogram_percentile(&whole, 1000000) == values[count - 1]);
}

static void test_ends(void) {
    memset(&whole, 0, sizeof whole);
    EXPECT(bench_histogram_percentile(&whole, 500000) == 0);
    bench_histogram_record(&whole, UINT64_MAX);
    EXPECT(whole.max == UINT64_MAX && whole.total == 1);
    EXPECT(bench_histogram_percentile(&whole, 500000) == (UINT64_C(1) << BENCH_HISTOGRAM_VALUE_BITS) - 1);
}

int main(void) {
    test_layout();
    for (unsigned spread = 1; spread <= BENCH_HISTOGRAM_VALUE_BITS; spread++) {
        test_percentiles(spread, 1000);
    }
    test_percentiles(12, VALUE_COUNT);
    test_percentiles(34, VALUE_COUNT);
    test_percentiles(40, 1);
    test_ends();
    puts("histogram: layout and percentiles as they should be");
    return 0;
}
