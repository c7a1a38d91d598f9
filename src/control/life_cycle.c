#include "control/life_cycle.h"

#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "control/arithmetic.h"

enum {
    PULLS_PER_ARM = 4,
    MATCHES_OF_EACH = 4, /* strategy, before the leader is a candidate */
    PAIRS_TO_KEEP = 8,   /* a candidate that gains some percent */
    FIRST_PATIENCE = 1,  /* slow periods that costs must have risen for */
    MOST_PATIENCE = 64,
    LOOKS_SHARE = 12, /* of a slow period: programs begin with something else than what they do later. A look takes as
                       * long as two periods in which something is tried */
};

static const double worth_a_canary = 0.02; /* a guess at what an arm saves, as a share of the cost */
static const double draw_margin = 0.1;     /* relative difference of costs that counts as a clear win */
static const double risen = 1.5;           /* costs that a frozen phase is learned again at, as a multiple */
static const double next_to_nothing = 0.002;
static const double disaster = 10; /* times the cost */

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

/* Periods of a canary that keeps what is good: the first one, and pairs with a period after each. */
static uint32_t canary_periods(const struct hak_dimension *dimension) {
    return 1 + PAIRS_TO_KEEP * (2 * dimension->periods + 1);
}

/* Of a pull, or of a match. */
static uint32_t try_periods(const struct hak_dimension *dimension) {
    return dimension->is_rated ? 2 * dimension->periods + 1 : dimension->periods;
}

/* To try each of these arms once, and for the canary. Of those that are rated the leader meets each of the others. */
static uint32_t least_periods(const struct hak_dimension *dimension, uint32_t arms) {
    return (hak_bit_count(arms) - dimension->is_rated) * try_periods(dimension) + canary_periods(dimension);
}

/* Three quarters of two slow periods, of which the rest is for looks before it, and for a machine on which periods take
 * longer. */
static uint32_t round_periods(const struct hak_life_cycle *cycle) { return 3 * cycle->slow_periods / 2; }

static void lengthen_round(struct hak_life_cycle *cycle, uint32_t least) {
    if (cycle->round_left < least) cycle->round_left = least;
}

/* This period is the last one in which something is tried. */
static bool is_over(const struct hak_life_cycle *cycle) { return cycle->round_left <= 1; } /* Y3 */

static void renew_round(struct hak_life_cycle *cycle) {
    cycle->round_left = round_periods(cycle);
    cycle->looks_left = cycle->slow_periods / LOOKS_SHARE;
}

void hak_life_cycle_begin(struct hak_life_cycle *cycle, const struct hak_dimension *dimensions, uint32_t count,
                          uint32_t slow_periods, uint64_t seed) {
    HAK_ASSERT(count <= HAK_DIMENSIONS && slow_periods > 0);
    memset(cycle, 0, sizeof *cycle);
    cycle->dimensions = dimensions;
    cycle->dimension_count = cycle->focus = count;
    cycle->slow_periods = slow_periods;
    cycle->patience = FIRST_PATIENCE;
    cycle->random = seed;
    renew_round(cycle);
    for (uint32_t i = 0; i < count; i++) cycle->chosen[i] = cycle->in_force[i] = (uint8_t)dimensions[i].first;
}

/* ---- Moves and pulls --------------------------------------------------------------------------------------------- */

static struct hak_move put(struct hak_life_cycle *cycle, uint32_t arm, enum hak_why why, double gain) {
    uint32_t dimension = cycle->focus, from = cycle->in_force[dimension];
    HAK_ASSERT(arm < cycle->dimensions[dimension].arm_count); /* Y1 */
    cycle->in_force[dimension] = (uint8_t)arm;
    cycle->pull_periods = 0;
    cycle->pull_cost = 0;
    return (struct hak_move){
        .is_made = from != arm, .dimension = dimension, .from = from, .to = arm, .why = why, .gain = gain};
}

/* True when a pull is complete; then its mean cost is in `pull_cost`. */
static bool add_to_pull(struct hak_life_cycle *cycle, double cost) {
    uint32_t periods = cycle->dimensions[cycle->focus].periods;
    if (cycle->pull_periods++ > 0) cycle->pull_cost += cost;
    if (cycle->pull_periods < periods) return false;
    cycle->pull_cost /= periods - 1;
    return true;
}

static double saving(double from_cost, double to_cost) { return from_cost > 0 ? (from_cost - to_cost) / from_cost : 0; }

