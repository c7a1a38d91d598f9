/* control/life_cycle.h: what is learned, kept, rolled back and learned again, in a program made of numbers; that a bad candidate does
 * not stay; and that no cost leads out of the bounds. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "control/life_cycle.h"

enum { SLOW_PERIODS = 60, ALL = 7 };

/* Two knobs and the strategies. */
static const struct hak_dimension dimensions[] = {
    {.arm_count = 5, .first = 1, .periods = 2},
    {.arm_count = 4, .first = 1, .periods = 4},
    {.arm_count = HAK_STRATEGIES, .first = 11, .periods = 2, .is_rated = true},
};

static struct hak_life_cycle cycle;
static struct hak_rating ratings[3];
static uint64_t random_state;

/* The program: each dimension has a best arm, and each step away from it costs so much more. */
static uint32_t best[3];
static double step_cost, noise_cost, base_cost, total_cost;
static uint32_t carried; /* periods until a change has its whole effect */

static struct hak_life_cycle before;

/* All arms of these dimensions promise something. */
static const struct hak_prospect *prospects_of(uint32_t dimensions_set) {
    static struct hak_prospect prospects[3];
    for (uint32_t i = 0; i < 3; i++)
        prospects[i] = (struct hak_prospect){(1u << dimensions[i].arm_count) - 1, dimensions_set >> i & 1 ? 0.1 : 0};
    return prospects;
}

static double distance(uint32_t a, uint32_t b) { return a < b ? b - a : a - b; }

static double cost_of(const uint8_t *arms) {
    double cost = base_cost;
    for (uint32_t i = 0; i < 3; i++) cost += step_cost * distance(arms[i], best[i]);
    return cost;
}

static struct hak_move period(uint32_t eligible) {
    static double lagging;
    double now = cost_of(cycle.in_force), noise = (double)(unit_random(&random_state) % 2001) / 1000 - 1;
    lagging = carried == 0 ? now : lagging + (now - lagging) / carried;
    total_cost += lagging;
    before = cycle;
    struct hak_move move = hak_life_cycle_step(&cycle, lagging + noise_cost * noise, prospects_of(eligible), ratings);
    if (move.is_made) assert_int_equal(cycle.in_force[move.dimension], move.to);
    for (uint32_t i = 0; i < 3; i++) /* nothing changes but what is said */
        if (!move.is_made || i != move.dimension) assert_int_equal(cycle.in_force[i], before.in_force[i]);
    return move;
}

static void begin(void) {
    for (int i = 0; i < 3; i++) hak_rating_begin(&ratings[i]);
    hak_life_cycle_begin(&cycle, dimensions, 3, SLOW_PERIODS, 42);
    random_state = 4711;
    best[0] = best[1] = 1;
    best[2] = 11;
    step_cost = 0.02;
    noise_cost = 0.003;
    base_cost = 0.05;
    carried = 0;
}

/* Until it is frozen, and nothing is left to try; returns the periods that took. */
static uint32_t learn(uint32_t eligible, uint32_t most) {
    uint32_t periods = 0;
    while (cycle.state != HAK_FROZEN || (eligible & ~cycle.done) != 0) {
        period(eligible);
        assert_true(++periods < most);
    }
    return periods;
}

static void nothing_to_gain(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < 1000; i++) assert_false(period(0).is_made);
    assert_int_equal(cycle.state, HAK_FROZEN);
}

static void default_is_best(void **state) {
    (void)state;
    begin();
    learn(ALL, 2000);
    assert_int_equal(cycle.chosen[0], 1);
    assert_int_equal(cycle.chosen[1], 1);
    assert_true(cycle.chosen[2] >= 10);
    for (int i = 0; i < 2000; i++) assert_false(period(ALL).is_made);
}

