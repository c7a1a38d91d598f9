#include "control/reward.h"

#include "control/arithmetic.h"

static double share(double part, double whole) { return whole > 0 ? hak_clamp(part / whole, 0, HAK_COST_MOST) : 0; }

struct hak_costs hak_costs_of(const struct hak_period *period) {
    double cpu_ns = (double)period->cpu_ns, kept = (double)period->kept_bytes;
    return (struct hak_costs){
        .miss = share((double)period->miss_ns, cpu_ns),
        .kernel = share((double)period->kernel_ns, cpu_ns),
        .kept = share(kept, kept + (double)period->used_bytes + HAK_SMALL_HEAP_BYTES),
    };
}

/* How much each share counts. `latency`: what is slow about an allocator is mostly the kernel, and long misses. */
static const struct hak_costs weights_by_goal[] = {
    [HAK_GOAL_OF_PROFILE] = {1, 1, 0.125}, [HAK_GOAL_BALANCED] = {1, 1, 0.125},  [HAK_GOAL_SPEED] = {1, 1, 0.015625},
    [HAK_GOAL_MEMORY] = {1, 1, 1},         [HAK_GOAL_LATENCY] = {1, 4, 0.03125},
};

struct hak_costs hak_cost_weights(enum hak_goal goal) {
    return weights_by_goal[(uint32_t)goal < sizeof weights_by_goal / sizeof weights_by_goal[0] ? goal
                                                                                               : HAK_GOAL_BALANCED];
}

double hak_cost_by_goal(const struct hak_costs *costs, enum hak_goal goal) {
    struct hak_costs weight = hak_cost_weights(goal);
    double sum = weight.miss * costs->miss + weight.kernel * costs->kernel + weight.kept * costs->kept;
    return hak_clamp(sum / (weight.miss + weight.kernel + weight.kept), 0, HAK_COST_MOST);
}
