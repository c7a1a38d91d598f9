/* Life cycle: what is learned in one phase of a program, and how a change comes into force. Pure: costs in, arms out.
 *
 *   LEARN    one dimension after the other: its arms are tried, a pull of some periods each, by a bandit; or as
 *            strategies by matches
 *   CANARY   what looked best is tried against what is in force, turn by turn, until a sequential test keeps it or
 *            rolls it back
 *   FROZEN   nothing is tried, for nothing is left that is worth it, or the round is over. Back to LEARN when costs
 *            have risen and stay so, or when there is something to gain in a dimension where there was nothing, or for
 *            which the last round had no time; each time in vain doubles the time until the next
 *
 * A dimension is a knob, or the same knob of a size class; its arms are numbers, what they mean is the caller's. He
 * says which arms have a prospect of gain. The dimension that promises the most for each period of trying comes first;
 * one without a prospect isn't tried.
 *
 *   Y1  Arms are below their dimension's arm_count, whatever the costs were.
 *   Y2  At most one dimension has an arm other than the chosen one in force, and none while FROZEN.
 *   Y3  A round is LEARN with its canaries. After a sixth of a slow period at most in which nothing was worth it,
 *       dimensions are tried for one and a half, or for as long as the first of them needs to try each arm with a
 *       prospect once, with a canary. One is begun only if there is time for its verdict; a canary that isn't kept by
 *       then is rolled back. What there was no time to try is not done.
 */
#ifndef HAK_CONTROL_LIFE_CYCLE_H
#define HAK_CONTROL_LIFE_CYCLE_H

#include "control/bandit.h"
#include "control/rating.h"
#include "control/trial.h"

enum { HAK_DIMENSIONS = 8 };

enum hak_life_state { HAK_LEARN, HAK_CANARY, HAK_FROZEN };

/* Of a canary's pair, or a match. */
enum hak_pair_state {
    HAK_PAIR_NONE,
    HAK_PAIR_FIRST,
    HAK_PAIR_SECOND,
    HAK_PAIR_DONE, /* it ended with an arm that isn't chosen: the chosen one is in force again, for a period */
};

/* Why an arm was put in force. */
enum hak_why { HAK_WHY_EXPLORE, HAK_WHY_CANARY, HAK_WHY_KEEP, HAK_WHY_ROLL_BACK, HAK_WHY_END, HAK_WHY_PHASE };

struct hak_dimension {
    uint32_t arm_count;
    uint32_t first;   /* the arm in force at the beginning */
    uint32_t periods; /* of a pull, >= 2: effects of the last arm fade in the first. 2 where they come at once */
    bool is_rated;    /* arms are strategies, at most HAK_STRATEGIES */
};

/* What a dimension promises: arms worth trying, in bits; and what the best of them may gain, 0 for nothing. */
struct hak_prospect {
    uint32_t arms;
    double gain;
};

/* What has come of a dimension since it was last tried. */
enum hak_outcome { HAK_OUTCOME_UNTRIED, HAK_OUTCOME_LEFT, HAK_OUTCOME_KEPT, HAK_OUTCOME_ROLLED_BACK };

struct hak_life_cycle {
    const struct hak_dimension *dimensions; /* const */
    uint32_t dimension_count;               /* const */
    uint32_t slow_periods;                  /* const: periods of the slow loop */
    enum hak_life_state state;
    uint8_t chosen[HAK_DIMENSIONS], in_force[HAK_DIMENSIONS]; /* arms */
    uint32_t done;                                            /* bits of dimensions learned since LEARN began */
    uint8_t outcomes[HAK_DIMENSIONS];                         /* enum hak_outcome */
    uint32_t round_left;                                      /* periods that this round may still try something */
    uint32_t looks_left;      /* of a round that has not begun anything, for a prospect */
    uint32_t focus;           /* LEARN, CANARY: the dimension; dimension_count for none */
    uint32_t arms;            /* of the focus, that are tried: bits, with the chosen one */
    struct hak_bandit bandit; /* of the focus */
    struct hak_trial trial;
    uint32_t candidate;
    uint32_t pull_periods, pulls; /* of this pull; done since the focus was turned to the dimension */
    double pull_cost, reference;  /* sum of this pull; mean of the first */
    struct hak_pairing pairing;
    enum hak_pair_state pair;
    double pair_costs[2]; /* of late: incumbent and candidate; or the first strategy, and the second */
    bool candidate_first;
    uint32_t frozen_periods, patience, rising; /* slow periods */
    double frozen_cost, settled_cost;          /* sum of this slow period; mean of a good one */
    bool kept_any;                             /* since LEARN began */
    uint64_t random;
};

struct hak_move {
    bool is_made;
    uint32_t dimension, from, to;
    enum hak_why why;
    double gain; /* how much less the arm that was in force has cost than the first one, or the candidate, as a share */
    double odds; /* for the candidate: hak_trial_evidence; 0 outside of trials */
};

void hak_life_cycle_begin(struct hak_life_cycle *cycle, const struct hak_dimension *dimensions, uint32_t count,
                          uint32_t slow_periods, uint64_t seed);

/* The end of a period in which the arms in force were those of `in_force`: takes its cost, and says what changes, which
 * has been entered into `in_force`. `prospects` and `ratings` are of the dimensions, by number. Ratings are the
 * program's, and not a phase's: a phase goes on with the matches of another. */
struct hak_move hak_life_cycle_step(struct hak_life_cycle *cycle, double cost, const struct hak_prospect *prospects,
                                    struct hak_rating *ratings);

/* Puts the chosen arms in force, in the program's absence: a pull, a pair or a match that was begun, or ended with an
 * arm that isn't chosen, is void. What was learned before stays, and the focus, too. */
void hak_life_cycle_pause(struct hak_life_cycle *cycle);

/* The program has gone from one phase to another, and both are paused: the matches of a dimension, or its canary, go on
 * there within the same round, if it has a prospect there, was not tried, and has the same arm chosen. A pair is of
 * one phase, as before. */
void hak_life_cycle_follow(struct hak_life_cycle *cycle, struct hak_life_cycle *before,
                           const struct hak_prospect *prospects);

/* What is being tried is somebody else's to turn by now: nothing comes of it, and the round goes on with the others. */
void hak_life_cycle_leave(struct hak_life_cycle *cycle);

/* Begins the canary of an arm, and a round with it. */
void hak_life_cycle_try(struct hak_life_cycle *cycle, uint32_t dimension, uint32_t arm);

#endif