static void finds_the_best(void **state) {
    (void)state;
    for (uint32_t arm = 0; arm < 4; arm++) {
        begin();
        best[0] = 4 - arm;
        best[1] = arm;
        best[2] = 3 * arm;
        learn(ALL, 3000);
        assert_int_equal(cycle.chosen[0], best[0]);
        assert_int_equal(cycle.chosen[1], best[1]);
        assert_true(distance(cycle.chosen[2], best[2]) <= 1);
    }
}

static void delayed_effects(void **state) {
    (void)state;
    begin();
    best[0] = 3;
    carried = 2; /* half of a change shows at once */
    learn(3, 3000);
    assert_in_range(cycle.chosen[0], 2, 4);
    assert_int_equal(memcmp(cycle.chosen, cycle.in_force, sizeof cycle.chosen), 0);
}

static void only_what_is_eligible(void **state) {
    (void)state;
    begin();
    best[0] = best[1] = 3;
    learn(2, 2000);
    assert_int_equal(cycle.chosen[0], 1);
    assert_int_equal(cycle.chosen[1], 3);
    for (int i = 0; i < 5 * SLOW_PERIODS && cycle.state == HAK_FROZEN; i++) period(3); /* there is more now */
    assert_int_equal(cycle.state, HAK_LEARN);
    learn(3, 2000);
    assert_int_equal(cycle.chosen[0], 3);
}

static void learns_again(void **state) {
    (void)state;
    begin();
    learn(3, 2000);
    for (int i = 0; i < 2 * SLOW_PERIODS; i++) period(3);
    best[0] = 4; /* costs rise to more than twice */
    uint32_t periods = 0;
    for (; cycle.state == HAK_FROZEN && periods < 9 * SLOW_PERIODS; periods++) period(3);
    assert_in_range(periods, SLOW_PERIODS / 2, 3 * SLOW_PERIODS);
    learn(3, 2000);
    assert_int_equal(cycle.chosen[0], 4);
}

/* Costs that rise whatever is done are not a reason to try for ever. */
static void less_and_less_in_vain(void **state) {
    (void)state;
    begin();
    uint32_t moves[2] = {0, 0}, half = 20000;
    for (uint32_t i = 0; i < 2 * half; i++) {
        base_cost = i / 400 % 2 == 0 ? 0.05 : 0.5;
        moves[i / half] += period(1).is_made;
    }
    assert_true(moves[1] < moves[0]);
    assert_true(moves[1] < half / 20);
}

/* ---- Canaries ------------------------------------------------------------------------------------------------------- */

static void keeps_a_good_one(void **state) {
    (void)state;
    begin();
    best[0] = 3;
    learn(0, SLOW_PERIODS);
    hak_life_cycle_try(&cycle, 0, 3);
    uint32_t periods = 0;
    for (; cycle.state == HAK_CANARY; periods++) period(0);
    assert_true(periods < 2 * SLOW_PERIODS);
    assert_int_equal(cycle.chosen[0], 3);
}

/* However bad it is, and whatever it is a candidate for, it is rolled back within one and a half slow periods. It costs its excess in every other
 * pull until then; of a run of an hour that is less than a hundredth. */
static void rolls_a_bad_one_back(void **state) {
    (void)state;
    static const double steps[] = {0, 0.001, 0.005, 0.02, 0.3, 10};
    for (uint32_t dimension = 0; dimension < 3; dimension++)
        for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            uint32_t bad = dimension == 2 ? 0 : 3, periods = 0;
            begin();
            step_cost = steps[i];
            learn(0, SLOW_PERIODS);
            total_cost = 0;
            hak_life_cycle_try(&cycle, dimension, bad);
            struct hak_move move = {0};
            for (; cycle.state == HAK_CANARY; periods++) move = period(0);
            assert_true(move.is_made && move.why == HAK_WHY_ROLL_BACK);
            assert_true(periods <= 3 * SLOW_PERIODS / 2);
            assert_int_equal(cycle.chosen[dimension], dimensions[dimension].first);
            double excess = total_cost - base_cost * periods,
                   of_one = steps[i] * distance(bad, dimensions[dimension].first);
            assert_true(excess <= of_one * (periods / 2.0 + 4));
            if (of_one > base_cost) assert_true(periods <= 4 * dimensions[dimension].periods + 3); /* two pairs */
        }
}

