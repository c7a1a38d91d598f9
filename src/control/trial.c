#include "control/trial.h"

#include "control/arithmetic.h"

/* Wrongly kept in one of 20; wrongly rolled back in one of 5, which costs but an opportunity. */
static const double enough_to_keep = 20, enough_to_roll_back = 5;

static const double twice_the_cost = -1.0 / 3, ten_times_the_cost = -9.0 / 11; /* as differences */

enum { LEAST_PAIRS = 2 };

void hak_trial_begin(struct hak_trial *trial) {
    *trial = (struct hak_trial){0};
    for (int i = 0; i < HAK_BET_SIZES; i++) trial->fortunes_for[i] = trial->fortunes_against[i] = 1;
}

/* A bet of size b on a difference d multiplies a fortune by exp(b * d) / cosh(b * d), one against it by exp(-b * d) /
 * cosh(b * d). Of d and -d, one wins what the other loses: the mean is 1 where differences are symmetric about 0, and
 * at most 1 where they are less. */
static void bet_on(struct hak_trial *trial, double difference) {
    double size = 1;
    for (int i = 0; i < HAK_BET_SIZES; i++, size *= 2) {
        double factor = 2 / (1 + hak_exp2(-2 * size * difference * 1.4426950408889634)); /* 1 / ln 2 */
        trial->fortunes_for[i] *= factor;
        trial->fortunes_against[i] *= 2 - factor;
    }
}

static double mean(const double fortunes[HAK_BET_SIZES]) {
    double sum = 0;
    for (int i = 0; i < HAK_BET_SIZES; i++) sum += fortunes[i];
    return sum / HAK_BET_SIZES;
}

double hak_trial_evidence(const struct hak_trial *trial) { return mean(trial->fortunes_for); }

double hak_trial_gain(const struct hak_trial *trial) {
    double difference = trial->pairs == 0 ? 0 : trial->sum / trial->pairs;
    return 2 * difference / (1 + difference);
}

enum hak_verdict hak_trial_add(struct hak_trial *trial, double incumbent_cost, double candidate_cost) {
    double incumbent = hak_clamp(incumbent_cost, 0, 1e12), candidate = hak_clamp(candidate_cost, 0, 1e12),
           both = incumbent + candidate, difference = both > 0 ? (incumbent - candidate) / both : 0;
    trial->pairs++;
    trial->sum += difference;
    bet_on(trial, difference);
    if (mean(trial->fortunes_for) >= enough_to_keep) return HAK_VERDICT_KEEP;
    double least = trial->pairs < LEAST_PAIRS ? ten_times_the_cost : twice_the_cost;
    bool hurts = trial->sum <= least * trial->pairs;
    if (hurts || mean(trial->fortunes_against) >= enough_to_roll_back || trial->pairs >= HAK_TRIAL_PAIRS)
        return HAK_VERDICT_ROLL_BACK; /* V1 */
    return HAK_VERDICT_OPEN;
}