/* ---- FROZEN ------------------------------------------------------------------------------------------------------ */

static void freeze(struct hak_life_cycle *cycle) {
    cycle->state = HAK_FROZEN;
    cycle->focus = cycle->dimension_count;
    cycle->frozen_periods = cycle->rising = 0;
    cycle->frozen_cost = 0;
    cycle->settled_cost = -1;
}

static void learn(struct hak_life_cycle *cycle, uint32_t done) {
    cycle->state = HAK_LEARN;
    cycle->focus = cycle->dimension_count;
    cycle->done = done;
    cycle->kept_any = false;
    renew_round(cycle);
}

/* The dimensions that promise something by another arm than the chosen one. */
static uint32_t bits_of(const struct hak_life_cycle *cycle, const struct hak_prospect *prospects) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < cycle->dimension_count; i++)
        bits |= (uint32_t)(prospects[i].gain > 0 && (prospects[i].arms & ~((uint32_t)1 << cycle->chosen[i])) != 0) << i;
    return bits;
}

/* When a program costs more than it did, it does something else: matches from before say nothing of it. */
static void forget_matches(const struct hak_life_cycle *cycle, struct hak_rating *ratings) {
    for (uint32_t i = 0; i < cycle->dimension_count; i++)
        if (cycle->dimensions[i].is_rated) hak_rating_begin(&ratings[i]);
}

static void stay_frozen(struct hak_life_cycle *cycle, double cost, const struct hak_prospect *prospects,
                        struct hak_rating *ratings) {
    /* Where nothing was promised, something may be, soon. */
    uint32_t periods = cycle->done == 0 ? cycle->slow_periods / LOOKS_SHARE : cycle->slow_periods;
    cycle->frozen_cost += cost;
    if (++cycle->frozen_periods < periods) return;
    double mean = cycle->frozen_cost / cycle->frozen_periods;
    cycle->frozen_periods = 0;
    cycle->frozen_cost = 0;
    if (cycle->settled_cost < 0 || mean < cycle->settled_cost) cycle->settled_cost = mean;
    bool has_risen = mean > cycle->settled_cost * risen + next_to_nothing,
         has_more = (bits_of(cycle, prospects) & ~cycle->done) != 0;
    cycle->rising = has_risen || has_more ? cycle->rising + 1 : 0;
    if (cycle->rising < cycle->patience) return;
    if (!cycle->kept_any && cycle->patience < MOST_PATIENCE) cycle->patience *= 2;
    learn(cycle, has_risen ? 0 : cycle->done);
    if (has_risen) forget_matches(cycle, ratings);
}

/* ---- CANARY ------------------------------------------------------------------------------------------------------ */

static bool toss(struct hak_life_cycle *cycle) { return (hak_next_random(&cycle->random) >> 32 & 1) != 0; }

static struct hak_move put_in_trial(struct hak_life_cycle *cycle, uint32_t arm, enum hak_why why) {
    struct hak_move move = put(cycle, arm, why, hak_trial_gain(&cycle->trial));
    move.odds = hak_trial_evidence(&cycle->trial);
    return move;
}

static struct hak_move begin_half(struct hak_life_cycle *cycle, enum hak_pair_state half) {
    bool is_candidate = cycle->candidate_first == (half == HAK_PAIR_FIRST);
    cycle->pair = half;
    return put_in_trial(cycle, is_candidate ? cycle->candidate : cycle->chosen[cycle->focus], HAK_WHY_CANARY);
}

static struct hak_move begin_pair(struct hak_life_cycle *cycle) {
    cycle->candidate_first = toss(cycle);
    return begin_half(cycle, HAK_PAIR_FIRST);
}

static struct hak_move begin_canary(struct hak_life_cycle *cycle, uint32_t arm) {
    cycle->state = HAK_CANARY;
    cycle->candidate = arm;
    cycle->pair = HAK_PAIR_NONE;
    hak_trial_begin(&cycle->trial);
    return put_in_trial(cycle, cycle->chosen[cycle->focus], HAK_WHY_CANARY);
}

