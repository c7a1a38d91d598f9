/* Ranges: choosing their addresses, mapping SuperSlabs and tables, and finding what lies at an address. */
#include "os/os.h"
#include "region/directory.h"
#include "region/generation.h"
#include "region/guard.h"
#include "region/in_hand.h"
#include "region/page_policy.h"
#include "region/region.h"
#include "region/units.h"

HAK_CACHE_ALIGNED struct hak_window hak_window = {.start = HAK_WINDOW_NOWHERE};
_Static_assert(sizeof(struct hak_window) <= 64, "one cache line");
HAK_ATOMIC(struct hak_range *) hak_ranges[HAK_RANGE_LIMIT];

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* In the order in which a step of them is mapped. */
enum table { RECORDS, BIT_ROWS, SUPER_SLABS, GROUPS, SUMMARIES, PAGE_MAP, TABLE_COUNT };
_Static_assert((int)TABLE_COUNT == (int)HAK_RANGE_TABLES, "a record has an end for each");

static size_t table_bytes(enum table table, size_t super_slabs) {
    size_t units = super_slabs * HAK_UNITS_PER_SUPER_SLAB;
    size_t groups = (super_slabs + HAK_SUPER_SLABS_PER_GROUP - 1) / HAK_SUPER_SLABS_PER_GROUP;
    switch (table) {
    case RECORDS: return units * sizeof(struct hak_slab);
    case BIT_ROWS: return units * HAK_SLAB_MAX_WORDS * sizeof(uint64_t);
    case SUPER_SLABS: return super_slabs * sizeof(struct hak_super_slab);
    case GROUPS: return groups * sizeof(struct hak_super_slab_group);
    case SUMMARIES: return (groups + 63) / 64 * sizeof(struct hak_hint_summary);
    case PAGE_MAP: return units * sizeof(uint16_t);
    case TABLE_COUNT: break;
    }
    return 0;
}

static uintptr_t table_start(const struct hak_range *range, enum table table) {
    switch (table) {
    case RECORDS: return (uintptr_t)range->slabs;
    case BIT_ROWS: return (uintptr_t)range->bit_rows;
    case SUPER_SLABS: return (uintptr_t)range->super_slabs;
    case GROUPS: return (uintptr_t)range->groups;
    case SUMMARIES: return (uintptr_t)range->summaries;
    case PAGE_MAP: return (uintptr_t)range->page_map;
    case TABLE_COUNT: break;
    }
    return 0;
}

/* Where the part of a table ends, in whole pages, that is mapped for so many SuperSlabs. */
static uintptr_t table_end(const struct hak_range *range, enum table table, size_t super_slabs) {
    size_t bytes = table_bytes(table, super_slabs);
    bool is_near = table == PAGE_MAP && range->number == 0 && super_slabs != 0;
    size_t near_bytes = HAK_NEAR_UNITS * sizeof(uint16_t);
    if (is_near && bytes < near_bytes) bytes = near_bytes;
    return hak_align_up(table_start(range, table) + bytes, hak_os_page_bytes());
}

/* Takes back what was mapped of a step. Where the kernel refuses that, the next attempt finds it there. */
static void unmap_step(struct hak_range *range, uint32_t from) {
    for (enum table table = 0; table < TABLE_COUNT; table++) {
        uintptr_t start = table_end(range, table, from), end = table_end(range, table, range->mapped_tables[table]);
        if (start == end || hak_os_unmap((void *)start, end - start)) range->mapped_tables[table] = from;
    }
}

/* Maps what tables need for SuperSlabs `from`..`to`: all or nothing. */
static enum hak_os_mapped map_step(struct hak_range *range, uint32_t from, uint32_t to) {
    enum hak_os_mapped result = HAK_OS_MAPPED;
    for (enum table table = 0; table < TABLE_COUNT; table++) {
        uintptr_t start = table_end(range, table, range->mapped_tables[table]), end = table_end(range, table, to);
        if (start < end) {
            result = hak_os_map_at((void *)start, end - start);
            if (result != HAK_OS_MAPPED) break;
            hak_os_refuse_huge_pages((void *)start, end - start); /* few bit rows are used, and far between */
        }
        if (range->mapped_tables[table] < to) range->mapped_tables[table] = to;
    }
    if (result != HAK_OS_MAPPED) unmap_step(range, from);
    return result;
}

