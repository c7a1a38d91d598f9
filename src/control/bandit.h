/* Bandit: which of a few arms to try next, by upper confidence bounds on discounted rewards (UCB1). Pure arithmetic.
 *
 * Old rewards count less and less, so that it follows a program that changes. How far a bound lies above the mean
 * follows from the noise of all arms together: what is measured differs between programs by more than between arms.
 *
 *   D1  Rewards are in 0..1; what isn't is made so. Chosen arms are of `arms`, whatever the rewards were.
 */
#ifndef HAK_CONTROL_BANDIT_H
#define HAK_CONTROL_BANDIT_H

#include "base/platform.h"

enum { HAK_ARM_LIMIT = 8 };

struct hak_bandit {
    uint32_t arms;                 /* bits of those that may be tried */
    double weights[HAK_ARM_LIMIT]; /* rewards so far, discounted; 0 for an arm that was not tried */
    double sums[HAK_ARM_LIMIT], squares[HAK_ARM_LIMIT];
};

void hak_bandit_begin(struct hak_bandit *bandit, uint32_t arms);

/* The arm to try: those that were not tried yet, beginning with `first` and its neighbours; then the one with the
 * highest bound. */
uint32_t hak_bandit_choose(const struct hak_bandit *bandit, uint32_t first);

void hak_bandit_reward(struct hak_bandit *bandit, uint32_t arm, double reward);

/* Each of its arms has had a reward. */
bool hak_bandit_has_tried_all(const struct hak_bandit *bandit);

/* 0 for an arm that was not tried. */
double hak_bandit_mean(const struct hak_bandit *bandit, uint32_t arm);

/* The arm with the highest mean; `fallback` when none is higher than its. */
uint32_t hak_bandit_best(const struct hak_bandit *bandit, uint32_t fallback);

#endif
