#include "region/allowance.h"

#include "base/counters.h"
#include "base/knobs.h"
#include "base/memory.h"
#include "os/os.h"

enum { REMEMBERED_PERIODS = 8 };

HAK_ATOMIC(uint64_t) hak_allowance_limit_bytes;

/* What went back and may be wanted again; when the last of it did; and the most of that, with what lay free beside it,
 * since nothing was away. */
HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) away_bytes;
static HAK_ATOMIC(uint64_t) last_given_ms, most_at_once_bytes;
static HAK_ATOMIC(uint64_t) free_left_bytes; /* at the last look, but for what went back since */

/* What a look at all slabs has left free, when, what was handed out when it began, and the most since. */
static HAK_ATOMIC(uint64_t) pinned_bytes, pinned_at_ms, pinned_at_out_bytes, most_out_bytes;

static HAK_ATOMIC(uint64_t) seen_pages; /* that had been used again at the last look */
static HAK_ATOMIC(uint64_t) allowance;
static HAK_ATOMIC(uint64_t) most_free_bytes; /* in this period */

static void raise_to(HAK_ATOMIC(uint64_t) *most, uint64_t bytes) {
    if (bytes > hak_atomic_load(most, relaxed)) hak_atomic_store(most, bytes, relaxed);
}

/* What has been used since the last look although it had gone back. */
static uint64_t take_used_bytes(void) {
    uint64_t reused = hak_atomic_load(&hak_pages_reused, relaxed);
    int64_t pages = (int64_t)(reused - hak_atomic_exchange(&seen_pages, reused, relaxed));
    return pages < 0 ? 0 : (uint64_t)pages * hak_os_page_bytes(); /* another thread has looked meanwhile */
}

void hak_allowance_gave(uint64_t bytes) {
    if (bytes == 0) return;
    if (hak_atomic_load(&away_bytes, relaxed) == 0) {
        take_used_bytes(); /* long ago */
        hak_atomic_store(&most_at_once_bytes, 0, relaxed);
    }
    hak_atomic_store(&last_given_ms, hak_os_clock_ms(), relaxed);
    uint64_t away = hak_atomic_fetch_add(&away_bytes, bytes, relaxed) + bytes,
             left = hak_atomic_load(&free_left_bytes, relaxed);
    left = left > bytes ? left - bytes : 0;
    hak_atomic_store(&free_left_bytes, left, relaxed);
    raise_to(&most_at_once_bytes, away + left);
}

static bool is_remembered(const HAK_ATOMIC(uint64_t) *since_ms) {
    uint64_t past_ms = hak_os_clock_ms() - hak_atomic_load(since_ms, relaxed);
    return past_ms < REMEMBERED_PERIODS * hak_knob(decay_ms);
}

uint64_t hak_allowance_free_in_slabs(void) {
    uint64_t bytes = hak_atomic_load(&hak_slab_bytes, relaxed) - hak_atomic_load(&hak_out_bytes, relaxed) -
                     hak_atomic_load(&hak_slab_holes, relaxed) * hak_os_page_bytes();
    return (int64_t)bytes < 0 ? 0 : bytes;
}

void hak_allowance_pinned(uint64_t out_bytes) {
    hak_atomic_store(&pinned_at_out_bytes, out_bytes, relaxed);
    hak_atomic_store(&most_out_bytes, out_bytes, relaxed);
    hak_atomic_store(&pinned_at_ms, hak_os_clock_ms(), relaxed);
    hak_atomic_store(&pinned_bytes, hak_allowance_free_in_slabs(), relaxed);
}

void hak_allowance_grew(uint64_t out_bytes) {
    if (hak_atomic_load(&pinned_bytes, relaxed) != 0) raise_to(&most_out_bytes, out_bytes);
}

/* Blocks that were taken since lie in what was pinned, and may not pin it when they are freed. And as live blocks go,
 * pages come free, perhaps those with few blocks first: by the square. */
static uint64_t still_pinned(void) {
    uint64_t bytes = hak_atomic_load(&pinned_bytes, relaxed), out_bytes = hak_atomic_load(&hak_out_bytes, relaxed),
             then = hak_atomic_load(&pinned_at_out_bytes, relaxed);
    if (bytes == 0 || (int64_t)out_bytes <= 0 || !is_remembered(&pinned_at_ms)) return 0;
    uint64_t taken = hak_atomic_load(&most_out_bytes, relaxed) - then;
    bytes = (int64_t)taken < 0 ? bytes : bytes > taken ? bytes - taken : 0;
    if (out_bytes >= then) return bytes;
    uint64_t share = out_bytes * 256 / then; /* in 256ths */
    return bytes * share / 256 * share / 256;
}

uint64_t hak_allowance_loose_in_slabs(void) {
    uint64_t bytes = hak_allowance_free_in_slabs(), pinned = still_pinned();
    return bytes > pinned ? bytes - pinned : 0;
}

void hak_allowance_look(uint64_t free_bytes) {
    raise_to(&most_free_bytes, free_bytes);
    hak_atomic_store(&free_left_bytes, free_bytes + hak_allowance_loose_in_slabs(), relaxed);
    uint64_t given = hak_atomic_load(&away_bytes, relaxed);
    if (given == 0) return;
    if (!is_remembered(&last_given_ms)) {
        hak_atomic_store(&away_bytes, 0, relaxed);
        return;
    }
    uint64_t used = take_used_bytes(), allowed = hak_atomic_load(&allowance, relaxed);
    if (used == 0) return;
    if (used > given) used = given;
    uint64_t most = hak_atomic_load(&most_at_once_bytes, relaxed);
    if (most > allowed + used) most = allowed + used;
    raise_to(&allowance, most);
    hak_atomic_store(&away_bytes, given - used, relaxed);
}

uint64_t hak_allowance_bytes(void) {
    if (hak_knob_is_highest(dirty_limit_bytes)) return HAK_ALLOWANCE_OF_ALL;
    uint64_t allowed = hak_atomic_load(&allowance, relaxed), most = hak_memory_most_free_bytes();
    uint64_t limit = hak_atomic_load(&hak_allowance_limit_bytes, relaxed);
    if (limit != 0 && allowed > limit) allowed = limit;
    return allowed < most ? allowed : most;
}

void hak_allowance_end_period(uint64_t idle_bytes) {
    uint64_t most = hak_atomic_exchange(&most_free_bytes, 0, relaxed), allowed = hak_atomic_load(&allowance, relaxed);
    uint64_t least = most > idle_bytes ? most - idle_bytes : 0, less = allowed - allowed / 32;
    if (least > allowed) least = allowed;
    hak_atomic_store(&allowance, less > least ? less : least, relaxed);
}