/* The first range's page map is there for so many SuperSlabs. */
static void show_window(const struct hak_range *range, uint32_t super_slabs) {
    uintptr_t units = (uintptr_t)super_slabs * HAK_UNITS_PER_SUPER_SLAB,
              have = hak_atomic_load(&hak_window.units, relaxed);
    if (range->number != 0) return;
    /* Relaxed: whoever has an address got it after this. */
    while (have < units && !hak_atomic_cas(&hak_window.units, &have, units, relaxed, relaxed)) {
    }
}

/* SuperSlabs whose tables are mapped at a time. The model checker has smaller steps. */
static uint32_t table_step = HAK_SUPER_SLABS_PER_GROUP;

/* The tables for so many SuperSlabs, in whole steps. */
static uint32_t in_steps(const struct hak_range *range, uint32_t super_slabs) {
    uint32_t limit = hak_atomic_load(&range->super_slab_limit, relaxed);
    size_t want = hak_align_up(super_slabs, table_step);
    return want < limit ? (uint32_t)want : limit;
}

/* Makes the next steps of the tables, up to the one that has those for `super_slabs`. One thread at a time is here. */
static enum hak_os_mapped extend_tables(struct hak_range *range, uint32_t super_slabs) {
    uint32_t have = hak_atomic_load(&range->table_super_slabs, relaxed), want = in_steps(range, super_slabs);
    if (super_slabs <= have) return HAK_OS_MAPPED;
    if (want < super_slabs) return HAK_OS_OCCUPIED;
    enum hak_os_mapped result = map_step(range, have, want);
    if (result == HAK_OS_MAPPED) {
        show_window(range, want);
        /* Release pairs with the acquire loads of it: what was mapped here can be handed on. */
        hak_atomic_store(&range->table_super_slabs, want, release);
    } else if (result == HAK_OS_OCCUPIED) {
        /* Somebody who is not hakmem has the addresses: the range ends here. */
        hak_atomic_store(&range->super_slab_limit, have, relaxed);
    }
    return result;
}

enum { MOST_TURN_WAITS = 4096 }; /* for another thread's turn */

static enum hak_os_mapped ensure_tables(struct hak_range *range, uint32_t super_slabs) {
    for (uint32_t i = 0; i < MOST_TURN_WAITS; i++) {
        /* Acquire pairs with the release in extend_tables. */
        if (HAK_LIKELY(super_slabs <= hak_atomic_load(&range->table_super_slabs, acquire))) return HAK_OS_MAPPED;
        uint32_t nobody = 0;
        /* R5. Acquire pairs with the release below: what the maker before has made, or found, is seen. */
        if (hak_atomic_cas(&range->table_maker, &nobody, hak_generation_now(), acquire, relaxed)) {
            enum hak_os_mapped result = extend_tables(range, super_slabs);
            hak_atomic_store(&range->table_maker, 0, release);
            return result;
        }
        hak_cpu_relax();
        hak_os_yield();
    }
    return HAK_OS_OCCUPIED;
}

/* It gets no more tables. */
static void end_range(struct hak_range *range) {
    hak_atomic_store(&range->super_slab_limit, hak_atomic_load(&range->table_super_slabs, relaxed), relaxed);
}

/* Who was making the next step is not here, and what there is of it can't be told from what others have mapped. */
static void end_tables(struct hak_range *range) {
    end_range(range);
    hak_atomic_store(&range->table_maker, 0, relaxed);
}

void hak_region_recover_tables_after_fork(struct hak_range *range) {
    hak_atomic_store(&range->grower, 0, relaxed);
    if (hak_atomic_load(&range->table_maker, relaxed) != 0) end_tables(range);
}

/* G3 of generation.h: nobody else writes what a dead thread has. */
static bool is_dead(const HAK_ATOMIC(uint32_t) *maker) {
    uint32_t generation = hak_atomic_load(maker, relaxed);
    return generation != 0 && generation <= hak_atomic_load(&hak_generation, relaxed);
}