static struct hak_move end_canary(struct hak_life_cycle *cycle, bool keep) {
    uint32_t focus = cycle->focus;
    if (keep) {
        cycle->chosen[focus] = (uint8_t)cycle->candidate;
        cycle->kept_any = true;
        cycle->patience = FIRST_PATIENCE;
    }
    cycle->outcomes[focus] = keep ? HAK_OUTCOME_KEPT : HAK_OUTCOME_ROLLED_BACK;
    struct hak_move move = put_in_trial(cycle, cycle->chosen[focus], keep ? HAK_WHY_KEEP : HAK_WHY_ROLL_BACK);
    move.is_made = true; /* said in any case */
    cycle->done |= (uint32_t)1 << focus;
    cycle->state = HAK_LEARN;
    cycle->focus = cycle->dimension_count;
    return move;
}

static struct hak_move judge_pair(struct hak_life_cycle *cycle) {
    enum hak_verdict verdict = hak_trial_add(&cycle->trial, cycle->pair_costs[0], cycle->pair_costs[1]);
    bool goes_on = verdict == HAK_VERDICT_OPEN && !is_over(cycle);
    return goes_on ? begin_pair(cycle) : end_canary(cycle, verdict == HAK_VERDICT_KEEP);
}

/* Where effects come at once, one period is enough to see that a candidate leaves next to nothing to the program. */
static bool is_disaster(const struct hak_life_cycle *cycle, double cost) {
    bool is_first = cycle->pull_periods == 0 && cycle->dimensions[cycle->focus].periods == 2;
    double usual = hak_clamp(cycle->pair_costs[0], next_to_nothing, 1e12);
    return is_first && cycle->in_force[cycle->focus] == cycle->candidate && cost >= disaster * usual;
}

static bool add_to_turn(struct hak_life_cycle *cycle, double cost) {
    if (!is_disaster(cycle, cost)) return add_to_pull(cycle, cost);
    cycle->pull_cost = cost;
    return true;
}

/* While a candidate is in force, nobody sees whether the program is in another phase. So a pair counts only after a
 * period with what was in force before; and a first pair in a phase begins after one, by a toss like any other: at the
 * beginning and at the end of a visit costs change by themselves. Pairs take as long whichever half comes first: else
 * in visits of some length only those of one order would count. */
static struct hak_move step_canary(struct hak_life_cycle *cycle, double cost) {
    if (cycle->pair == HAK_PAIR_DONE) return judge_pair(cycle);
    if (is_over(cycle)) return end_canary(cycle, false);
    if (cycle->pair == HAK_PAIR_NONE) {
        cycle->pair_costs[0] = cost;
        return begin_pair(cycle);
    }
    if (!add_to_turn(cycle, cost)) return (struct hak_move){0};
    bool is_first = cycle->pair == HAK_PAIR_FIRST, is_candidate = cycle->candidate_first == is_first;
    cycle->pair_costs[is_candidate] = cycle->pull_cost;
    if (is_first) return begin_half(cycle, HAK_PAIR_SECOND);
    cycle->pair = HAK_PAIR_DONE;
    return put_in_trial(cycle, cycle->chosen[cycle->focus], HAK_WHY_CANARY);
}

void hak_life_cycle_follow(struct hak_life_cycle *cycle, struct hak_life_cycle *before,
                           const struct hak_prospect *prospects) {
    uint32_t focus = before->focus, count = before->dimension_count;
    if (focus == count || cycle->focus < count || !before->dimensions[focus].is_rated) return;
    if (!(prospects[focus].gain > 0) || (cycle->done >> focus & 1) != 0) return;
    if (cycle->chosen[focus] != before->chosen[focus]) return;
    cycle->state = before->state;
    cycle->focus = focus;
    cycle->arms = before->arms;
    cycle->candidate = before->candidate;
    cycle->trial = before->trial;
    cycle->round_left = before->round_left;
    cycle->looks_left = 0;
    before->state = HAK_LEARN;
    before->focus = count;
}

void hak_life_cycle_try(struct hak_life_cycle *cycle, uint32_t dimension, uint32_t arm) {
    hak_life_cycle_pause(cycle);
    cycle->focus = dimension;
    renew_round(cycle);
    lengthen_round(cycle, canary_periods(&cycle->dimensions[dimension]));
    cycle->looks_left = 0;
    begin_canary(cycle, arm);
}

/* ---- LEARN ------------------------------------------------------------------------------------------------------- */

static uint32_t exploring_periods(const struct hak_dimension *dimension, uint32_t arms) {
    uint32_t count = hak_bit_count(arms),
             tries = dimension->is_rated ? MATCHES_OF_EACH * count / 2 : PULLS_PER_ARM * count;
    return tries * try_periods(dimension);
}

