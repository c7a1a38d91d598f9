/* control/trial.h: how often a candidate that is no better is kept, and how soon a good or bad one is found out. */
#include "unit.h"

#include <math.h>

#include "control/trial.h"

static double uniform(uint64_t *random) { return (double)(unit_random(random) >> 11) / (double)(UINT64_C(1) << 53); }

/* Kinds of noise about costs of 1: mild; heavy-tailed; mostly nothing, and now and then a hundredfold. */
static double noise(int kind, uint64_t *random) {
    double u = uniform(random);
    if (kind == 0) return 0.8 + 0.4 * u;
    if (kind == 1) return 0.5 / sqrt(1 - u + 1e-9);
    return u < 0.95 ? 1 : 100 * uniform(random);
}

/* Candidates that cost `factor`: how many of 2000 are kept. `pairs`: the mean number until the verdict. */
static int kept_of_2000(double factor, int kind, uint64_t seed, double *pairs) {
    int kept = 0;
    *pairs = 0;
    for (int i = 0; i < 2000; i++) {
        struct hak_trial trial;
        enum hak_verdict verdict;
        hak_trial_begin(&trial);
        do {
            double first = noise(kind, &seed), second = noise(kind, &seed);
            verdict = hak_trial_add(&trial, first, second * factor);
        } while (verdict == HAK_VERDICT_OPEN);
        assert_true(trial.pairs <= HAK_TRIAL_PAIRS); /* V1 */
        kept += verdict == HAK_VERDICT_KEEP;
        *pairs += trial.pairs / 2000.0;
    }
    return kept;
}

/* Each bet is fair: of a difference and its opposite one wins what the other loses. */
static void fair_bets(void **state) {
    (void)state;
    static const double costs[] = {1, 1.01, 1.3, 2, 10, 1e6};
    for (int i = 0; i < 6; i++) {
        struct hak_trial better, worse;
        hak_trial_begin(&better);
        hak_trial_begin(&worse);
        hak_trial_add(&better, costs[i], 1);
        hak_trial_add(&worse, 1, costs[i]);
        assert_true(fabs(hak_trial_evidence(&better) + hak_trial_evidence(&worse) - 2) < 1e-9);
        double difference = (costs[i] - 1) / (costs[i] + 1), sum = 0;
        for (int size = 1; size <= 64; size *= 2) sum += exp(size * difference) / cosh(size * difference);
        assert_true(fabs(hak_trial_evidence(&better) - sum / 7) < 1e-8);
    }
}

/* As a test of signs: 2 to the fifth is above 20. */
static void few_pairs_where_all_agree(void **state) {
    (void)state;
    struct hak_trial trial;
    hak_trial_begin(&trial);
    for (int i = 0; i < 4; i++) assert_int_equal(hak_trial_add(&trial, 1000, 1), HAK_VERDICT_OPEN);
    assert_int_equal(hak_trial_add(&trial, 1000, 1), HAK_VERDICT_KEEP);
    hak_trial_begin(&trial);
    while (hak_trial_add(&trial, 1, 0.9) == HAK_VERDICT_OPEN) assert_true(trial.pairs < 6);
    assert_int_equal(trial.pairs, 6);
}

static void no_better_is_not_kept(void **state) {
    (void)state;
    double pairs;
    for (int kind = 0; kind < 3; kind++) {
        assert_in_range(kept_of_2000(1, kind, 11, &pairs), 0, 100); /* 5 % */
        assert_in_range(kept_of_2000(1.05, kind, 12, &pairs), 0, 100);
        assert_in_range(kept_of_2000(1.5, kind, 13, &pairs), 0, 20);
    }
}

static void better_is_kept(void **state) {
    (void)state;
    double pairs;
    assert_in_range(kept_of_2000(0.8, 0, 21, &pairs), 1900, 2000);
    assert_true(pairs < 9);
    assert_in_range(kept_of_2000(0.9, 0, 22, &pairs), 1400, 2000);
    assert_in_range(kept_of_2000(0.6, 1, 23, &pairs), 1000, 2000);
}

static void bad_is_found_out_soon(void **state) {
    (void)state;
    double pairs;
    assert_int_equal(kept_of_2000(3, 0, 31, &pairs), 0);
    assert_true(pairs <= 2.01); /* at once */
    assert_int_equal(kept_of_2000(1.5, 0, 32, &pairs), 0);
    assert_true(pairs < 12);
}

static void disaster_is_out_after_a_pair(void **state) {
    (void)state;
    struct hak_trial trial;
    hak_trial_begin(&trial);
    assert_int_equal(hak_trial_add(&trial, 1, 10.1), HAK_VERDICT_ROLL_BACK);
    hak_trial_begin(&trial);
    assert_int_equal(hak_trial_add(&trial, 1, 9.9), HAK_VERDICT_OPEN);
    assert_int_equal(hak_trial_add(&trial, 1, 1.1), HAK_VERDICT_ROLL_BACK); /* 5.5 times, over two pairs */
}

static void any_cost(void **state) {
    (void)state;
    static const double costs[] = {0, 1, -1, NAN, INFINITY, -INFINITY, 1e-320, 1e308};
    uint64_t random = 5;
    for (int i = 0; i < 1000; i++) {
        struct hak_trial trial;
        hak_trial_begin(&trial);
        while (hak_trial_add(&trial, costs[unit_random(&random) % 8], costs[unit_random(&random) % 8]) ==
               HAK_VERDICT_OPEN) {
            assert_true(trial.pairs < HAK_TRIAL_PAIRS);
            assert_true(hak_trial_evidence(&trial) >= 0);
        }
        assert_true(hak_trial_gain(&trial) <= 1);
    }
}

UNIT_MAIN(cmocka_unit_test(fair_bets), cmocka_unit_test(few_pairs_where_all_agree),
          cmocka_unit_test(no_better_is_not_kept), cmocka_unit_test(better_is_kept),
          cmocka_unit_test(bad_is_found_out_soon), cmocka_unit_test(disaster_is_out_after_a_pair),
          cmocka_unit_test(any_cost))