void hak_region_leave_dead_after_fork(void) {
    struct hak_range *range;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && (range = hak_region_range(i)) != NULL; i++) {
        if (is_dead(&range->grower)) hak_atomic_store(&range->grower, 0, relaxed);
        if (is_dead(&range->table_maker)) end_tables(range);
    }
}

/* ---- Making ranges ----------------------------------------------------------------------------------------------- */

/* Where in the addresses of a range its parts lie: the uppermost hints, its record, the tables, the SuperSlabs. */
struct layout {
    size_t record, tables[TABLE_COUNT], heap, all;
};

enum { RECORD_ALIGNMENT = 64 };

/* The small tables first, so that few pages of page tables serve all that a small heap has; but for the page map, which
 * lies where the hit path finds it. The first summaries share the record's page. */
static struct layout layout_of(uint32_t super_slabs) {
    static const enum table order[] = {SUMMARIES, GROUPS, SUPER_SLABS, RECORDS, BIT_ROWS};
    size_t page = hak_os_page_bytes(),
           summaries = table_bytes(SUMMARIES, super_slabs) / sizeof(struct hak_hint_summary);
    struct layout layout = {.record = hak_align_up((summaries + 63) / 64 * sizeof(struct hak_hint_summary), page)};
    size_t at = layout.record + hak_align_up(sizeof(struct hak_range), RECORD_ALIGNMENT);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        layout.tables[order[i]] = at;
        at = hak_align_up(at + table_bytes(order[i], super_slabs), page);
    }
    layout.heap = hak_align_up(at + HAK_PAGE_MAP_BYTES, HAK_SUPER_SLAB_BYTES);
    layout.tables[PAGE_MAP] = layout.heap - HAK_PAGE_MAP_BYTES;
    layout.all = layout.heap + (size_t)super_slabs * HAK_SUPER_SLAB_BYTES;
    return layout;
}

/* What is mapped for a range from its beginning to its end: with its record. */
static size_t record_bytes_of(const struct hak_range *range) {
    return (uintptr_t)range - (uintptr_t)range->tops + hak_align_up(sizeof *range, hak_os_page_bytes());
}

static void discard_range(struct hak_range *range) {
    unmap_step(range, 0);
    hak_os_unmap(range->tops, record_bytes_of(range));
}

/* A range at this address, which is one where nothing may lie. NULL when something does, or there is no memory. */
static struct hak_range *make_range_at(uintptr_t at, uint32_t super_slabs, uint32_t number) {
    struct layout layout = layout_of(super_slabs);
    size_t record_bytes = layout.record + hak_align_up(sizeof(struct hak_range), hak_os_page_bytes());
    if (hak_os_map_at((void *)at, record_bytes) != HAK_OS_MAPPED) return NULL;
    hak_os_refuse_huge_pages((void *)at, record_bytes); /* as in map_step */
    struct hak_range *range = (struct hak_range *)(at + layout.record);
    range->tops = (void *)at;
    range->start = at + layout.heap;
    range->number = number;
    range->page_map = (void *)(at + layout.tables[PAGE_MAP]);
    range->summaries = (void *)(at + layout.tables[SUMMARIES]);
    range->groups = (void *)(at + layout.tables[GROUPS]);
    range->super_slabs = (void *)(at + layout.tables[SUPER_SLABS]);
    range->slabs = (void *)(at + layout.tables[RECORDS]);
    range->bit_rows = (void *)(at + layout.tables[BIT_ROWS]);
    hak_atomic_store(&range->super_slab_limit, super_slabs, relaxed);
    uint32_t first_step = in_steps(range, 1);
    if (map_step(range, 0, first_step) == HAK_OS_MAPPED) {
        hak_atomic_store(&range->table_super_slabs, first_step, relaxed);
        return range;
    }
    hak_os_unmap((void *)at, record_bytes);
    return NULL;
}

/* A range with room for `super_slabs`, somewhere. NULL when the address space has no such place, or there is no
 * memory. */