/* It is in force for one pull; where effects come at once, for one period. */
static void disaster_ends_soon(void **state) {
    (void)state;
    for (uint32_t dimension = 0; dimension < 2; dimension++)
        for (uint64_t seed = 0; seed < 20; seed++) { /* whoever begins */
            begin();
            learn(0, SLOW_PERIODS);
            cycle.random = seed;
            step_cost = 10;
            hak_life_cycle_try(&cycle, dimension, 3);
            uint32_t in_force = 0, most = dimension == 0 ? 1 : dimensions[dimension].periods;
            while (cycle.state == HAK_CANARY) {
                in_force += cycle.in_force[dimension] == 3;
                period(0);
            }
            assert_int_equal(cycle.chosen[dimension], 1);
            assert_int_equal(in_force, most);
        }
}

/* Noise in which nothing can be told. */
static void no_proof_no_change(void **state) {
    (void)state;
    begin();
    noise_cost = 5;
    int kept = 0;
    for (int i = 0; i < 200; i++) {
        learn(0, SLOW_PERIODS);
        hak_life_cycle_try(&cycle, 0, 1 + (uint32_t)(i % 4));
        best[0] = cycle.chosen[0];
        while (cycle.state == HAK_CANARY) kept += period(0).why == HAK_WHY_KEEP && cycle.state != HAK_CANARY;
    }
    assert_in_range(kept, 0, 15);
}

/* A visit of ten periods to this phase. While a candidate is in force nobody looks at phases: where the visit ends with one in force, the
 * next phase's cost is taken for its. */
static void visit(double elsewhere_cost, double warm_up_cost) {
    double own_cost = base_cost;
    for (int i = 0; i < 10 && cycle.state == HAK_CANARY; i++) {
        base_cost = own_cost + (i < 4 ? warm_up_cost * (4 - i) : 0);
        period(0);
    }
    base_cost = own_cost;
    while (cycle.state == HAK_CANARY && cycle.in_force[0] != cycle.chosen[0])
        hak_life_cycle_step(&cycle, elsewhere_cost, prospects_of(0), ratings);
    hak_life_cycle_pause(&cycle);
}

/* Of a candidate that changes nothing. */
static void expect_none_is_kept(double elsewhere_cost, double warm_up_cost) {
    begin();
    step_cost = 0;
    learn(0, SLOW_PERIODS);
    int kept = 0;
    for (int i = 0; i < 200; i++) {
        uint8_t was = cycle.chosen[0];
        hak_life_cycle_try(&cycle, 0, was == 3 ? 1 : 3);
        while (cycle.state == HAK_CANARY) visit(elsewhere_cost, warm_up_cost);
        kept += cycle.chosen[0] != was;
    }
    assert_in_range(kept, 0, 15);
}

static void ends_of_visits_are_no_proof(void **state) {
    (void)state;
    expect_none_is_kept(0, 0);
    expect_none_is_kept(10, 0);
}

static void beginnings_of_visits_are_no_proof(void **state) {
    (void)state;
    expect_none_is_kept(0.05, 0.02);
}

/* Bursts of work, of which the last period costs more: what is cleaned up there is no effect of the arm that happens to be in force. */
static void ends_of_bursts_are_no_proof(void **state) {
    (void)state;
    for (uint32_t length = 4; length <= 12; length++)
        for (uint32_t dimension = 0; dimension < 3; dimension++) {
            uint32_t kept = 0;
            for (uint64_t seed = 0; seed < 100; seed++) {
                begin();
                cycle.random = seed;
                hak_life_cycle_try(&cycle, dimension, 3);
                while (cycle.state == HAK_CANARY) {
                    for (uint32_t i = 1; i <= length && cycle.state == HAK_CANARY; i++) {
                        double noise = 0.95 + (double)(unit_random(&random_state) % 1001) / 1e4;
                        hak_life_cycle_step(&cycle, noise * (i == length ? 1.3 : 1), prospects_of(0), ratings);
                    }
                    hak_life_cycle_pause(&cycle);
                }
                kept += cycle.chosen[dimension] == 3;
            }
            assert_in_range(kept, 0, 9);
        }
}