/* What is left of the round is for the canary, from some moment on. */
static bool has_time_to_explore(const struct hak_life_cycle *cycle) {
    const struct hak_dimension *dimension = &cycle->dimensions[cycle->focus];
    return cycle->round_left >= try_periods(dimension) + canary_periods(dimension);
}

/* A dimension for whose arms the round had no time, as pulls were void, is left for another round. */
static struct hak_move leave_focus(struct hak_life_cycle *cycle, double gain, bool was_tried) {
    struct hak_move move = put(cycle, cycle->chosen[cycle->focus], HAK_WHY_END, gain);
    move.is_made = true; /* said in any case */
    if (was_tried) {
        cycle->outcomes[cycle->focus] = HAK_OUTCOME_LEFT;
        cycle->done |= (uint32_t)1 << cycle->focus;
    }
    cycle->focus = cycle->dimension_count;
    return move;
}

static struct hak_move conclude(struct hak_life_cycle *cycle, uint32_t best, double gain, bool was_tried) {
    bool is_better = best != cycle->chosen[cycle->focus] && gain >= worth_a_canary;
    return is_better ? begin_canary(cycle, best) : leave_focus(cycle, gain, was_tried);
}

static struct hak_move step_bandit(struct hak_life_cycle *cycle) {
    uint32_t chosen = cycle->chosen[cycle->focus];
    double cost = cycle->pull_cost;
    if (cycle->pulls++ == 0) cycle->reference = hak_clamp(cost, next_to_nothing, 1e12);
    hak_bandit_reward(&cycle->bandit, cycle->in_force[cycle->focus], cycle->reference / (cycle->reference + cost));
    if (cycle->pulls < PULLS_PER_ARM * hak_bit_count(cycle->arms) && has_time_to_explore(cycle))
        return put(cycle, hak_bandit_choose(&cycle->bandit, chosen), HAK_WHY_EXPLORE, saving(cycle->reference, cost));
    uint32_t best = hak_bandit_best(&cycle->bandit, chosen);
    /* From rewards back to costs: r / (r + c) is the reward, r / reward - r the cost. */
    double own = 1 / hak_clamp(hak_bandit_mean(&cycle->bandit, chosen), 1e-9, 1) - 1,
           its = 1 / hak_clamp(hak_bandit_mean(&cycle->bandit, best), 1e-9, 1) - 1;
    return conclude(cycle, best, saving(own, its), hak_bandit_has_tried_all(&cycle->bandit));
}

static struct hak_move begin_match(struct hak_life_cycle *cycle, const struct hak_rating *rating) {
    double matches = hak_rating_matches_of_each(rating, cycle->arms);
    if (matches >= MATCHES_OF_EACH || !has_time_to_explore(cycle)) {
        uint32_t leader = hak_rating_leader(rating, cycle->arms, cycle->chosen[cycle->focus]);
        return conclude(cycle, leader, worth_a_canary, matches >= 1); /* points say who leads, not by how much */
    }
    cycle->pairing = hak_rating_pair(rating, cycle->arms, &cycle->random);
    cycle->pair = HAK_PAIR_FIRST;
    return put(cycle, cycle->pairing.first, HAK_WHY_EXPLORE, 0);
}

static struct hak_move end_match(struct hak_life_cycle *cycle, struct hak_rating *rating) {
    double first = cycle->pair_costs[0], second = cycle->pair_costs[1], both = first + second,
           lead = both > 0 ? (second - first) / both : 0;
    hak_rating_match(rating, cycle->pairing, 0.5 + lead / (2 * draw_margin));
    return begin_match(cycle, rating);
}

/* As in a canary, a match counts after a period with the chosen strategy. */
static struct hak_move step_rating(struct hak_life_cycle *cycle, double cost, struct hak_rating *rating) {
    if (cycle->pair == HAK_PAIR_NONE) return begin_match(cycle, rating);
    if (cycle->pair == HAK_PAIR_DONE) return end_match(cycle, rating);
    if (!add_to_pull(cycle, cost)) return (struct hak_move){0};
    bool is_first = cycle->pair == HAK_PAIR_FIRST;
    cycle->pair_costs[!is_first] = cycle->pull_cost;
    cycle->pair = is_first ? HAK_PAIR_SECOND : HAK_PAIR_DONE;
    if (is_first) return put(cycle, cycle->pairing.second, HAK_WHY_EXPLORE, 0);
    return put(cycle, cycle->chosen[cycle->focus], HAK_WHY_EXPLORE, 0);
}