static struct hak_range *make_range(uint32_t super_slabs, uint32_t number) {
    enum { ATTEMPTS = 4 };
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        uintptr_t at = hak_os_pick_addresses(layout_of(super_slabs).all, HAK_SUPER_SLAB_BYTES, number * ATTEMPTS + i);
        struct hak_range *range = at == 0 ? NULL : make_range_at(at, super_slabs, number);
        if (range != NULL) return range;
    }
    return NULL;
}

/* Sizes of a range, of which it gets the first that the address space has room for; further ones begin with the
 * second. */
static const uint32_t range_sizes[] = {HAK_RANGE_MOST_SUPER_SLABS, 1 << 15, 1 << 12, 1 << 9,
                                       HAK_SUPER_SLABS_PER_GROUP,  1};
enum { RANGE_SIZES = sizeof range_sizes / sizeof range_sizes[0] };

/* Gives the range the number of the first free place: false when another thread took it. */
static bool publish_range(struct hak_range *range) {
    struct hak_range *none = NULL;
    /* Release pairs with hak_region_range: the range can be used. */
    return hak_atomic_cas(&hak_ranges[range->number], &none, range, release, relaxed);
}

bool hak_region_initialize(void) {
    /* There is one already in a child whose parent forked in the middle of this. */
    struct hak_range *range = hak_region_range(0);
    for (size_t i = 0; range == NULL && i < RANGE_SIZES; i++) {
        range = make_range(range_sizes[i], 0);
        if (range != NULL) publish_range(range);
    }
    if (range == NULL) return false;
    hak_atomic_store(&hak_window.start, range->start, relaxed);
    show_window(range,
                hak_atomic_load(&range->table_super_slabs, relaxed)); /* last: from here on addresses are looked up */
    return true;
}

struct hak_range *hak_region_add_range(uint32_t number, uint32_t super_slabs) {
    struct hak_range *range = NULL;
    if (number >= HAK_RANGE_LIMIT) return NULL;
    for (size_t i = 1; range == NULL && i < RANGE_SIZES && range_sizes[i] >= super_slabs; i++)
        range = make_range(range_sizes[i], number);
    if (range == NULL || publish_range(range)) return range;
    discard_range(range);
    return hak_region_range(number);
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

static void *address_of(const struct hak_range *range, uint32_t super_slab) {
    return (void *)(range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES);
}

static enum hak_os_mapped map_super_slabs(const struct hak_range *range, uint32_t first, uint32_t count) {
    void *start = address_of(range, first);
    size_t bytes = (size_t)count * HAK_SUPER_SLAB_BYTES;
    enum hak_os_mapped result = hak_os_map_at(start, bytes);
    if (result == HAK_OS_REFUSED && hak_page_policy_merge_mappings()) result = hak_os_map_at(start, bytes);
    if (result == HAK_OS_MAPPED) hak_os_refuse_huge_pages(start, bytes);
    return result;
}

/* Lets addresses of a range that is not the first lead to it. */
static bool enter_in_directory(const struct hak_range *range, uint32_t first, uint32_t count) {
    if (range->number == 0) return true;
    for (uint32_t i = first; i < first + count; i++)
        if (!hak_directory_set((uintptr_t)address_of(range, i), hak_entry_for_range(range->number))) {
            while (i-- > first) hak_directory_set((uintptr_t)address_of(range, i), HAK_ENTRY_NONE);
            return false;
        }
    return true;
}

static void set_mapped(struct hak_range *range, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count;) {
        uint32_t bit = i % HAK_SUPER_SLABS_PER_GROUP, bits = HAK_SUPER_SLABS_PER_GROUP - bit;
        if (bits > first + count - i) bits = first + count - i;
        /* Relaxed: who has an address in one of them got it after this. */
        hak_atomic_fetch_or(&range->groups[i / HAK_SUPER_SLABS_PER_GROUP].mapped, hak_low_bits(bits) << bit, relaxed);
        i += bits;
    }
}

/* Raises the count of SuperSlabs from *count_now to `count`, for which there are tables: what is claimed is in hand.
 * False when another thread was faster: then *count_now is what it is. */
