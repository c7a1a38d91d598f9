#include "control/bandit.h"

#include <string.h>

#include "base/check.h"
#include "control/arithmetic.h"

static const double discount = 0.98; /* rewards of the last 50 tries count */

/* Before there is data, rewards are taken to deviate by an eighth; two of them count against those that come. */
static const double first_variance = 1.0 / 64, first_weight = 2;

void hak_bandit_begin(struct hak_bandit *bandit, uint32_t arms) {
    HAK_ASSERT(arms != 0 && arms >> HAK_ARM_LIMIT == 0);
    memset(bandit, 0, sizeof *bandit);
    bandit->arms = arms;
}

static bool has_arm(const struct hak_bandit *bandit, uint32_t arm) { return (bandit->arms >> arm & 1) != 0; }

bool hak_bandit_has_tried_all(const struct hak_bandit *bandit) {
    for (uint32_t i = 0; i < HAK_ARM_LIMIT; i++)
        if (has_arm(bandit, i) && !(bandit->weights[i] > 0)) return false;
    return true;
}

double hak_bandit_mean(const struct hak_bandit *bandit, uint32_t arm) {
    return bandit->weights[arm] > 0 ? bandit->sums[arm] / bandit->weights[arm] : 0;
}

static uint32_t distance(uint32_t a, uint32_t b) { return a < b ? b - a : a - b; }

uint32_t hak_bandit_choose(const struct hak_bandit *bandit, uint32_t first) {
    uint32_t chosen = HAK_ARM_LIMIT;
    double total = 0, deviations = first_weight * first_variance, freedom = first_weight;
    for (uint32_t i = 0; i < HAK_ARM_LIMIT; i++) {
        if (!has_arm(bandit, i)) continue;
        double weight = bandit->weights[i], mean = hak_bandit_mean(bandit, i);
        if (!(weight > 0)) {
            if (chosen == HAK_ARM_LIMIT || distance(i, first) < distance(chosen, first)) chosen = i;
            continue;
        }
        total += weight;
        deviations += hak_clamp(bandit->squares[i] - weight * mean * mean, 0, weight);
        freedom += hak_clamp(weight - 1, 0, weight);
    }
    if (chosen < HAK_ARM_LIMIT) return chosen;
    double reach = 2 * deviations / freedom * hak_log2(total + 1), highest = -1;
    for (uint32_t i = 0; i < HAK_ARM_LIMIT; i++) {
        if (!has_arm(bandit, i)) continue;
        double bound = hak_bandit_mean(bandit, i) + hak_square_root(reach / bandit->weights[i]);
        if (!(bound > highest)) continue;
        highest = bound;
        chosen = i;
    }
    HAK_ASSERT(chosen < HAK_ARM_LIMIT); /* D1 */
    return chosen;
}

void hak_bandit_reward(struct hak_bandit *bandit, uint32_t arm, double reward) {
    reward = hak_clamp(reward, 0, 1);
    for (uint32_t i = 0; i < HAK_ARM_LIMIT; i++) {
        bandit->weights[i] *= discount;
        bandit->sums[i] *= discount;
        bandit->squares[i] *= discount;
    }
    bandit->weights[arm] += 1;
    bandit->sums[arm] += reward;
    bandit->squares[arm] += reward * reward;
}

uint32_t hak_bandit_best(const struct hak_bandit *bandit, uint32_t fallback) {
    uint32_t best = fallback;
    for (uint32_t i = 0; i < HAK_ARM_LIMIT; i++)
        if (hak_bandit_mean(bandit, i) > hak_bandit_mean(bandit, best)) best = i;
    return best;
}
