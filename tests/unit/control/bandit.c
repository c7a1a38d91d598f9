/* control/bandit.h, control/arithmetic.h: that the sums are right, that it finds the best arm and follows it, and that no reward
 * leads it astray. */
#include "unit.h"

#include <math.h>

#include "control/arithmetic.h"
#include "control/bandit.h"

static void arithmetic(void **state) {
    (void)state;
    for (double x = 1e-12; x < 1e12; x *= 1.37) {
        assert_true(fabs(hak_log2(x) - log2(x)) < 1e-9);
        assert_true(fabs(hak_square_root(x) / sqrt(x) - 1) < 1e-9);
    }
    for (double x = -40; x < 40; x += 0.173) assert_true(fabs(hak_exp2(x) / exp2(x) - 1) < 1e-9);
    assert_true(hak_exp2(0) == 1 && hak_exp2(-2) == 0.25 && hak_exp2(10) == 1024);
    assert_true(hak_exp2(1e300) > 1e300 && hak_exp2(-1e300) < 1e-300);
    assert_true(hak_square_root(0) == 0 && hak_square_root(-1) == 0);
    assert_true(hak_clamp(NAN, 2, 3) == 2 && hak_clamp(INFINITY, 2, 3) == 3 && hak_clamp(-INFINITY, 2, 3) == 2);
}

static void untried_first(void **state) {
    (void)state;
    static const uint32_t order[] = {3, 2, 4, 1, 0};
    struct hak_bandit bandit;
    hak_bandit_begin(&bandit, (1 << 5) - 1);
    for (int i = 0; i < 5; i++) {
        uint32_t arm = hak_bandit_choose(&bandit, 3);
        assert_int_equal(arm, order[i]);
        hak_bandit_reward(&bandit, arm, 0.5);
    }
    assert_int_equal(hak_bandit_best(&bandit, 1), 1); /* none is better */
}

static double noise(uint64_t *random) {
    return (double)(unit_random(random) >> 11) / (double)(UINT64_C(1) << 53) - 0.5;
}

/* Tries with rewards of `means`, and noise; returns how many were of `arm`. */
static int tries_of(struct hak_bandit *bandit, const double *means, double deviation, uint32_t arm, int count,
                    uint64_t seed) {
    int tries = 0;
    for (int i = 0; i < count; i++) {
        uint32_t chosen = hak_bandit_choose(bandit, 0);
        tries += chosen == arm;
        hak_bandit_reward(bandit, chosen, means[chosen] + deviation * noise(&seed));
    }
    return tries;
}

static void finds_and_follows(void **state) {
    (void)state;
    static const double means[] = {0.5, 0.52, 0.6, 0.48}, later[] = {0.5, 0.62, 0.45, 0.48};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct hak_bandit bandit;
        hak_bandit_begin(&bandit, (1 << 4) - 1);
        assert_in_range(tries_of(&bandit, means, 0.1, 2, 400, seed), 200, 400);
        assert_int_equal(hak_bandit_best(&bandit, 0), 2);
        tries_of(&bandit, later, 0.1, 1, 100, seed);
        assert_in_range(tries_of(&bandit, later, 0.1, 1, 300, seed), 150, 300);
        assert_int_equal(hak_bandit_best(&bandit, 0), 1);
    }
}

/* Of 150 rewards, the last 50 count for nearly two thirds. */
static void old_rewards_fade(void **state) {
    (void)state;
    struct hak_bandit bandit;
    hak_bandit_begin(&bandit, (1 << 1) - 1);
    for (int i = 0; i < 150; i++) hak_bandit_reward(&bandit, 0, i < 100);
    assert_true(hak_bandit_mean(&bandit, 0) > 0.25 && hak_bandit_mean(&bandit, 0) < 0.4);
}

static void any_reward(void **state) { /* D1 */
    (void)state;
    static const double rewards[] = {0, 1, 1e-300, -1, 2, 1e300, -1e300, 5e-324, INFINITY, -INFINITY, NAN, 0.5};
    uint64_t random = 7;
    for (uint32_t arms = 1; arms <= HAK_ARM_LIMIT; arms++) {
        struct hak_bandit bandit;
        hak_bandit_begin(&bandit, (1 << arms) - 1);
        for (int i = 0; i < 5000; i++) {
            uint32_t arm = hak_bandit_choose(&bandit, (uint32_t)(unit_random(&random) % arms));
            assert_true(arm < arms);
            assert_true(hak_bandit_best(&bandit, 0) < arms);
            assert_true(hak_bandit_mean(&bandit, arm) >= 0 && hak_bandit_mean(&bandit, arm) <= 1.000001);
            hak_bandit_reward(&bandit, arm, rewards[unit_random(&random) % (sizeof rewards / sizeof rewards[0])]);
        }
    }
}

UNIT_MAIN(cmocka_unit_test(arithmetic), cmocka_unit_test(untried_first), cmocka_unit_test(finds_and_follows),
          cmocka_unit_test(old_rewards_fade), cmocka_unit_test(any_reward))