/* Where each stretch of work ends with the first pull, no other arm than the chosen one is ever in force: that is no trial. */
static void what_was_not_in_force_was_not_tried(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < 20 * SLOW_PERIODS && cycle.state != HAK_FROZEN; i++) {
        period(1);
        if (i % 3 == 2) hak_life_cycle_pause(&cycle);
    }
    assert_int_equal(cycle.state, HAK_FROZEN);
    assert_int_equal(cycle.done & 1, 0);
    assert_int_equal(cycle.outcomes[0], HAK_OUTCOME_UNTRIED);
}

/* A pair takes its halves, a period before the first pair of a visit, and one after each. */
static void a_visit_as_long_as_a_pair(void **state) {
    (void)state;
    for (uint32_t dimension = 0; dimension < 2; dimension++)
        for (uint32_t is_enough = 0; is_enough < 2; is_enough++) {
            uint32_t length = 2 * dimensions[dimension].periods + 1 + is_enough;
            begin();
            hak_life_cycle_try(&cycle, dimension, 3);
            for (uint32_t i = 1; cycle.state == HAK_CANARY; i++) {
                period(0);
                if (i % length == 0) hak_life_cycle_pause(&cycle);
            }
            assert_true((cycle.trial.pairs > 0) == is_enough);
        }
}

static void kept_in_short_visits(void **state) {
    (void)state;
    begin();
    best[0] = 3;
    learn(0, SLOW_PERIODS);
    hak_life_cycle_try(&cycle, 0, 3);
    while (cycle.state == HAK_CANARY) visit(10, 0.02);
    assert_int_equal(cycle.chosen[0], 3);
}

/* ---- Phases, pins, bounds ------------------------------------------------------------------------------------------- */

static void pauses(void **state) {
    (void)state;
    begin();
    best[0] = 3;
    for (int visit = 0; cycle.state != HAK_FROZEN; visit++) { /* 20 periods each */
        assert_true(visit < 100);
        for (int i = 0; i < 20; i++) period(3);
        hak_life_cycle_pause(&cycle);
        assert_int_equal(memcmp(cycle.chosen, cycle.in_force, sizeof cycle.chosen), 0);
    }
    assert_int_equal(cycle.chosen[0], 3);
}

static uint32_t matches(void) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) sum += ratings[2].matches[i];
    return sum / 2;
}

/* Half a match before a pause and half after it are none; those before it count. */
static void matches_begin_anew(void **state) {
    (void)state;
    for (int periods = 2; periods < 30; periods++) {
        begin();
        for (int i = 0; i < periods; i++) period(4);
        uint32_t had = matches();
        hak_life_cycle_pause(&cycle);
        assert_int_equal(cycle.focus, 2);
        for (uint32_t i = 0; i < 2 * dimensions[2].periods; i++) period(4);
        assert_int_equal(matches(), had);
        period(4);
        period(4); /* with what was in force before */
        assert_int_equal(matches(), had + 1);
    }
}

/* ---- Rounds --------------------------------------------------------------------------------------------------------- */

/* Of all that could be tried, first what promises most for its time: the second dimension takes as long as 1.7 of the first. */
static void the_best_prospect_first(void **state) {
    (void)state;
    for (uint32_t wanted = 0; wanted < 2; wanted++) {
        begin();
        struct hak_prospect prospects[3] = {{31, 0.05}, {15, wanted == 0 ? 0.07 : 0.1}, {0, 0}};
        hak_life_cycle_step(&cycle, 0.05, prospects, ratings);
        assert_int_equal(cycle.focus, wanted);
    }
}