static bool claim(struct hak_range *range, uint32_t *count_now, uint32_t count) {
    hak_in_hand_begin_before_release();
    /* R4. Release pairs with hak_region_super_slabs: the tables reach as far, and what is claimed is in hand. */
    if (hak_atomic_cas(&range->super_slab_count, count_now, count, release, relaxed)) return true;
    hak_in_hand_keep();
    return false;
}

/* Takes back a claim, if nobody has claimed more since; else what was claimed are holes. */
static void unclaim(struct hak_range *range, uint32_t first, uint32_t count) {
    uint32_t end = first + count;
    hak_atomic_cas(&range->super_slab_count, &end, first, relaxed, relaxed);
}

/* R6: begins a turn, where the kernel has refused some; false where none is needed, or another thread's takes long. */
static bool begin_turn(struct hak_range *range) {
    if (HAK_LIKELY(hak_atomic_load(&range->was_refused, relaxed) == 0)) return false;
    for (uint32_t i = 0; i < MOST_TURN_WAITS; i++) {
        uint32_t nobody = 0;
        /* Relaxed, here and below: what is claimed is a change of one word, which fails for who has seen an older
         * one. */
        if (hak_atomic_cas(&range->grower, &nobody, hak_generation_now(), relaxed, relaxed)) return true;
        hak_cpu_relax();
        hak_os_yield();
    }
    return false;
}

static void end_turn(struct hak_range *range, bool is_turn) {
    if (is_turn) hak_atomic_store(&range->grower, 0, relaxed);
}

static enum hak_growth grow(struct hak_range *range, uint32_t *count_now, uint32_t count) {
    uint32_t first = *count_now, limit = hak_atomic_load(&range->super_slab_limit, relaxed);
    if (first > limit || count > limit - first) return HAK_GROWTH_NO_ROOM;
    enum hak_os_mapped result = ensure_tables(range, first + count);
    if (result != HAK_OS_MAPPED) return result == HAK_OS_REFUSED ? HAK_GROWTH_NO_MEMORY : HAK_GROWTH_NO_ROOM;
    if (!claim(range, count_now, first + count)) return HAK_GROWTH_RACED;
    result = map_super_slabs(range, first, count);
    if (result == HAK_OS_MAPPED && !enter_in_directory(range, first, count)) {
        hak_os_unmap(address_of(range, first), (size_t)count * HAK_SUPER_SLAB_BYTES);
        result = HAK_OS_REFUSED;
    }
    if (result == HAK_OS_MAPPED) {
        set_mapped(range, first, count);
        return HAK_GROWTH_DONE;
    }
    if (result == HAK_OS_REFUSED) hak_atomic_store(&range->was_refused, 1, relaxed);
    if (result == HAK_OS_REFUSED || count > 1) unclaim(range, first, count);
    hak_in_hand_keep();
    return result == HAK_OS_REFUSED ? HAK_GROWTH_NO_MEMORY : HAK_GROWTH_OCCUPIED;
}

enum hak_growth hak_region_grow(struct hak_range *range, uint32_t *count_now, uint32_t count) {
    bool is_turn = begin_turn(range);
    enum hak_growth result = grow(range, count_now, count);
    end_turn(range, is_turn);
    return result;
}

/* How many SuperSlabs to map at a time: few for what the range has, so that little is mapped that is not used. */
static uint32_t step_of(uint32_t super_slabs) {
    enum { SHARE = 128, MOST = 32 };
    uint32_t step = 1 + super_slabs / SHARE;
    return step < MOST ? step : MOST;
}

/* Gives up `count` SuperSlabs at the upper end of a range, where others have mappings: they stay holes. */
static void skip(struct hak_range *range, uint32_t first, uint32_t count) {
    uint32_t limit = hak_atomic_load(&range->super_slab_limit, relaxed);
    if (first >= limit || ensure_tables(range, count < limit - first ? first + count : limit) != HAK_OS_MAPPED) return;
    if (claim(range, &first, count < limit - first ? first + count : limit)) hak_in_hand_keep();
}

/* Maps the next SuperSlabs of a range, from number *first on; returns how many. 0 when the range is used up, or with
 * *is_refused memory is. */
