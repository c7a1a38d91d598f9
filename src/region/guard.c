#include "region/guard.h"

#include <string.h>

#include "os/os.h"
#include "slab/size_class.h"

enum { MOST_GUARD_SLOTS = 480, GUARD_TRIES = 8, GUARD_FILL = 0xA5 };

/* Where the pool begins; 0 before it is made. It begins with the records. */
static HAK_ATOMIC(uintptr_t) guard_pool;
static HAK_ATOMIC(bool) guard_is_refused;
static HAK_ATOMIC(uint64_t) guard_turns; /* taken so far: the next slot to be tried, modulo their number */

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_guard_live_blocks, hak_guard_live_bytes;

/* ---- Where what is (W1) ------------------------------------------------------------------------------------------ */

static size_t guard_record_bytes(void) {
    return hak_align_up(MOST_GUARD_SLOTS * sizeof(struct hak_guard), hak_os_page_bytes());
}

static uint32_t guard_slot_count(void) {
    size_t pairs = ((HAK_GUARD_POOL_BYTES - guard_record_bytes()) / hak_os_page_bytes() - 1) / 2;
    return pairs < MOST_GUARD_SLOTS ? (uint32_t)pairs : MOST_GUARD_SLOTS;
}

static uintptr_t guard_pool_start(void) {
    /* Acquire pairs with hak_guard_begin: the records can be used. */
    return hak_atomic_load(&guard_pool, acquire);
}

static struct hak_guard *guard_at(uintptr_t pool, uint32_t slot) { return (struct hak_guard *)pool + slot; }

static uintptr_t guard_page_of(uintptr_t pool, uint32_t slot) {
    return pool + guard_record_bytes() + (2 * (size_t)slot + 1) * hak_os_page_bytes();
}

bool hak_guard_covers(uintptr_t address) {
    uintptr_t pool = guard_pool_start();
    return HAK_UNLIKELY(pool != 0) && address - pool < HAK_GUARD_POOL_BYTES;
}

/* The slot whose page an address is in. */
static struct hak_guard *guard_of(uintptr_t address) {
    if (!hak_guard_covers(address)) return NULL;
    uintptr_t pool = guard_pool_start();
    size_t page = (address - pool - guard_record_bytes()) / hak_os_page_bytes();
    bool is_slot = address - pool >= guard_record_bytes() && page % 2 == 1 && page / 2 < guard_slot_count();
    return is_slot ? guard_at(pool, (uint32_t)(page / 2)) : NULL;
}

