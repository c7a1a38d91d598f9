#include "front/tight.h"

#include "front/miss.h"
#include "os/memory_limit.h"
#include "os/os.h"
#include "region/page_policy.h"

/* Shares of a limit, in 64ths. A limit is commonly a quarter above what a program needs, which is four fifths of it: less than
 * LEAVE, so that such a program is out of the tight state once all that is free has gone. From ENTER on an eighth is left, which is
 * eight STEPs. */
enum {
    WHOLE = 64,
    LEAVE = 52,
    ENTER = 56,
    CRITICAL = 60, /* from here on every step is worth a search of all slabs; */
    SWEEP = 4,     /* below, growth by so much is */
    STEP = 1,      /* growth between two looks, at least */
};
_Static_assert(LEAVE * 100 >= HAK_USE_EXACT_FROM_PERCENT * WHOLE, "what decides is exact");

#define FIRST_LOOK_BYTES (4 * HAK_MIB)
#define LEAST_STEP_BYTES (HAK_MIB / 4)

enum { FIND_AGAIN_MS = 10000, STALL_SPAN_MS = 500, STALLED_PERCENT = 12, RELIEVED_PERCENT = 1 };

static HAK_ATOMIC(uint32_t) is_looking;

/* L1 */
static struct {
    struct hak_memory_groups groups;
    bool has_begun;
    uint64_t found_ms;      /* when groups were looked for */
    uint64_t next_pages;    /* what hak_pages_to_look was set to */
    uint64_t used_bytes;    /* at the last look */
    uint64_t pending_bytes; /* taken for use, but perhaps without memory yet */
    uint64_t grown_bytes;   /* since the last purge of all */
    uint64_t stall_us;      /* total at stall_ms */
    uint64_t stall_ms;      /* 0: not looked at yet */
    bool is_stalled;
} seen = {.next_pages = 64};

/* ---- Looking --------------------------------------------------------------------------------------------------------- */

static uint64_t share_of(uint64_t bytes, uint64_t limit_bytes) {
    return limit_bytes < WHOLE ? WHOLE : bytes / (limit_bytes / WHOLE);
}

/* What was taken for use since the last look. */
static uint64_t take_growth(void) {
    uint64_t left = hak_atomic_load(&hak_pages_to_look, relaxed);
    return (seen.next_pages - left) * hak_os_page_bytes();
}

/* The next look comes after so much growth; `grown_bytes` of it are counted already. */
static void set_next_look(uint64_t bytes, uint64_t grown_bytes) {
    uint64_t page = hak_os_page_bytes(), next_pages = bytes / page;
    hak_atomic_fetch_add(&hak_pages_to_look, next_pages - (seen.next_pages - grown_bytes / page), relaxed);
    seen.next_pages = next_pages;
}

/* Memory that somebody has to wait for, more than an eighth of the time, and until it is next to none. */
static bool is_stalled(uint64_t now_ms) {
    uint64_t span_ms = now_ms - seen.stall_ms;
    if (seen.stall_ms != 0 && span_ms < STALL_SPAN_MS) return seen.is_stalled;
    uint64_t us = hak_memory_stall_us(&seen.groups), percent = (us - seen.stall_us) / (span_ms * 10 + 1);
    if (seen.stall_ms == 0 || us < seen.stall_us) percent = 0;
    seen.stall_us = us;
    seen.stall_ms = now_ms;
    return seen.is_stalled = percent >= (seen.is_stalled ? RELIEVED_PERCENT : STALLED_PERCENT);
}

/* Of what was taken for use, as much as use has not grown by is still to come: until the next purge of all, because there are
 * programs that use but a part of what they ask for. */
static uint64_t count_pending(struct hak_memory_use use, uint64_t coming_bytes) {
    uint64_t more_used = use.used_bytes > seen.used_bytes ? use.used_bytes - seen.used_bytes : 0,
             pending = seen.pending_bytes + coming_bytes;
    seen.used_bytes = use.used_bytes;
    return seen.pending_bytes = pending - (more_used < pending ? more_used : pending);
}

