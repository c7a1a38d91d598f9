/* Reward: what a period has cost, in one number, by the goal that was set. Pure.
 *
 * The allocator does not know how much work the program has done, because hits are not counted. But of two ways to
 * allocate, the one that leaves more of the processor's time to the program costs less. So costs are shares: of the
 * processor time that slow paths and the kernel took, and of the memory that is kept without being used.
 */
#ifndef HAK_CONTROL_REWARD_H
#define HAK_CONTROL_REWARD_H

#include "base/bits.h"
#include "base/config.h"

/* What happened in a period, and what there is at its end. */
struct hak_period {
    uint64_t cpu_ns; /* of the process; `kernel_ns` of it in the kernel */
    uint64_t kernel_ns;
    uint64_t miss_ns;    /* in slow paths, as sampled */
    uint64_t kept_bytes; /* memory that hakmem has and the program doesn't use */
    uint64_t used_bytes;
};

/* Each from 0 to HAK_COST_MOST. More than 1 is more than there can be, but time stamps also see time in which a thread
 * waits for a processor, and which of two is more is what matters. */
enum { HAK_COST_MOST = 4 };
struct hak_costs {
    double miss, kernel, kept;
};

struct hak_costs hak_costs_of(const struct hak_period *period);

/* Kept memory is a burden in proportion to all there is, and this much: below, there is next to none to save. */
#define HAK_SMALL_HEAP_BYTES (16 * HAK_MIB)

/* How much each share counts by a goal: any number, what is no goal counts as balanced. */
struct hak_costs hak_cost_weights(enum hak_goal goal);

/* The mean by these weights. */
double hak_cost_by_goal(const struct hak_costs *costs, enum hak_goal goal);

#endif