bool hak_guard_begin(void) {
    uintptr_t none = 0;
    if (guard_pool_start() != 0 || hak_atomic_load(&guard_is_refused, relaxed)) return false;
    void *pool = hak_os_reserve(HAK_GUARD_POOL_BYTES, hak_os_page_bytes());
    if (pool == NULL || !hak_os_commit(pool, guard_record_bytes())) {
        if (pool != NULL) hak_os_unmap(pool, HAK_GUARD_POOL_BYTES);
        hak_atomic_store(&guard_is_refused, true, relaxed);
        return false;
    }
    /* Release pairs with guard_pool_start. Another thread may have been faster. */
    if (hak_atomic_cas(&guard_pool, &none, (uintptr_t)pool, release, relaxed)) return true;
    hak_os_unmap(pool, HAK_GUARD_POOL_BYTES);
    return false;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static void note_trace(struct hak_guard_trace *trace, const uintptr_t *addresses, uint32_t depth) {
    if (depth > HAK_GUARD_FRAMES) depth = HAK_GUARD_FRAMES;
    hak_atomic_store(&trace->thread_id, hak_os_thread_id(), relaxed);
    hak_atomic_store(&trace->depth, depth, relaxed);
    for (uint32_t i = 0; i < depth; i++) hak_atomic_store(&trace->addresses[i], addresses[i], relaxed);
}

/* Makes a slot BUSY whose turn it is, and returns it, or NULL; `before` is what it was. */
static struct hak_guard *take_guard_slot(uintptr_t pool, uint64_t *turn, uint32_t *before) {
    uint32_t count = guard_slot_count();
    for (uint32_t i = 0; i < GUARD_TRIES; i++) {
        *turn = hak_atomic_fetch_add(&guard_turns, 1, relaxed);
        struct hak_guard *guard = guard_at(pool, (uint32_t)(*turn % count));
        *before = hak_atomic_load(&guard->state, relaxed);
        bool is_its_turn = *before == HAK_GUARD_UNUSED ||
                           (*before == HAK_GUARD_FREED &&
                            *turn - hak_atomic_load(&guard->freed_turn, relaxed) >= (uint64_t)count / 2); /* W3 */
        /* Acquire pairs with hak_guard_free: who had the slot is done with it. */
        if (is_its_turn && hak_atomic_cas(&guard->state, before, HAK_GUARD_BUSY, acquire, relaxed)) return guard;
    }
    return NULL;
}

/* The bytes of the page that are filled: those before the block from `low` on, and those behind it up to `high`. */
static void find_margins(uintptr_t start, size_t bytes, uintptr_t *low, uintptr_t *high) {
    uintptr_t page = hak_align_down(start, hak_os_page_bytes()), end = start + bytes;
    *low = start - page > HAK_GUARD_MARGIN ? start - HAK_GUARD_MARGIN : page;
    *high = page + hak_os_page_bytes() - end > HAK_GUARD_MARGIN ? end + HAK_GUARD_MARGIN : page + hak_os_page_bytes();
}

void *hak_guard_alloc(size_t bytes, const uintptr_t *addresses, uint32_t depth) {
    uintptr_t pool = guard_pool_start(), low, high;
    size_t page_bytes = hak_os_page_bytes();
    uint64_t turn;
    uint32_t before;
    if (bytes == 0) bytes = 1;
    struct hak_guard *guard = pool == 0 || bytes > page_bytes ? NULL : take_guard_slot(pool, &turn, &before);
    if (guard == NULL) return NULL;
    uintptr_t page = guard_page_of(pool, (uint32_t)(guard - guard_at(pool, 0)));
    if (!hak_os_commit((void *)page, page_bytes)) {
        hak_atomic_exchange(&guard->state, before, relaxed); /* no store: what was released stays so */
        return NULL;
    }
    uintptr_t start = turn % 2 == 0 ? page + page_bytes - hak_align_up(bytes, HAK_ALIGNMENT) : page; /* W4 */
    find_margins(start, bytes, &low, &high);
    memset((void *)low, GUARD_FILL, start - low);
    memset((void *)(start + bytes), GUARD_FILL, high - start - bytes);
    hak_atomic_store(&guard->start, start, relaxed);
    hak_atomic_store(&guard->bytes, (uint32_t)bytes, relaxed);
    note_trace(&guard->allocated, addresses, depth);
    hak_atomic_fetch_add(&hak_guard_live_blocks, 1, relaxed);
    hak_atomic_fetch_add(&hak_guard_live_bytes, bytes, relaxed);
    hak_signal_fence(); /* a child of fork finds no live slot that isn't described */
    hak_atomic_store(&guard->state, HAK_GUARD_LIVE, relaxed); /* whoever else frees it got it by the program's means */
    return (void *)start;
}

/* The first byte beside the block that isn't as it was filled, counted from its start; 0 for none. */
static ptrdiff_t find_spoiled(uintptr_t start, size_t bytes) {
    uintptr_t low, high;
    find_margins(start, bytes, &low, &high);
    for (uintptr_t at = low; at < high; at++)
        if (at - start >= bytes && *(const unsigned char *)at != GUARD_FILL) return (ptrdiff_t)(at - start);
    return 0;
}

enum hak_guard_outcome hak_guard_free(void *block, const uintptr_t *addresses, uint32_t depth, ptrdiff_t *offset) {
    struct hak_guard *guard = guard_of((uintptr_t)block);
    uint32_t live = HAK_GUARD_LIVE;
    size_t bytes = hak_atomic_load(&guard->bytes, relaxed);
    void *page = (void *)hak_align_down((uintptr_t)block, hak_os_page_bytes());
    if (!hak_atomic_cas(&guard->state, &live, HAK_GUARD_BUSY, relaxed, relaxed)) return HAK_GUARD_WAS_FREE;
    *offset = find_spoiled((uintptr_t)block, bytes);
    if (*offset != 0) {
        hak_atomic_store(&guard->state, HAK_GUARD_LIVE, relaxed);
        return HAK_GUARD_SPOILED;
    }
    note_trace(&guard->freed, addresses, depth);
    hak_os_purge(page, hak_os_page_bytes()); /* before: it may be tried out by a write */
    hak_os_forbid(page, hak_os_page_bytes());
    hak_atomic_fetch_sub(&hak_guard_live_blocks, 1, relaxed);
    hak_atomic_fetch_sub(&hak_guard_live_bytes, bytes, relaxed);
    hak_atomic_store(&guard->freed_turn, hak_atomic_load(&guard_turns, relaxed), relaxed);
    hak_atomic_store(&guard->state, HAK_GUARD_FREED, release); /* pairs with take_guard_slot */
    return HAK_GUARD_WAS_FREED;
}

/* ---- Questions --------------------------------------------------------------------------------------------------- */

bool hak_guard_find(uintptr_t address, uintptr_t *start, size_t *bytes) {
    const struct hak_guard *guard = guard_of(address);
    if (guard == NULL || hak_atomic_load(&guard->state, relaxed) != HAK_GUARD_LIVE) return false;
    *start = hak_atomic_load(&guard->start, relaxed);
    *bytes = hak_atomic_load(&guard->bytes, relaxed);
    return address - *start < *bytes;
}

static bool had_block(const struct hak_guard *guard) {
    return guard != NULL && hak_atomic_load(&guard->start, relaxed) != 0;
}

const struct hak_guard *hak_guard_near(uintptr_t address) {
    uintptr_t page = hak_os_page_bytes();
    const struct hak_guard *guard = guard_of(address);
    if (guard != NULL || !hak_guard_covers(address)) return had_block(guard) ? guard : NULL;
    const struct hak_guard *below = guard_of(address - page), *above = guard_of(address + page);
    if (!had_block(below) || !had_block(above)) return had_block(below) ? below : had_block(above) ? above : NULL;
    uintptr_t end = hak_atomic_load(&below->start, relaxed) + hak_atomic_load(&below->bytes, relaxed);
    return address - end <= hak_atomic_load(&above->start, relaxed) - address ? below : above;
}

size_t hak_guard_freed_bytes(uintptr_t start) {
    const struct hak_guard *guard = guard_of(start);
    if (!had_block(guard) || hak_atomic_load(&guard->start, relaxed) != start) return 0;
    return hak_atomic_load(&guard->bytes, relaxed);
}