static void set_tight(bool is_tight) {
    if (is_tight && !hak_atomic_load(&hak_memory_is_tight, relaxed)) hak_counter_add_shared(&hak_memory_tight_count, 1);
    hak_atomic_store(&hak_memory_is_tight, is_tight, relaxed);
}

/* Without a limit, growth by a half is worth a look at whether there is one now. */
static uint64_t next_look_bytes(struct hak_memory_use use, uint64_t share, uint64_t grown_bytes) {
    if (use.limit_bytes == 0) return grown_bytes / 2 > FIRST_LOOK_BYTES ? grown_bytes / 2 : FIRST_LOOK_BYTES;
    uint64_t unit = use.limit_bytes / WHOLE, bytes = share < ENTER ? (ENTER - share) * unit / 4 : 0;
    if (bytes < STEP * unit) bytes = STEP * unit;
    return bytes > LEAST_STEP_BYTES ? bytes : LEAST_STEP_BYTES;
}

/* True when all that is free is to go back, now. */
static bool judge(uint64_t coming_bytes) {
    bool was_tight = hak_atomic_load(&hak_memory_is_tight, relaxed);
    uint64_t now_ms = hak_os_clock_ms();
    if (!seen.has_begun || now_ms - seen.found_ms >= FIND_AGAIN_MS) {
        hak_memory_groups_find(&seen.groups);
        seen.found_ms = now_ms;
        seen.has_begun = true;
    }
    struct hak_memory_use use = hak_memory_use(&seen.groups);
    uint64_t needed_bytes = use.used_bytes + count_pending(use, coming_bytes),
             share = use.limit_bytes == 0 ? 0 : share_of(needed_bytes, use.limit_bytes);
    bool is_tight = is_stalled(now_ms) || share >= (was_tight ? LEAVE : ENTER);
    hak_atomic_store(&hak_memory_limit_bytes, use.limit_bytes, relaxed);
    set_tight(is_tight);
    seen.grown_bytes += coming_bytes;
    set_next_look(next_look_bytes(use, share, seen.grown_bytes), coming_bytes);
    if (!is_tight) return false;
    bool is_sweep_due = use.limit_bytes != 0 && share_of(seen.grown_bytes, use.limit_bytes) >= SWEEP;
    if (was_tight && share < CRITICAL && !is_sweep_due) return false;
    seen.grown_bytes = seen.pending_bytes = 0; /* what is free and comes into use again is counted again */
    return true;
}

/* Small programs don't get as far as to the files. */
static bool look(void) {
    uint64_t coming_bytes = take_growth();
    if (seen.has_begun || seen.grown_bytes + coming_bytes >= FIRST_LOOK_BYTES) return judge(coming_bytes);
    seen.grown_bytes += coming_bytes;
    set_next_look(FIRST_LOOK_BYTES - seen.grown_bytes, coming_bytes);
    return false;
}

static bool look_alone(void) {
    uint32_t nobody = 0;
    /* Acquire pairs with the release below: what was seen last is ours (L1). */
    if (hak_atomic_load(&is_looking, relaxed) != 0 || !hak_atomic_cas(&is_looking, &nobody, 1, acquire, relaxed))
        return false;
    bool is_due = look();
    /* Release pairs with the acquire above. */
    hak_atomic_store(&is_looking, 0, release);
    return is_due;
}

void hak_tight_check(void) { look_alone(); }

void hak_tight_look(void) {
    if (look_alone()) hak_front_purge();
}

void hak_tight_after_fork(void) {
    if (hak_atomic_load(&is_looking, relaxed) == 0) return;
    /* What was seen may be half written. */
    seen.has_begun = false;
    seen.grown_bytes = 0;
    seen.next_pages = FIRST_LOOK_BYTES / hak_os_page_bytes();
    hak_atomic_store(&hak_pages_to_look, seen.next_pages, relaxed);
    hak_atomic_store(&is_looking, 0, relaxed);
}
