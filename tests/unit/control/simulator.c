/* The bandit in simulated programs: how much it loses against always taking the arm that is best at the moment (regret), and that this is
 * less than what trying at random loses.
 *
 *   unit_control.simulator            checks that
 *   unit_control.simulator --curves   prints tries, scenario, and mean regret of the bandit and of chance, for scripts/regret.py
 */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "control/bandit.h"

enum { ARMS = 5, TRIES = 1000, SEEDS = 100, STEP = 20 };

/* In 0..1. The best arm is 0.2 better than the worst. */
static double mean_of(uint32_t arm, uint32_t best) { return 0.6 - 0.05 * (arm < best ? best - arm : arm - best); }

static double uniform(uint64_t *random) { return (double)(unit_random(random) >> 11) / (double)(UINT64_C(1) << 53); }

struct scenario {
    const char *name;
    uint32_t switches_every;
    bool is_adversarial, is_delayed;
    double most; /* regret of the bandit as a share of that of chance, at the end */
};

static const struct scenario scenarios[] = {
    {"stationary", 0, false, false, 0.3},
    {"switches", 250, false, false, 0.4},
    {"adversarial noise", 0, true, false, 0.6},
    {"delayed rewards", 0, false, true, 0.45},
};

enum { SCENARIOS = sizeof scenarios / sizeof scenarios[0], POINTS = TRIES / STEP };

/* A reward of what was tried, as it is seen: with noise, half of it late, or spoilt by an adversary who knows the best arm and may
 * spoil three rewards in a hundred. */
static double seen(const struct scenario *scenario, double reward, double last_reward, bool is_best, uint64_t *random) {
    if (scenario->is_delayed) reward = (reward + last_reward) / 2;
    if (scenario->is_adversarial && uniform(random) < 0.03) return is_best ? 0 : 1;
    return reward + 0.1 * (uniform(random) - 0.5);
}

static void run(const struct scenario *scenario, bool by_chance, double regrets[POINTS]) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        uint64_t random = seed * 1000003;
        double regret = 0, last_reward = 0.5;
        struct hak_bandit bandit;
        hak_bandit_begin(&bandit, (1 << ARMS) - 1);
        for (uint32_t i = 0; i < TRIES; i++) {
            uint32_t turn = scenario->switches_every == 0 ? 0 : i / scenario->switches_every,
                     best = (uint32_t)(seed + 2 * (uint64_t)turn) % ARMS;
            uint32_t arm = by_chance ? (uint32_t)(unit_random(&random) % ARMS) : hak_bandit_choose(&bandit, 1);
            double reward = mean_of(arm, best);
            hak_bandit_reward(&bandit, arm, seen(scenario, reward, last_reward, arm == best, &random));
            last_reward = reward;
            regret += mean_of(best, best) - reward;
            if ((i + 1) % STEP == 0) regrets[i / STEP] += regret / SEEDS;
        }
    }
}

static void regret(void **state) {
    (void)state;
    for (int i = 0; i < SCENARIOS; i++) {
        double own[POINTS] = {0}, chance[POINTS] = {0};
        run(&scenarios[i], false, own);
        run(&scenarios[i], true, chance);
        print_message("%s: %.1f, by chance %.1f\n", scenarios[i].name, own[POINTS - 1], chance[POINTS - 1]);
        assert_true(own[POINTS - 1] < scenarios[i].most * chance[POINTS - 1]);
    }
}

static int print_curves(void) {
    for (int i = 0; i < SCENARIOS; i++) {
        double own[POINTS] = {0}, chance[POINTS] = {0};
        run(&scenarios[i], false, own);
        run(&scenarios[i], true, chance);
        for (int at = 0; at < POINTS; at++)
            printf("%d,%s,%.2f,%.2f\n", (at + 1) * STEP, scenarios[i].name, own[at], chance[at]);
    }
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(regret)};
    if (argc > 1 && strcmp(argv[1], "--curves") == 0) return print_curves();
    return unit_run(tests, 1, argc > 1 ? argv[1] : NULL);
}
