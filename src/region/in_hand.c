#include "region/in_hand.h"

#include "os/os.h"

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_in_hand;
__thread uint32_t hak_in_hand_own;
__thread struct hak_hand *hak_own_hand, *hak_large_hand;

/* A search goes on for so long, at most; who has memory in hand may have lost the processor. Between two looks it
 * sleeps: so he gets the processor even if he has a lower priority. */
enum { LONGEST_SEARCH_MS = 1000, NAP_US = 200 };

static void nap(void) {
    static HAK_ATOMIC(uint32_t) never_woken;
    hak_os_wait(&never_woken, 0, NAP_US);
}

bool hak_search_again(struct hak_search *search) {
    /* Pairs with the fence in hak_in_hand_begin. */
    hak_atomic_fence(acquire);
    /* Acquire, for the next look: as in hak_search_begin. */
    uint64_t now = hak_atomic_load(&hak_in_hand, acquire), before = search->seen;
    bool is_in_hand = (uint32_t)now != 0;
    if (!is_in_hand && now == before) return false;
    if (hak_in_hand_own != 0) return false;
    uint64_t now_ms = hak_os_clock_ms();
    if (search->deadline_ms == 0) search->deadline_ms = now_ms + LONGEST_SEARCH_MS;
    if (now_ms >= search->deadline_ms) return false;
    search->seen = now;
    if (is_in_hand && now >> 32 == before >> 32) nap();
    return true;
}

void hak_in_hand_recover_after_fork(void) { hak_atomic_store(&hak_in_hand, hak_in_hand_own, relaxed); }