/* An arm without a prospect is not in force for a moment, however good it is. */
static void only_arms_with_a_prospect(void **state) {
    (void)state;
    begin();
    best[0] = 4;
    struct hak_prospect prospects[3] = {{1 << 2 | 1 << 0, 0.1}, {0, 0.1}, {1 << 3 | 1 << 7, 0.1}};
    uint32_t tried[3] = {0};
    for (int i = 0; i < 1000; i++) {
        hak_life_cycle_step(&cycle, cost_of(cycle.in_force), prospects, ratings);
        for (uint32_t k = 0; k < 3; k++) tried[k] |= 1u << cycle.in_force[k];
    }
    assert_int_equal(tried[0], 1 << 0 | 1 << 1 | 1 << 2);
    assert_int_equal(tried[1], 1 << 1);
    assert_int_equal(tried[2], 1 << 3 | 1 << 7 | 1 << 11);
    assert_int_equal(cycle.chosen[0], 2);
}

/* Nor does the chosen arm by itself make a match. */
static void the_chosen_arm_is_no_prospect(void **state) {
    (void)state;
    begin();
    struct hak_prospect prospects[3] = {{1 << 1, 0.1}, {0, 0}, {1 << 11, 0.1}};
    for (int i = 0; i < 200; i++) assert_false(hak_life_cycle_step(&cycle, 0.05, prospects, ratings).is_made);
    assert_int_equal(cycle.state, HAK_FROZEN);
}

/* Y3, however much there is to try, and however noisy it is. */
static void a_round_ends(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        begin();
        cycle.random = seed;
        best[0] = best[1] = 3;
        best[2] = 2;
        noise_cost = seed % 2 == 0 ? 0.003 : 0.1;
        uint32_t periods = 0;
        while (cycle.state != HAK_FROZEN) {
            period(ALL);
            assert_true(++periods <= 2 * SLOW_PERIODS + 1);
        }
        assert_true(cycle.done != 0);
    }
}

/* Also where the program began with something else: what comes up while it looks is decided well within two slow periods. */
static void late_prospects_end_in_time(void **state) {
    (void)state;
    static const struct hak_prospect some[3] = {{0}, {0}, {1 << 2 | 1 << 5 | 1 << 8 | 1 << 11, 0.1}};
    for (uint32_t late = 0; late < SLOW_PERIODS / 12; late++) {
        begin();
        best[2] = 2;
        for (uint32_t i = 0; i < late; i++) assert_false(period(0).is_made);
        uint32_t periods = late;
        for (; cycle.state != HAK_FROZEN; periods++) {
            double noise = late % 2 == 0 ? 0 : (double)(unit_random(&random_state) % 100) / 100;
            hak_life_cycle_step(&cycle, cost_of(cycle.in_force) + noise, some, ratings);
        }
        assert_true(periods <= SLOW_PERIODS / 12 + 3 * SLOW_PERIODS / 2 + 1);
        assert_true((cycle.done >> 2 & 1) != 0);
    }
}

/* A round in which nothing was promised has cost nothing: the next one begins as soon as something is. */
static void soon_after_nothing(void **state) {
    (void)state;
    for (uint32_t nothing = SLOW_PERIODS; nothing < 2 * SLOW_PERIODS; nothing += 7) {
        begin();
        for (uint32_t i = 0; i < nothing; i++) assert_false(period(0).is_made);
        assert_int_equal(cycle.state, HAK_FROZEN);
        uint32_t periods = 0;
        for (; cycle.state == HAK_FROZEN; periods++) period(4);
        assert_true(periods <= SLOW_PERIODS / 12);
    }
}

