/* control/reward.h: shares, weights, and that any figures give a cost within bounds. */
#include "unit.h"

#include <math.h>

#include "control/reward.h"

static void shares(void **state) {
    (void)state;
    struct hak_period period = {
        .cpu_ns = 1000, .kernel_ns = 200, .miss_ns = 100, .kept_bytes = 32 << 20, .used_bytes = 16 << 20};
    struct hak_costs costs = hak_costs_of(&period);
    assert_true(costs.kernel == 0.2 && costs.miss == 0.1 && costs.kept == 0.5);
    costs = hak_costs_of(&(struct hak_period){0});
    assert_true(costs.kernel == 0 && costs.miss == 0 && costs.kept == 0);
    period.miss_ns = 5000; /* samples are multiplied */
    assert_true(hak_costs_of(&period).miss == HAK_COST_MOST);
}

static void goals(void **state) {
    (void)state;
    struct hak_costs time = {.miss = 0.1}, memory = {.kept = 0.5}, kernel = {.kernel = 0.1};
    assert_true(hak_cost_by_goal(&time, HAK_GOAL_SPEED) > hak_cost_by_goal(&memory, HAK_GOAL_SPEED));
    assert_true(hak_cost_by_goal(&time, HAK_GOAL_MEMORY) < hak_cost_by_goal(&memory, HAK_GOAL_MEMORY));
    assert_true(hak_cost_by_goal(&kernel, HAK_GOAL_LATENCY) > 2 * hak_cost_by_goal(&time, HAK_GOAL_LATENCY));
    assert_true(hak_cost_by_goal(&kernel, HAK_GOAL_BALANCED) == hak_cost_by_goal(&time, HAK_GOAL_BALANCED));
    assert_true(hak_cost_weights(HAK_GOAL_BALANCED).kept == 1.0 / 8);
    assert_true(hak_cost_weights(HAK_GOAL_SPEED).kept == 1.0 / 64);
    assert_true(hak_cost_weights(HAK_GOAL_LATENCY).kept == 1.0 / 32);
    assert_true(hak_cost_weights(HAK_GOAL_MEMORY).kept == 1);
    assert_true(hak_cost_weights(HAK_GOAL_LATENCY).kernel == 4);
    assert_true(hak_cost_by_goal(&kernel, (enum hak_goal)99) == hak_cost_by_goal(&kernel, HAK_GOAL_BALANCED));
}

static void any_figures(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int i = 0; i < 100000; i++) {
        struct hak_period period;
        uint64_t *fields[] = {&period.cpu_ns, &period.kernel_ns, &period.miss_ns, &period.kept_bytes,
                              &period.used_bytes};
        for (int field = 0; field < 5; field++) *fields[field] = unit_random(&random) >> unit_random(&random) % 64;
        struct hak_costs costs = hak_costs_of(&period);
        double cost = hak_cost_by_goal(&costs, (enum hak_goal)(i % 6));
        assert_true(cost >= 0 && cost <= HAK_COST_MOST);
    }
}

UNIT_MAIN(cmocka_unit_test(shares), cmocka_unit_test(goals), cmocka_unit_test(any_figures))