static uint32_t grow_range(struct hak_range *range, uint32_t *first, bool *is_refused) {
    enum { MOST_SKIPPED = 1024 }; /* beyond, tables for holes cost more than a further range */
    uint32_t step = UINT32_MAX, skipped = 1;
    for (;;) {
        *first = hak_atomic_load(&range->super_slab_count, relaxed);
        uint32_t usual = step_of(*first);
        if (step > usual) step = usual;
        switch (hak_region_grow(range, first, step)) {
        case HAK_GROWTH_DONE: return step;
        case HAK_GROWTH_RACED: break;
        case HAK_GROWTH_OCCUPIED:
            if (skipped >= MOST_SKIPPED) {
                end_range(range);
                return 0;
            }
            if (step == 1) skip(range, *first + 1, skipped *= 2);
            step = 1;
            break;
        case HAK_GROWTH_NO_ROOM:
            if (step == 1) return 0;
            step = 1;
            break;
        case HAK_GROWTH_NO_MEMORY:
            if (step == 1) {
                *is_refused = true;
                return 0;
            }
            step = 1;
            break;
        }
    }
}

struct hak_range *hak_region_new_super_slabs(uint32_t *first, uint32_t *count) {
    bool is_refused = false;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        struct hak_range *range = hak_region_range(i);
        if (range == NULL) range = hak_region_add_range(i, 1);
        if (range == NULL) return NULL;
        *count = grow_range(range, first, &is_refused);
        if (*count != 0) return range;
        if (is_refused) return NULL; /* a range more would cost memory, and give none */
    }
    return NULL;
}

/* ---- What lies where --------------------------------------------------------------------------------------------- */

/* The range has a SuperSlab there, not a hole, and no absent unit: somebody else may have a mapping at that address. */
static bool has_super_slab_at(const struct hak_range *range, uintptr_t address) {
    size_t super_slab = (address - range->start) / HAK_SUPER_SLAB_BYTES;
    if (super_slab >= hak_region_super_slabs(range)) return false;
    uint64_t mapped = hak_atomic_load(&range->groups[super_slab / HAK_SUPER_SLABS_PER_GROUP].mapped, relaxed);
    if ((mapped >> super_slab % HAK_SUPER_SLABS_PER_GROUP & 1) == 0) return false;
    uint32_t unit = (address - range->start) / HAK_UNIT_BYTES % HAK_UNITS_PER_SUPER_SLAB;
    uint64_t free_units = hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed);
    return (hak_units_absent(free_units) >> unit & 1) == 0;
}

struct hak_range *hak_region_range_of(uintptr_t address) {
    struct hak_range *range = hak_region_range(0);
    if (range == NULL) return NULL;
    if (has_super_slab_at(range, address)) return range;
    uint64_t entry = hak_directory_get(address);
    if ((entry & HAK_ENTRY_KIND_MASK) != HAK_ENTRY_RANGE) return NULL;
    range = hak_region_range((uint32_t)(entry >> 2));
    return range != NULL && has_super_slab_at(range, address) ? range : NULL;
}

