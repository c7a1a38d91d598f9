#include "control/trial.h"

#include "control/arithmetic.h"

/* Wrongly kept in one of 20; wrongly rolled back in one of 5, which costs but an opportunity. */
static const double enough_to_keep = 20, enough_to_roll_back = 5;

static const double twice_the_cost = -1.0 / 3;

enum { BET_SIZES = 7, LEAST_PAIRS = 2 };

void hak_trial_begin(struct hak_trial *trial) { *trial = (struct hak_trial){0}; }

/* Betting on differences of the sign that `sum` has when they are as bet. For each size of bet b: the product of
 * exp(b * difference - b^2 * difference^2 / 2), whose mean is at most 1 where differences are symmetric about 0, or less. */
static double fortune(double sum, double squares) {
    double total = 0, bet = 1;
    for (int i = 0; i < BET_SIZES; i++, bet *= 2)
        total += hak_exp2((bet * sum - bet * bet * squares / 2) * 1.4426950408889634); /* 1 / ln 2 */
    return total / BET_SIZES;
}

double hak_trial_evidence(const struct hak_trial *trial) { return fortune(trial->sum, trial->squares); }

double hak_trial_gain(const struct hak_trial *trial) {
    double difference = trial->pairs == 0 ? 0 : trial->sum / trial->pairs;
    return 2 * difference / (1 + difference);
}

enum hak_verdict hak_trial_add(struct hak_trial *trial, double incumbent_cost, double candidate_cost) {
    double incumbent = hak_clamp(incumbent_cost, 0, 1e12), candidate = hak_clamp(candidate_cost, 0, 1e12),
           both = incumbent + candidate, difference = both > 0 ? (incumbent - candidate) / both : 0;
    trial->pairs++;
    trial->sum += difference;
    trial->squares += difference * difference;
    if (fortune(trial->sum, trial->squares) >= enough_to_keep) return HAK_VERDICT_KEEP;
    bool hurts = trial->pairs >= LEAST_PAIRS && trial->sum <= twice_the_cost * trial->pairs;
    if (hurts || fortune(-trial->sum, trial->squares) >= enough_to_roll_back || trial->pairs >= HAK_TRIAL_PAIRS)
        return HAK_VERDICT_ROLL_BACK; /* V1 */
    return HAK_VERDICT_OPEN;
}