/* However short a slow period is: a round has time to try each arm of any dimension, and for the canary. */
static void short_slow_periods(void **state) {
    (void)state;
    static const uint32_t slow_periods[] = {20, 10, 1};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t dimension = 0; dimension < 3; dimension++) {
            begin();
            hak_life_cycle_begin(&cycle, dimensions, 3, slow_periods[i], 42);
            best[dimension] = dimension == 2 ? 2 : 3;
            while ((cycle.done >> dimension & 1) == 0) period(1u << dimension);
            assert_int_equal(cycle.outcomes[dimension], HAK_OUTCOME_KEPT);
        }
}

/* What a round reserves for a canary is enough for its last pair, and no period more. */
static void the_last_pair_counts(void **state) {
    (void)state;
    for (uint32_t dimension = 0; dimension < 2; dimension++) {
        begin();
        hak_life_cycle_begin(&cycle, dimensions, 3, 1, 42);
        step_cost = noise_cost = 0; /* nothing can be told */
        hak_life_cycle_try(&cycle, dimension, 3);
        uint32_t periods = 0;
        for (; cycle.state == HAK_CANARY; periods++) period(0);
        assert_int_equal(cycle.trial.pairs, 8);
        assert_int_equal(periods, 1 + 8 * (2 * dimensions[dimension].periods + 1));
        assert_int_equal(cycle.outcomes[dimension], HAK_OUTCOME_ROLLED_BACK);
    }
}

/* Visits that are shorter than a pull. */
static void what_had_no_time_is_not_done(void **state) {
    (void)state;
    for (uint32_t dimension = 1; dimension < 3; dimension++) {
        begin();
        for (int i = 0; i < 10 * SLOW_PERIODS; i++) {
            if (i % 3 == 2) hak_life_cycle_pause(&cycle);
            period(1u << dimension);
            assert_int_equal(cycle.done, 0);
        }
        assert_int_equal(cycle.outcomes[dimension], HAK_OUTCOME_UNTRIED);
        best[dimension] = dimension == 2 ? 2 : 3;
        learn(1u << dimension, 100 * SLOW_PERIODS);
        assert_int_equal(cycle.outcomes[dimension], HAK_OUTCOME_KEPT);
    }
}

/* Strategies are decided in one round, all twelve of them, kept and rolled back alike; in visits of any length, with as many periods
 * in all but for the matches that are interrupted. */
static void strategies_end_with_a_verdict(void **state) {
    (void)state;
    for (uint32_t visit = 12; visit <= 2 * SLOW_PERIODS; visit *= 3) {
        begin();
        best[2] = 2;
        uint32_t periods = 0;
        for (; cycle.state != HAK_FROZEN; periods++) {
            if (periods % visit == visit - 1) hak_life_cycle_pause(&cycle);
            period(4);
            assert_true(periods <= 2 * SLOW_PERIODS + 1);
        }
        assert_int_equal(cycle.outcomes[2], HAK_OUTCOME_KEPT);
        assert_true(cycle.chosen[2] <= 5);
        assert_true(matches() >= 8);
    }
}

/* Periods until some state, of a program with four strategies that differ. */
static uint32_t step_until(enum hak_life_state state) {
    static const struct hak_prospect prospects[3] = {{0}, {0}, {1 << 2 | 1 << 5 | 1 << 8 | 1 << 11, 0.1}};
    uint32_t periods = 0;
    for (; cycle.state != state; periods++) {
        assert_true(periods < 2 * SLOW_PERIODS + 2);
        hak_life_cycle_step(&cycle, cost_of(cycle.in_force), prospects, ratings);
    }
    return periods;
}

/* What one phase has found out by matches another one tries at once. */
static void matches_serve_another_phase(void **state) {
    (void)state;
    begin();
    best[2] = 2;
    assert_in_range(step_until(HAK_CANARY), 8 * 4, 8 * 5 + 2); /* four for each strategy */
    step_until(HAK_FROZEN);
    assert_int_equal(cycle.chosen[2], 2);
    assert_int_equal(matches(), 8);
    hak_life_cycle_begin(&cycle, dimensions, 3, SLOW_PERIODS, 43);
    assert_in_range(step_until(HAK_CANARY), 1, 3);
    assert_int_equal(matches(), 8);
    step_until(HAK_FROZEN);
    assert_int_equal(cycle.outcomes[2], HAK_OUTCOME_KEPT);
}

