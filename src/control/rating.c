#include "control/rating.h"

#include "base/check.h"
#include "control/arithmetic.h"

/* The points that a match is about, and the lead with which one is expected to win ten times as often as to lose. */
static const double stake = 64, tenfold = 400;

uint64_t hak_strategy_bytes(uint32_t number) {
    double bytes = (double)(1 << 19) * hak_exp2(6.0 * number / (HAK_STRATEGIES - 1)); /* 6 doublings: 32 MiB */
    return ((uint64_t)(bytes + 0.5) + 0x8000) & ~(uint64_t)0xffff;
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

uint32_t hak_rating_leader(const struct hak_rating *rating, uint32_t fallback) {
    uint32_t leader = fallback;
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++)
        if (rating->points[i] > rating->points[leader]) leader = i;
    return leader;
}

struct hak_pairing hak_rating_pair(const struct hak_rating *rating, uint64_t *random) {
    struct hak_pairing pairing = {.first =
                                      hak_rating_leader(rating, (uint32_t)(hak_next_random(random) % HAK_STRATEGIES))};
    uint32_t start = (uint32_t)(hak_next_random(random) % HAK_STRATEGIES);
    pairing.second = pairing.first;
    for (uint32_t i = 0; i < HAK_STRATEGIES; i++) {
        uint32_t other = (start + i) % HAK_STRATEGIES;
        if (other == pairing.first) continue;
        if (pairing.second == pairing.first || rating->matches[other] < rating->matches[pairing.second])
            pairing.second = other;
    }
    return pairing;
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