struct hak_place hak_region_find(uintptr_t address) {
    struct hak_place place = {.kind = HAK_PLACE_FOREIGN};
    struct hak_range *range = hak_region_range(0);
    uintptr_t unit = range == NULL ? UINTPTR_MAX : (address - range->start) >> HAK_UNIT_SHIFT;
    uint32_t size_class = HAK_CLASS_NONE;
    /* Where something is in use, its byte says so by itself: neither a hole nor another range lies there. */
    if (range != NULL && hak_page_map_reaches(unit)) size_class = hak_page_map_class(range, unit);
    if (HAK_UNLIKELY(size_class == HAK_CLASS_NONE) && (range = hak_region_range_of(address)) != NULL) {
        unit = (address - range->start) >> HAK_UNIT_SHIFT;
        size_class = hak_page_map_class(range, unit);
    }
    if (size_class == HAK_CLASS_NONE) {
        /* A mapping may lie where units are absent, and somebody be about to try whether they can be mapped again. */
        if (hak_directory_find_mapping(address, &place.start, &place.bytes)) {
            place.kind = HAK_PLACE_MAPPING;
            if (HAK_SECURE) {
                uint64_t entry = hak_directory_get(place.start);
                /* Another thread may have freed it just now. */
                if ((entry & HAK_ENTRY_KIND_MASK) != HAK_ENTRY_MAPPING) place.kind = HAK_PLACE_FOREIGN;
                place.bytes = hak_entry_usable_bytes(entry);
            }
        } else if (hak_guard_find(address, &place.start, &place.bytes)) {
            place.kind = HAK_PLACE_GUARDED;
        }
        return place;
    }
    if (size_class <= HAK_SLAB_CLASS_COUNT) {
        const struct hak_size_class *facts = &hak_size_classes[size_class];
        place.slab = &range->slabs[unit & ~(facts->unit_count - 1)];
        uintptr_t slab_start = hak_region_start_of(range, place.slab);
        uint32_t index = hak_block_index((uint32_t)(address - slab_start), facts->reciprocal);
        if (index >= facts->block_count) return place; /* the rest behind the last block */
        place.kind = HAK_PLACE_SMALL;
        place.size_class = size_class;
        place.start = slab_start + (uintptr_t)index * facts->block_bytes;
        place.bytes = hak_usable_bytes(size_class);
        return place;
    }
    while (size_class == HAK_CLASS_RUN_BODY && unit > 0) size_class = hak_page_map_class(range, --unit);
    if (size_class != HAK_CLASS_RUN_HEAD) return place;
    place.kind = HAK_PLACE_RUN;
    place.slab = &range->slabs[unit];
    place.start = hak_region_start_of(range, place.slab);
    place.bytes = HAK_SECURE ? hak_run_usable_bytes(hak_atomic_load(&place.slab->run_facts, relaxed))
                             : hak_atomic_load(&place.slab->run_pages, relaxed) * hak_os_page_bytes();
    return place;
}

bool hak_region_covers(uintptr_t address) {
    uintptr_t start;
    size_t bytes;
    return hak_region_range_of(address) != NULL || hak_directory_find_mapping(address, &start, &bytes) ||
           hak_guard_covers(address);
}

bool hak_region_is_metadata(uintptr_t address) {
    if (hak_directory_is_table(address)) return true;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        const struct hak_range *range = hak_region_range(i);
        if (range == NULL) break;
        uint32_t super_slabs = hak_atomic_load(&range->table_super_slabs, relaxed);
        if (address - (uintptr_t)range->tops < record_bytes_of(range)) return true;
        for (enum table table = 0; table < TABLE_COUNT; table++) {
            uintptr_t start = table_start(range, table);
            if (address - start < table_end(range, table, super_slabs) - start) return true;
        }
    }
    return false;
}

uint64_t hak_region_count_super_slabs(void) {
    uint64_t count = 0;
    const struct hak_range *range;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && (range = hak_region_range(i)) != NULL; i++)
        count += hak_region_super_slabs(range);
    return count;
}

/* Without the holes (R4). */
static uint64_t count_mapped_super_slabs(const struct hak_range *range) {
    uint32_t groups = (hak_region_super_slabs(range) + HAK_SUPER_SLABS_PER_GROUP - 1) / HAK_SUPER_SLABS_PER_GROUP;
    uint64_t count = 0;
    for (uint32_t i = 0; i < groups; i++) count += hak_bit_count(hak_atomic_load(&range->groups[i].mapped, relaxed));
    return count;
}

struct hak_region_sums hak_region_sums(void) {
    struct hak_region_sums sums = {hak_region_count_super_slabs(), 0, 0};
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        const struct hak_range *range = hak_region_range(i);
        if (range == NULL) break;
        uint32_t steps = hak_atomic_load(&range->table_super_slabs, relaxed);
        sums.metadata_bytes += record_bytes_of(range);
        for (enum table table = 0; table < TABLE_COUNT; table++)
            sums.metadata_bytes += table_end(range, table, steps) - table_end(range, table, 0);
        sums.committed_bytes += count_mapped_super_slabs(range) * HAK_SUPER_SLAB_BYTES;
    }
    return sums;
}