/* A program goes from one of two phases to the other and back, in visits of so many periods. Periods until something has come of a
 * dimension in one of them; `promised` are the dimensions that promise something in the other phase. */
static uint32_t decide_in_two_phases(uint32_t visit, uint32_t dimension, uint32_t promised) {
    struct hak_life_cycle other;
    begin();
    best[dimension] = 2;
    hak_life_cycle_begin(&other, dimensions, 3, SLOW_PERIODS, 43);
    uint32_t periods = 0, dimension_bits = 1u << dimension;
    for (; ((cycle.done | other.done) & dimension_bits) == 0 && periods < 100 * SLOW_PERIODS; periods++) {
        bool is_other = periods / visit % 2 != 0;
        if (periods % visit == 0 && periods > 0) {
            struct hak_life_cycle left = cycle;
            hak_life_cycle_pause(&left);
            cycle = other;
            hak_life_cycle_follow(&cycle, &left, prospects_of(is_other ? promised : dimension_bits));
            other = left;
        }
        base_cost = is_other ? 0.2 : 0.05;
        period(is_other ? promised : dimension_bits);
    }
    return periods;
}

/* What is rated is the program's: matches and the canary go on in another phase, within the same round. */
static void matches_follow_the_program(void **state) {
    (void)state;
    for (uint32_t visit = 12; visit <= 48; visit *= 2) {
        assert_true(decide_in_two_phases(visit, 2, 4) <= 2 * SLOW_PERIODS + 1);
        assert_true(matches() >= 4);
        assert_int_equal(cycle.outcomes[2], HAK_OUTCOME_KEPT); /* of the phase that it ended in */
    }
}

/* They do not where nothing is promised, or another arm is chosen, or it was tried already; nor does what a bandit learns. */
static void not_everything_follows(void **state) {
    (void)state;
    struct hak_life_cycle other;
    enum { FOLLOWS, NO_PROSPECT, OTHER_ARM, DONE, BUSY, CASES };
    for (int of = FOLLOWS; of < CASES; of++) {
        begin();
        for (int i = 0; i < 20; i++) period(4);
        hak_life_cycle_pause(&cycle);
        hak_life_cycle_begin(&other, dimensions, 3, SLOW_PERIODS, 43);
        if (of == OTHER_ARM) other.chosen[2] = other.in_force[2] = 3;
        if (of == DONE) other.done = 4;
        if (of == BUSY) other.focus = 1;
        uint32_t left = cycle.round_left;
        hak_life_cycle_follow(&other, &cycle, prospects_of(of == NO_PROSPECT ? 3 : 7));
        assert_int_equal(other.focus, of == FOLLOWS ? 2 : of == BUSY ? 1 : 3);
        assert_int_equal(cycle.focus, of == FOLLOWS ? 3 : 2);
        if (of == FOLLOWS) assert_int_equal(other.round_left, left);
    }
    begin();
    for (int i = 0; i < 20; i++) period(1);
    hak_life_cycle_pause(&cycle);
    hak_life_cycle_begin(&other, dimensions, 3, SLOW_PERIODS, 43);
    hak_life_cycle_follow(&other, &cycle, prospects_of(7));
    assert_int_equal(other.focus, 3);
    assert_int_equal(cycle.focus, 0);
}

/* Costs that have risen make all matches void. */
static void risen_costs_void_matches(void **state) {
    (void)state;
    begin();
    best[2] = 2;
    step_until(HAK_FROZEN);
    for (int i = 0; i < 2 * SLOW_PERIODS; i++) period(4);
    assert_int_equal(matches(), 8);
    base_cost *= 4;
    step_until(HAK_LEARN);
    assert_int_equal(matches(), 0);
}

