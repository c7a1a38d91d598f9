#include "pool/purge.h"

#include "os/os.h"
#include "pool/drain.h"
#include "pool/partial_set.h"
#include "region/large.h"
#include "region/mapping_cache.h"

enum { OLD_SWEEPS = 2 };

/* A slab as a purger sees it who does not have it: facts of its class, which is checked again once he has a block of it. */
struct view {
    struct hak_range *range;
    struct hak_slab *slab;
    const struct hak_size_class *facts;
    HAK_ATOMIC(uint64_t) *bits;
    uint32_t unit, size_class;
};

/* The bits of blocks `first`..`end` in word `index`. */
static uint64_t mask_in_word(uint32_t first, uint32_t end, uint32_t index) {
    uint32_t word_start = index * 64, word_end = word_start + 64;
    uint32_t from = first > word_start ? first : word_start, to = end < word_end ? end : word_end;
    return hak_low_bits(to - word_start) & ~hak_low_bits(from - word_start);
}

static bool are_free(const struct view *view, uint32_t first, uint32_t end) {
    for (uint32_t i = first / 64; i * 64 < end; i++) {
        uint64_t mask = mask_in_word(first, end, i);
        if ((hak_atomic_load(&view->bits[i], relaxed) & mask) != mask) return false;
    }
    return true;
}

/* Sets bits of blocks that the purger had claimed, with all the duties of a free (S5). */
static void return_bits(const struct view *view, uint32_t word, uint64_t mask) {
    uint32_t state;
    /* As hak_slab_set_bits does; but where the record says its bits are, is for who has a block of it. */
    hak_atomic_fetch_or(&view->bits[word], mask, seq_cst);
    if (hak_slab_take_over_full(view->slab, HAK_NO_HEAP, &state)) hak_partial_set_add(view->slab);
}

static void return_blocks(const struct view *view, uint32_t first, uint32_t end) {
    for (uint32_t i = first / 64; i * 64 < end; i++) return_bits(view, i, mask_in_word(first, end, i));
}

/* Claims blocks `first`..`end`, all or none, in a slab that is still of the class. */
static bool claim_blocks(const struct view *view, uint32_t first, uint32_t end) {
    for (uint32_t i = first / 64; i * 64 < end; i++) {
        uint64_t mask = mask_in_word(first, end, i);
        /* Acquire pairs with hak_slab_set_bits: the last users of the blocks are done with their pages. */
        uint64_t claimed = hak_atomic_fetch_and(&view->bits[i], ~mask, acquire) & mask;
        bool same = hak_atomic_load(&view->range->page_map[view->unit], relaxed) == view->size_class;
        if (claimed == mask && same) continue;
        if (claimed != 0) return_bits(view, i, claimed);
        if (i > first / 64) return_blocks(view, first, i * 64);
        return false;
    }
    return true;
}

static uint32_t blocks_before(size_t offset, const struct hak_size_class *facts) {
    size_t blocks = (offset + facts->block_bytes - 1) / facts->block_bytes;
    return blocks < facts->block_count ? (uint32_t)blocks : facts->block_count;
}

/* Purges pages `first`..`end` of the slab, if no block in them is in use. */
static size_t purge_pages(const struct view *view, uint32_t first, uint32_t end) {
    size_t page = hak_os_page_bytes(), bytes = (end - first) * page;
    uint32_t block_first = (uint32_t)(first * page / view->facts->block_bytes),
             block_end = blocks_before(end * page, view->facts);
    if (block_first >= block_end || !claim_blocks(view, block_first, block_end)) return 0;
    bool purged = hak_region_purge_pages(hak_region_start_of(view->range, view->slab) + first * page, bytes);
    if (purged) hak_atomic_fetch_or(&view->slab->purged_pages, hak_low_bits(end - first) << first, relaxed);
    return_blocks(view, block_first, block_end);
    return purged ? bytes : 0;
}

/* What to do with a run of pages without a block in use: purge_pages, or less. */
typedef size_t hole_visitor(const struct view *view, uint32_t first, uint32_t end);

