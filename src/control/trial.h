/* Trial: is a candidate better than what is in force? A sequential test on pairs of costs, taken one right after the
 * other. Pure.
 *
 * The test bets on the relative difference of each pair. If the candidate is no better, every bet is fair or worse,
 * however large or wild the noise is, as long as it is as likely to help as to hurt, which the caller sees to by
 * tossing for the order within a pair. So a fortune of 20 comes about by chance in one trial of 20 at most, whenever
 * one looks. Bets of several sizes at once find large and small differences: the largest look at little but the sign,
 * and so need few pairs where all are alike.
 *
 * What costs twice as much is out after two pairs, what costs ten times as much after one.
 *
 *   V1  Each trial ends, after HAK_TRIAL_PAIRS pairs at the latest: what is not shown to be better is not kept.
 */
#ifndef HAK_CONTROL_TRIAL_H
#define HAK_CONTROL_TRIAL_H

#include "base/platform.h"

enum { HAK_TRIAL_PAIRS = 60, HAK_BET_SIZES = 7 };

enum hak_verdict { HAK_VERDICT_OPEN, HAK_VERDICT_KEEP, HAK_VERDICT_ROLL_BACK };

struct hak_trial {
    uint32_t pairs;
    double sum; /* of (incumbent - candidate) / (incumbent + candidate) */
    double fortunes_for[HAK_BET_SIZES], fortunes_against[HAK_BET_SIZES]; /* of bets on the candidate, and against it */
};

void hak_trial_begin(struct hak_trial *trial);

/* Adds the costs of a pair, and says what follows. */
enum hak_verdict hak_trial_add(struct hak_trial *trial, double incumbent_cost, double candidate_cost);

/* What 1 has become by betting that the candidate is better. */
double hak_trial_evidence(const struct hak_trial *trial);

/* What the candidate costs in less, as a share of the incumbent's cost: negative when it costs more. A guess. */
double hak_trial_gain(const struct hak_trial *trial);

#endif
