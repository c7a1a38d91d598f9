#include "front/tight.h"

#include "base/memory.h"
#include "front/miss.h"
#include "os/memory_limit.h"
#include "os/os.h"
#include "pool/purge.h"
#include "region/decay.h"
#include "region/density.h"
#include "region/directory.h"
#include "region/heap_count.h"
#include "region/mapping_cache.h"

/* Shares of a limit, in 64ths. A limit is commonly a quarter above what a program needs, which is four fifths of it:
 * less than LEAVE, so that such a program is out of the tight state once all that is free has gone. From ENTER on an
 * eighth is left, which is eight STEPs. */
enum {
    WHOLE = 64,
    LEAVE = 52,
    ENTER = 56,
    CRITICAL = 60, /* from here on every step is worth a search of all slabs; */
    SWEEP = 4,     /* below, growth by so much is */
    STEP = 1,      /* growth between two looks, at least */
};

#define FIRST_LOOK_BYTES (4 * HAK_MIB)
#define LEAST_STEP_BYTES (HAK_MIB / 4)
#define NEVER_BYTES ((uint64_t)1 << 60)

static HAK_ATOMIC(uint32_t) is_looking;

/* 4 MiB of the largest pages: the first look finds out how large they are. */
HAK_ATOMIC(uint64_t) hak_look_at_pages = 64;

static struct hak_memory_groups groups; /* before main; const from then on */
static uint64_t own_bytes_at_start;     /* the same: what hakmem had when they were looked at */

/* L1 */
static struct {
    uint64_t pages;        /* what hak_pages_grown was */
    uint64_t grown_bytes;  /* since the last purge of all began */
    uint64_t urgent_bytes; /* what is to go back now, however long it takes */
    bool is_round;         /* of a purge of all, by turns */
} seen;

/* What hakmem has, as if all of it had been touched; `is_exact` as in hak_density_bytes. */
static uint64_t own_bytes(bool is_exact) {
    return hak_density_bytes(is_exact) + hak_atomic_load(&hak_mapping_bytes, relaxed) + hak_mapping_cache_bytes();
}

/* After so much growth since what was seen last. */
static void set_next_look(uint64_t bytes) {
    hak_atomic_store(&hak_look_at_pages, seen.pages + bytes / hak_os_page_bytes(), relaxed);
}

void hak_tight_begin(void) {
    hak_memory_groups_find(&groups);
    own_bytes_at_start = own_bytes(true);
    set_next_look(FIRST_LOOK_BYTES);
}

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

static uint64_t share_of(uint64_t bytes, uint64_t limit_bytes) {
    return limit_bytes < WHOLE ? WHOLE : bytes / (limit_bytes / WHOLE);
}

/* What was taken for use since the last look, and how much of it after this one was due. */
struct growth {
    uint64_t bytes, late_bytes;
};

static struct growth take_growth(void) {
    uint64_t grown = hak_atomic_load(&hak_pages_grown, relaxed), page = hak_os_page_bytes();
    int64_t late = (int64_t)(grown - hak_atomic_load(&hak_look_at_pages, relaxed));
    struct growth growth = {(grown - seen.pages) * page, late > 0 ? (uint64_t)late * page : 0};
    seen.pages = grown;
    return growth;
}

/* What the process may have, and is taken to have: what was used at the start, and how much more hakmem has now. Holes
 * that were purged are looked for where it matters. */
static struct hak_memory_use estimate(void) {
    struct hak_memory_use use = {0, 0};
    for (int is_exact = 0; is_exact <= 1; is_exact++) {
        use = hak_memory_use(&groups, (int64_t)(own_bytes(is_exact != 0) - own_bytes_at_start));
        if (use.limit_bytes == 0 || share_of(use.used_bytes, use.limit_bytes) < LEAVE) break;
    }
    return use;
}

static void set_tight(bool is_tight) {
    if (is_tight && !hak_atomic_load(&hak_memory_is_tight, relaxed)) hak_counter_add_shared(&hak_memory_tight_count, 1);
    hak_atomic_store(&hak_memory_is_tight, is_tight, relaxed);
}

static uint64_t next_look_bytes(struct hak_memory_use use, uint64_t share) {
    uint64_t unit = use.limit_bytes / WHOLE, bytes = share < ENTER ? (ENTER - share) * unit / 4 : 0;
    if (bytes < STEP * unit) bytes = STEP * unit;
    return bytes > LEAST_STEP_BYTES ? bytes : LEAST_STEP_BYTES;
}