static size_t count_pages(const struct view *view, uint32_t first, uint32_t end) {
    (void)view;
    return (end - first) * hak_os_page_bytes();
}

static size_t for_each_hole(const struct view *view, hole_visitor *visit) {
    size_t page = hak_os_page_bytes(), bytes = 0;
    uint32_t pages = (uint32_t)(view->facts->unit_count * HAK_UNIT_BYTES / page), first = 0;
    uint64_t known = hak_atomic_load(&view->slab->purged_pages, relaxed);
    for (uint32_t at = 0; at <= pages; at++) {
        bool is_hole = false;
        if (at < pages && (known >> at & 1) == 0) {
            uint32_t block_first = (uint32_t)(at * page / view->facts->block_bytes);
            uint32_t block_end = blocks_before((at + 1) * page, view->facts);
            is_hole = block_first < block_end && are_free(view, block_first, block_end);
        }
        if (is_hole) continue;
        if (at > first) bytes += visit(view, first, at);
        first = at + 1;
    }
    return bytes;
}

/* One sweep more without a claim; the holes count from the second one on. */
static size_t age_slab(const struct view *view) {
    uint8_t sweeps = hak_atomic_load(&view->slab->sweeps, relaxed);
    if (sweeps < OLD_SWEEPS) hak_atomic_store(&view->slab->sweeps, (uint8_t)(sweeps + 1), relaxed);
    return sweeps + 1 < OLD_SWEEPS ? 0 : for_each_hole(view, count_pages);
}
static size_t purge_old(const struct view *view) {
    bool is_old = hak_atomic_load(&view->slab->sweeps, relaxed) >= OLD_SWEEPS;
    return is_old ? for_each_hole(view, purge_pages) : 0;
}
static size_t purge_any(const struct view *view) { return for_each_hole(view, purge_pages); }

/* `visit_run`, where it is not NULL, gets the first unit of each page run. */
static size_t for_each_slab(struct hak_range *range, size_t (*visit)(const struct view *view),
                            size_t (*visit_run)(struct hak_range *range, uint32_t unit)) {
    size_t bytes = 0;
    /* Acquire pairs with hak_region_grow: records exist up to here. */
    uint32_t units = hak_atomic_load(&range->super_slab_count, acquire) * HAK_UNITS_PER_SUPER_SLAB;
    for (uint32_t unit = 0; unit < units;) {
        uint32_t size_class = hak_atomic_load(&range->page_map[unit], relaxed);
        if (size_class == HAK_CLASS_NONE || size_class > HAK_SMALL_CLASS_COUNT) {
            if (size_class == HAK_CLASS_RUN_HEAD && visit_run != NULL) bytes += visit_run(range, unit);
            unit++;
            continue;
        }
        const struct hak_size_class *facts = &hak_size_classes[size_class];
        struct hak_slab *slab = &range->slabs[unit & ~(facts->unit_count - 1)];
        struct view view = {.range = range,
                            .slab = slab,
                            .facts = facts,
                            .unit = unit,
                            .size_class = size_class,
                            .bits = hak_region_bits_of(range, slab, size_class)};
        bytes += visit(&view);
        unit = (unit & ~(facts->unit_count - 1)) + facts->unit_count;
    }
    return bytes;
}

static size_t for_all_slabs(size_t (*visit)(const struct view *view),
                            size_t (*visit_run)(struct hak_range *range, uint32_t unit)) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++)
        bytes += for_each_slab(hak_region_range(i), visit, visit_run);
    return bytes;
}

size_t hak_purge_age(void) { return for_all_slabs(age_slab, NULL); }

size_t hak_purge_old(void) { return for_all_slabs(purge_old, NULL); }

size_t hak_purge_all(struct hak_heap *own) {
    if (own != NULL) hak_heap_flush(own);
    hak_heap_drain_others(own);
    return for_all_slabs(purge_any, hak_large_purge_tail) + hak_region_purge_units(UINT64_MAX, true) +
           hak_mapping_cache_purge();
}