/* The dimension that promises most for each period that it takes, if this round has time for it. A round that has just
 * begun has time for any, which then explores as long as it may. */
static uint32_t best_prospect(const struct hak_life_cycle *cycle, const struct hak_prospect *prospects) {
    uint32_t left = bits_of(cycle, prospects) & ~cycle->done, best = cycle->dimension_count;
    bool is_fresh = cycle->round_left == round_periods(cycle);
    double most = 0;
    for (; left != 0; left &= left - 1) {
        uint32_t i = hak_lowest_bit(left), arms = prospects[i].arms | (uint32_t)1 << cycle->chosen[i],
                 periods = exploring_periods(&cycle->dimensions[i], arms) + canary_periods(&cycle->dimensions[i]);
        if (!(prospects[i].gain / periods > most) || (periods > cycle->round_left && !is_fresh)) continue;
        most = prospects[i].gain / periods;
        best = i;
    }
    return best;
}

static struct hak_move begin_focus(struct hak_life_cycle *cycle, const struct hak_prospect *prospects) {
    uint32_t best = best_prospect(cycle, prospects);
    if (best == cycle->dimension_count) {
        if (cycle->looks_left == 0) freeze(cycle);
        else cycle->looks_left--;
        return (struct hak_move){0};
    }
    cycle->focus = best;
    cycle->looks_left = 0;
    cycle->pulls = 0;
    cycle->pair = HAK_PAIR_NONE;
    cycle->arms = prospects[best].arms | (uint32_t)1 << cycle->chosen[best];
    if (cycle->round_left == round_periods(cycle)) /* it has just begun */
        lengthen_round(cycle, least_periods(&cycle->dimensions[best], cycle->arms));
    if (!cycle->dimensions[best].is_rated) hak_bandit_begin(&cycle->bandit, cycle->arms);
    return put(cycle, cycle->chosen[best], HAK_WHY_EXPLORE, 0);
}

static struct hak_move step_learning(struct hak_life_cycle *cycle, double cost, const struct hak_prospect *prospects,
                                     struct hak_rating *ratings) {
    if (cycle->focus == cycle->dimension_count) return begin_focus(cycle, prospects);
    if (is_over(cycle)) return leave_focus(cycle, 0, false);
    if (cycle->dimensions[cycle->focus].is_rated) return step_rating(cycle, cost, &ratings[cycle->focus]);
    return add_to_pull(cycle, cost) ? step_bandit(cycle) : (struct hak_move){0};
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

static bool is_sound(const struct hak_life_cycle *cycle) { /* Y1, Y2 */
    for (uint32_t i = 0; i < cycle->dimension_count; i++) {
        if (cycle->chosen[i] >= cycle->dimensions[i].arm_count || cycle->in_force[i] >= cycle->dimensions[i].arm_count)
            return false;
        if (cycle->in_force[i] != cycle->chosen[i] && i != cycle->focus) return false;
    }
    return cycle->state != HAK_FROZEN || cycle->focus == cycle->dimension_count;
}

struct hak_move hak_life_cycle_step(struct hak_life_cycle *cycle, double cost, const struct hak_prospect *prospects,
                                    struct hak_rating *ratings) {
    struct hak_move move = {0};
    cost = hak_clamp(cost, 0, 1e12);
    bool is_trying = cycle->focus < cycle->dimension_count;
    if (cycle->state == HAK_LEARN) move = step_learning(cycle, cost, prospects, ratings);
    else if (cycle->state == HAK_CANARY) move = step_canary(cycle, cost);
    else stay_frozen(cycle, cost, prospects, ratings);
    if (is_trying && cycle->round_left > 0) cycle->round_left--;
    HAK_ASSERT(is_sound(cycle));
    return move;
}

void hak_life_cycle_pause(struct hak_life_cycle *cycle) {
    memcpy(cycle->in_force, cycle->chosen, sizeof cycle->in_force);
    cycle->pull_periods = 0;
    cycle->pull_cost = 0;
    cycle->pair = HAK_PAIR_NONE; /* pairs and matches begin anew */
}

void hak_life_cycle_leave(struct hak_life_cycle *cycle) {
    hak_life_cycle_pause(cycle);
    cycle->state = HAK_LEARN;
    cycle->focus = cycle->dimension_count;
}
