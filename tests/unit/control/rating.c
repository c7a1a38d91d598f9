/* control/rating.h: the strategies, who meets whom, and what a match changes. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>

#include "control/rating.h"

enum { ALL = (1 << HAK_STRATEGIES) - 1 };

static void strategies(void **state) {
    (void)state;
    assert_int_equal(hak_strategy_bytes(0), 512 << 10);
    assert_int_equal(hak_strategy_bytes(HAK_STRATEGIES - 1), 32 << 20);
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) {
        assert_int_equal(hak_strategy_bytes(i) % (64 << 10), 0);
        assert_int_equal(hak_strategy_of(hak_strategy_bytes(i)), i);
        if (i == 0) continue;
        double step = (double)hak_strategy_bytes(i) / (double)hak_strategy_bytes(i - 1);
        assert_true(step > 1.3 && step < 1.6);
    }
    assert_int_equal(hak_strategy_of(0), 0);
    assert_int_equal(hak_strategy_of(UINT64_MAX / 2), HAK_STRATEGIES - 1);
}

static double sum_of(const struct hak_rating *rating) {
    double sum = 0;
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) sum += rating->points[i];
    return sum;
}

static void one_match(void **state) {
    (void)state;
    struct hak_rating rating;
    hak_rating_begin(&rating);
    hak_rating_match(&rating, (struct hak_pairing){3, 5}, 1);
    assert_true(rating.points[3] == HAK_RATING_FIRST + 32 && rating.points[5] == HAK_RATING_FIRST - 32);
    assert_int_equal(hak_rating_leader(&rating, ALL, 0), 3);
    rating.points[3] = rating.points[5] + 400; /* who leads by so much gains little by winning, and loses much */
    double before = rating.points[3];
    hak_rating_match(&rating, (struct hak_pairing){3, 5}, 1);
    assert_true(fabs(rating.points[3] - before - 64.0 / 11) < 1e-6);
    hak_rating_match(&rating, (struct hak_pairing){7, 8}, 0.5);
    assert_true(fabs(rating.points[7] - HAK_RATING_FIRST) < 1e-9);
}

/* Who has as few points as may be loses none, and so nobody gains any. */
static void a_match_at_the_bound(void **state) { /* E1 */
    (void)state;
    struct hak_rating rating;
    hak_rating_begin(&rating);
    rating.points[5] = HAK_RATING_FIRST - HAK_RATING_MOST + 1;
    hak_rating_match(&rating, (struct hak_pairing){5, 3}, 0);
    assert_true(rating.points[5] >= HAK_RATING_FIRST - HAK_RATING_MOST);
    rating.points[5] = HAK_RATING_FIRST - HAK_RATING_MOST;
    rating.points[3] = HAK_RATING_FIRST - HAK_RATING_MOST + 10;
    double sum = sum_of(&rating);
    hak_rating_match(&rating, (struct hak_pairing){3, 5}, 1);
    assert_true(rating.points[5] == HAK_RATING_FIRST - HAK_RATING_MOST);
    assert_true(fabs(sum_of(&rating) - sum) < 1e-9);
}

static void the_best_leads(void **state) {
    (void)state;
    uint64_t random = 1;
    for (uint32_t best = 0; best < HAK_STRATEGIES; best++) {
        struct hak_rating rating;
        hak_rating_begin(&rating);
        for (int i = 0; i < 120; i++) {
            struct hak_pairing pairing = hak_rating_pair(&rating, ALL, &random);
            double first = abs((int)pairing.first - (int)best), second = abs((int)pairing.second - (int)best);
            double noise = (double)(unit_random(&random) % 1000) / 1000 - 0.5;
            hak_rating_match(&rating, pairing, 0.5 + (second - first) / 4 + noise);
        }
        assert_true(abs((int)hak_rating_leader(&rating, ALL, 0) - (int)best) <= 1);
        for (uint32_t i = 0; i < HAK_STRATEGIES; i++) assert_true(rating.matches[i] > 0);
    }
}

/* Of some strategies only these meet, each as often as any other but for the leader, and one of them leads. */
static void only_players_play(void **state) {
    (void)state;
    enum { PLAYERS = 1 << 2 | 1 << 5 | 1 << 11 };
    uint64_t random = 7;
    struct hak_rating rating;
    hak_rating_begin(&rating);
    rating.points[7] = HAK_RATING_FIRST + 500;
    uint32_t leader_first = 0;
    for (int i = 0; i < 60; i++) {
        struct hak_pairing pairing = hak_rating_pair(&rating, PLAYERS, &random);
        assert_true((PLAYERS >> pairing.first & 1) && (PLAYERS >> pairing.second & 1));
        assert_int_not_equal(pairing.first, pairing.second);
        leader_first += pairing.first == 5;
        hak_rating_match(&rating, pairing, pairing.first == 5 ? 1 : pairing.second == 5 ? 0 : 0.5);
    }
    assert_in_range(leader_first, 15, 45); /* by lot */
    assert_int_equal(hak_rating_leader(&rating, PLAYERS, 2), 5);
    assert_in_range(rating.matches[2], 25, 35);
    assert_in_range(rating.matches[11], 25, 35);
    assert_true(hak_rating_matches_of_each(&rating, PLAYERS) == 40);
    assert_true(hak_rating_matches_of_each(&rating, 1 << 2) == rating.matches[2]);
}

static void any_score(void **state) { /* E1 */
    (void)state;
    static const double scores[] = {0, 1, 0.5, -3, 4, NAN, INFINITY, -INFINITY, 1e-300};
    uint64_t random = 3;
    struct hak_rating rating;
    hak_rating_begin(&rating);
    for (int i = 0; i < 20000; i++) {
        struct hak_pairing pairing = hak_rating_pair(&rating, ALL, &random);
        assert_true(pairing.first < HAK_STRATEGIES && pairing.second < HAK_STRATEGIES);
        assert_int_not_equal(pairing.first, pairing.second);
        hak_rating_match(&rating, pairing, i < 10000 ? scores[random % 9] : pairing.first < pairing.second);
        assert_true(fabs(sum_of(&rating) - HAK_STRATEGIES * HAK_RATING_FIRST) < 1e-3);
        assert_true(fabs(rating.points[pairing.first] - HAK_RATING_FIRST) <= HAK_RATING_MOST + 1e-6);
        assert_true(fabs(rating.points[pairing.second] - HAK_RATING_FIRST) <= HAK_RATING_MOST + 1e-6);
    }
}

UNIT_MAIN(cmocka_unit_test(strategies), cmocka_unit_test(one_match), cmocka_unit_test(a_match_at_the_bound),
          cmocka_unit_test(the_best_leads), cmocka_unit_test(only_players_play), cmocka_unit_test(any_score))
