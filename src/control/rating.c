#include "control/rating.h"

#include "base/bits.h"
#include "base/check.h"
#include "control/arithmetic.h"

/* The points that a match is about, and the lead with which one is expected to win ten times as often as to lose. */
static const double stake = 64, tenfold = 400;

/* A table: statistics show them, and their writer may be a thread of the program's (base/floating.h). */
uint64_t hak_strategy_bytes(uint32_t number) {
    static const uint16_t blocks_of_64_kib[HAK_STRATEGIES] = {8, 12, 17, 25, 36, 53, 77, 113, 165, 240, 351, 512};
    return (uint64_t)blocks_of_64_kib[number] << 16;
}

uint32_t hak_strategy_of(uint64_t bytes) {
    uint32_t number = 0;
    while (number + 1 < HAK_STRATEGIES && hak_strategy_bytes(number) + hak_strategy_bytes(number + 1) <= 2 * bytes)
        number++;
    return number;
}

void hak_rating_begin(struct hak_rating *rating) {
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) {
        rating->points[i] = HAK_RATING_FIRST;
        rating->matches[i] = 0;
    }
}

uint32_t hak_rating_leader(const struct hak_rating *rating, uint32_t players, uint32_t fallback) {
    uint32_t leader = fallback;
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++)
        if ((players >> i & 1) != 0 && rating->points[i] > rating->points[leader]) leader = i;
    return leader;
}

/* One of the players, by lot. */
static uint32_t any_of(uint32_t players, uint64_t *random) {
    for (uint32_t i = (uint32_t)(hak_next_random(random) % hak_bit_count(players)); i > 0; i--) players &= players - 1;
    return hak_lowest_bit(players);
}

struct hak_pairing hak_rating_pair(const struct hak_rating *rating, uint32_t players, uint64_t *random) {
    HAK_ASSERT(hak_bit_count(players) > 1 && players >> HAK_STRATEGIES == 0);
    uint32_t leader = hak_rating_leader(rating, players, any_of(players, random)), equals = 0, least = UINT32_MAX;
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) {
        uint32_t matches = rating->matches[i];
        if ((players >> i & 1) == 0 || i == leader || matches > least) continue;
        equals = (matches < least ? 0 : equals) | (uint32_t)1 << i;
        least = matches;
    }
    uint32_t other = any_of(equals, random);
    bool leader_first = (hak_next_random(random) >> 32 & 1) != 0;
    return leader_first ? (struct hak_pairing){leader, other} : (struct hak_pairing){other, leader};
}

double hak_rating_matches_of_each(const struct hak_rating *rating, uint32_t players) {
    double sum = 0;
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) sum += (players >> i & 1) != 0 ? rating->matches[i] : 0;
    return sum / hak_bit_count(players);
}

void hak_rating_match(struct hak_rating *rating, struct hak_pairing pairing, double score) {
    double *first = &rating->points[pairing.first], *second = &rating->points[pairing.second];
    double expected = 1 / (1 + hak_exp2((*second - *first) / tenfold * 3.321928094887362)); /* log2 10 */
    double change = stake * (hak_clamp(score, 0, 1) - expected);
    double low = HAK_RATING_FIRST - HAK_RATING_MOST, high = HAK_RATING_FIRST + HAK_RATING_MOST;
    change = hak_clamp(change, low - *first, high - *first);
    change = -hak_clamp(-change, low - *second, high - *second); /* E1 */
    *first += change;
    *second -= change;
    rating->matches[pairing.first]++;
    rating->matches[pairing.second]++;
}
