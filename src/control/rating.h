/* Rating: the values of a knob, its strategies, rated by matches between two of them, as chess players are (ELO). Pure
 * arithmetic.
 *
 * What a strategy costs depends on the moment at which it is tried; which of two costs less, one right after the other,
 * depends on it less. Hence pairs. The limits of page runs are twelve strategies from 512 KiB to 32 MiB, in geometric
 * steps. Who plays is the caller's to say: a set of bits, of at least two strategies.
 *
 *   E1  The sum of all points never changes; no rating is further than HAK_RATING_MOST from where it began.
 */
#ifndef HAK_CONTROL_RATING_H
#define HAK_CONTROL_RATING_H

#include "base/platform.h"

enum { HAK_STRATEGIES = 12, HAK_RATING_FIRST = 1500, HAK_RATING_MOST = 1000 };

struct hak_rating {
    double points[HAK_STRATEGIES];
    uint32_t matches[HAK_STRATEGIES];
};

/* Strategy `number` of the limits in bytes: whole pages of 64 KiB. */
uint64_t hak_strategy_bytes(uint32_t number);

/* The strategy that is nearest to a limit. */
uint32_t hak_strategy_of(uint64_t bytes);

void hak_rating_begin(struct hak_rating *rating);

/* Two strategies that should meet: the leader of the players, and of the others one that has played little, by lot
 * among equals. Which of the two comes first is tossed, too. */
struct hak_pairing {
    uint32_t first, second;
};
struct hak_pairing hak_rating_pair(const struct hak_rating *rating, uint32_t players, uint64_t *random);

/* The result of a match: 1 when the first one won, 0 when it lost, anything between. */
void hak_rating_match(struct hak_rating *rating, struct hak_pairing pairing, double score);

/* How many matches the players have had, on average: two of one match each make one. */
double hak_rating_matches_of_each(const struct hak_rating *rating, uint32_t players);

/* The player with the most points; `fallback` when none has more than it. */
uint32_t hak_rating_leader(const struct hak_rating *rating, uint32_t players, uint32_t fallback);

#endif