/* Who comes first in a pair is tossed: at the beginning and the end of a visit costs change by themselves. */
static void either_comes_first(void **state) {
    (void)state;
    begin();
    int candidate_first = 0;
    for (int i = 0; i < 100; i++) {
        hak_life_cycle_try(&cycle, 0, 3);
        while (cycle.pair != HAK_PAIR_FIRST) period(0);
        candidate_first += cycle.in_force[0] == 3;
    }
    assert_in_range(candidate_first, 20, 80);
}

static void any_cost(void **state) { /* Y1, Y2 */
    (void)state;
    static const double costs[] = {0, 1, 0.5, -1, 1e-320, 1e308, NAN, INFINITY, -INFINITY};
    for (uint64_t seed = 1; seed <= 50; seed++) {
        uint64_t random = seed;
        for (int i = 0; i < 3; i++) hak_rating_begin(&ratings[i]);
        hak_life_cycle_begin(&cycle, dimensions, 3, 1 + (uint32_t)(seed % 70), seed);
        for (int i = 0; i < 4000; i++) {
            uint64_t draw = unit_random(&random);
            double cost = draw % 3 == 0 ? costs[draw / 3 % 9] : (double)(draw >> 40) / (1 << 24);
            struct hak_move move = hak_life_cycle_step(&cycle, cost, prospects_of((uint32_t)(draw >> 8 & 7)), ratings);
            if (draw % 101 == 0) hak_life_cycle_pause(&cycle);
            if (draw % 307 == 0) hak_life_cycle_try(&cycle, (uint32_t)(draw >> 16) % 2, (uint32_t)(draw >> 24) % 4);
            if (move.is_made) assert_true(move.to < dimensions[move.dimension].arm_count);
            uint32_t other = 0;
            for (uint32_t at = 0; at < 3; at++) {
                assert_true(cycle.in_force[at] < dimensions[at].arm_count);
                assert_true(cycle.chosen[at] < dimensions[at].arm_count);
                other += cycle.in_force[at] != cycle.chosen[at];
            }
            assert_true(other <= (cycle.state != HAK_FROZEN));
        }
    }
}

UNIT_MAIN(cmocka_unit_test(nothing_to_gain), cmocka_unit_test(default_is_best), cmocka_unit_test(finds_the_best),
          cmocka_unit_test(delayed_effects), cmocka_unit_test(only_what_is_eligible), cmocka_unit_test(learns_again),
          cmocka_unit_test(less_and_less_in_vain), cmocka_unit_test(keeps_a_good_one),
          cmocka_unit_test(rolls_a_bad_one_back), cmocka_unit_test(disaster_ends_soon),
          cmocka_unit_test(no_proof_no_change), cmocka_unit_test(ends_of_visits_are_no_proof),
          cmocka_unit_test(beginnings_of_visits_are_no_proof), cmocka_unit_test(ends_of_bursts_are_no_proof),
          cmocka_unit_test(what_was_not_in_force_was_not_tried), cmocka_unit_test(a_visit_as_long_as_a_pair),
          cmocka_unit_test(kept_in_short_visits), cmocka_unit_test(pauses), cmocka_unit_test(matches_begin_anew),
          cmocka_unit_test(the_best_prospect_first), cmocka_unit_test(only_arms_with_a_prospect),
          cmocka_unit_test(the_chosen_arm_is_no_prospect), cmocka_unit_test(a_round_ends),
          cmocka_unit_test(short_slow_periods), cmocka_unit_test(the_last_pair_counts),
          cmocka_unit_test(what_had_no_time_is_not_done), cmocka_unit_test(strategies_end_with_a_verdict),
          cmocka_unit_test(matches_serve_another_phase), cmocka_unit_test(matches_follow_the_program),
          cmocka_unit_test(not_everything_follows), cmocka_unit_test(late_prospects_end_in_time),
          cmocka_unit_test(soon_after_nothing), cmocka_unit_test(risen_costs_void_matches),
          cmocka_unit_test(either_comes_first), cmocka_unit_test(any_cost))
