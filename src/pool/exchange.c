#include "pool/exchange.h"

#include "base/knobs.h"
#include "base/memory.h"
#include "os/os.h"
#include "pool/purge.h"
#include "region/allowance.h"
#include "region/density.h"
#include "region/in_hand.h"
#include "region/mapping_cache.h"

enum {
    FIRST_BYTES = 4 * HAK_MIB,
    STEP_BYTES = HAK_MIB, /* of growth, between two calls of ours */
    ROUND_SHARE = 32,     /* of the heap's size: growth for which the hand goes around once */
    SLOWEST = 3,          /* where it finds little, an eighth of the way */
    VAIN_SHARE = 16,      /* of the debt */
    WORTH_SHARE = 16,     /* of the heap: so much has to be free in slabs */
    MOST_UNITS = 1024,    /* that the hand passes in a call: some tens of microseconds where it finds nothing */
    MEASURE_SHARE = 64    /* of the heap's size, when that is measured again: it takes a look at each SuperSlab */
};

/* FIRST_BYTES of the largest pages; the first call finds out how large they are. */
HAK_ATOMIC(uint64_t) hak_exchange_at_pages = FIRST_BYTES >> 16;

static HAK_ATOMIC(uint32_t) is_exchanging;

/* X1 */
static struct {
    uint64_t hand;                /* a place of hak_purge_old_from */
    uint64_t have_bytes;          /* what the heap had when it was measured, 0: never */
    uint64_t pages, reused_pages; /* hak_pages_grown and hak_pages_reused then */
    uint64_t debt_bytes;          /* what is to go back for what it has grown by */
    uint32_t slowness;            /* of the hand: a power of two, up to SLOWEST */
    bool was_worth;               /* as much was free in slabs as WORTH_SHARE asks for */
} ours = {.slowness = SLOWEST};

/* But for holes: to give them back doesn't make the heap smaller, nor does their use make it larger. */
static uint64_t heap_bytes(void) {
    return hak_density_bytes(false) + hak_atomic_load(&hak_mapping_bytes, relaxed) + hak_mapping_cache_bytes();
}

/* By how much the heap has grown since it was measured; 0 where that is not yet worth another look. */
static uint64_t measure_growth(uint64_t pages) {
    uint64_t page = hak_os_page_bytes(), used_bytes = (pages - ours.pages) * page, before_bytes = ours.have_bytes;
    if (used_bytes < STEP_BYTES || used_bytes < before_bytes / MEASURE_SHARE) return 0;
    uint64_t have_bytes = heap_bytes(), reused_pages = hak_atomic_load(&hak_pages_reused, relaxed);
    int64_t more_bytes = (int64_t)(have_bytes - before_bytes),
            new_bytes = (int64_t)(used_bytes - (reused_pages - ours.reused_pages) * page);
    ours.have_bytes = have_bytes;
    ours.pages = pages;
    ours.reused_pages = reused_pages;
    if (before_bytes == 0 || more_bytes <= 0 || new_bytes <= 0) return 0;
    return (uint64_t)(more_bytes < new_bytes ? more_bytes : new_bytes);
}

/* Moves the hand on by so many units. Gives back a mebibyte at most, and what is left of the last four units, or of a
 * huge page. */
static void move_hand(uint64_t most_units) {
    uint64_t bytes = 0, most_bytes = ours.debt_bytes < STEP_BYTES ? ours.debt_bytes : STEP_BYTES;
    struct hak_hand *outer = hak_in_hand_begin_without(); /* in a handler, too */
    for (uint64_t passed = 0; passed < most_units && bytes < most_bytes;) {
        uint32_t units;
        bytes += hak_purge_old_from(&ours.hand, &units);
        passed += units != 0 ? units : HAK_UNITS_PER_SUPER_SLAB; /* a heap without SuperSlabs has an end, too */
    }
    hak_in_hand_end_without(outer);
    if (bytes >= ours.debt_bytes / VAIN_SHARE) ours.slowness = 0;
    else if (ours.slowness < SLOWEST) ours.slowness++;
    ours.debt_bytes -= bytes < ours.debt_bytes ? bytes : ours.debt_bytes;
}

static void answer_growth(uint64_t pages) {
    uint64_t growth_bytes = measure_growth(pages), most_bytes = ours.have_bytes / ROUND_SHARE + STEP_BYTES;
    if (growth_bytes == 0) return;
    bool is_worth = hak_allowance_free_in_slabs() >= ours.have_bytes / WORTH_SHARE;
    if (is_worth != ours.was_worth) ours.slowness = is_worth ? 0 : SLOWEST;
    ours.was_worth = is_worth;
    ours.debt_bytes += growth_bytes;
    if (ours.debt_bytes > most_bytes) ours.debt_bytes = most_bytes;
    uint64_t units = growth_bytes / HAK_UNIT_BYTES * ROUND_SHARE >> ours.slowness;
    move_hand(units < MOST_UNITS ? units : MOST_UNITS);
}

static bool may_exchange(void) {
    return !hak_atomic_load(&hak_memory_is_tight, relaxed) && !hak_knob_is_highest(dirty_limit_bytes);
}

static void exchange_alone(void) {
    uint64_t pages = hak_atomic_load(&hak_pages_grown, relaxed), page = hak_os_page_bytes();
    bool is_first = pages < FIRST_BYTES / page;
    if (!is_first && may_exchange()) answer_growth(pages);
    hak_atomic_store(&hak_exchange_at_pages, is_first ? FIRST_BYTES / page : pages + STEP_BYTES / page, relaxed);
}

void hak_exchange(void) {
    uint32_t nobody = 0;
    /* Acquire pairs with the release below: the hand is ours (X1). */
    if (hak_atomic_load(&is_exchanging, relaxed) != 0 || !hak_atomic_cas(&is_exchanging, &nobody, 1, acquire, relaxed))
        return;
    exchange_alone();
    /* Release pairs with the acquire above. */
    hak_atomic_store(&is_exchanging, 0, release);
}

/* What was counted may be half written: guesses. */
void hak_exchange_after_fork(void) { hak_atomic_store(&is_exchanging, 0, relaxed); }