/* Looks after so much growth; `next_bytes` is after how much more the next look is. True when all that is free is to go
 * back. */
static bool look(struct growth growth, uint64_t *next_bytes) {
    bool was_tight = hak_atomic_load(&hak_memory_is_tight, relaxed);
    seen.grown_bytes += growth.bytes;
    *next_bytes = NEVER_BYTES;
    if (groups.limit_count == 0) return false; /* nobody looks again */
    struct hak_memory_use use = estimate();
    uint64_t share = share_of(use.used_bytes, use.limit_bytes), critical_bytes = use.limit_bytes / WHOLE * CRITICAL;
    bool is_tight = share >= (was_tight ? LEAVE : ENTER);
    hak_atomic_store(&hak_memory_limit_bytes, use.limit_bytes, relaxed);
    set_tight(is_tight);
    *next_bytes = next_look_bytes(use, share);
    seen.urgent_bytes = use.used_bytes > critical_bytes ? use.used_bytes - critical_bytes : 0;
    /* Others allocate faster than turns give back. */
    if (is_tight && hak_atomic_load(&hak_heaps_in_use, relaxed) > 1) seen.urgent_bytes += 2 * growth.late_bytes;
    seen.is_round &= is_tight;
    if (!is_tight || seen.is_round) return false;
    bool is_sweep_due = share_of(seen.grown_bytes, use.limit_bytes) >= SWEEP;
    if (was_tight && share < CRITICAL && !is_sweep_due) return false;
    seen.grown_bytes = 0;
    return true;
}

/* One, or as many as it takes to give back what is urgent. What is owed is paid first; a single turn of that is left to
 * the end of the call, which is always one. */
static void take_turns(void) {
    enum { MOST_TURNS = 4096 }; /* where the kernel takes little */
    size_t bytes = 0;
    for (uint32_t turns = 0; turns < MOST_TURNS; turns++) {
        bool owes = hak_decay_owes();
        if (owes && seen.urgent_bytes == 0) return;
        if (!owes && hak_purge_turn(&bytes)) {
            seen.is_round = false;
            return;
        }
        if (owes) bytes += hak_decay_pay();
        if (bytes >= seen.urgent_bytes) return;
    }
}

/* While there is more to give back, turns are as near to each other as looks can be. */
static void look_and_give_back(bool gives_back) {
    uint64_t next_bytes;
    struct growth growth = take_growth();
    bool is_due = look(growth, &next_bytes);
    if (!gives_back) seen.is_round = false;
    else if (is_due) hak_front_begin_round();
    else if (seen.is_round && seen.urgent_bytes != 0) hak_decay_owe_all(); /* it began before it was urgent */
    seen.is_round |= is_due && gives_back;
    if (seen.is_round) take_turns();
    set_next_look(seen.is_round ? LEAST_STEP_BYTES : next_bytes);
}

/* False when somebody else is looking. */
static bool look_alone(bool gives_back) {
    uint32_t nobody = 0;
    /* Acquire pairs with the release below: what was seen last is ours (L1). */
    if (hak_atomic_load(&is_looking, relaxed) != 0 || !hak_atomic_cas(&is_looking, &nobody, 1, acquire, relaxed))
        return false;
    look_and_give_back(gives_back);
    /* Release pairs with the acquire above. */
    hak_atomic_store(&is_looking, 0, release);
    return true;
}

void hak_tight_check(void) { look_alone(false); }

/* Who looks may be kept from its processor while all others allocate. So each of these gives back something of what the
 * round has left. */
void hak_tight_look(void) {
    size_t bytes = 0;
    if (!look_alone(true) && hak_atomic_load(&hak_memory_is_tight, relaxed)) hak_purge_turn(&bytes);
}

void hak_tight_after_fork(void) {
    if (hak_atomic_load(&is_looking, relaxed) == 0) return;
    /* What was seen may be half written. */
    seen.grown_bytes = 0;
    seen.is_round = false;
    seen.pages = hak_atomic_load(&hak_pages_grown, relaxed);
    set_next_look(FIRST_LOOK_BYTES);
    hak_atomic_store(&is_looking, 0, relaxed);
}
