/* Region: which addresses are ours, and for what. Hands out units of 64 KiB of address space and takes them back.
 *
 * A range is a window of addresses, chosen at random where a program has nothing, and not reserved: SuperSlabs of 2 MiB
 * are mapped in it one after the other, from the bottom, as they are needed, and so are the tables, which lie below
 * them. Each table begins where it would if the window were full; so a place in it is found by arithmetic, and it never
 * moves. The first range is as large as the address space allows, and found by one subtraction (hit path). When it is
 * used up there are more, found by the directory. A SuperSlab is cut into 32 units. Per unit there are its class
 * in the page map and a slab record, both out of band.
 *
 *   R1  A unit is free in the SuperSlab's word (dirty: has memory; fresh: reads as zero, has none; absent: not mapped,
 *       its addresses went back to the kernel near a limit), or it belongs to whoever cleared its bits there; that one
 *       alone writes its class and, but for S4 of slab.h, its slab record. Who takes an absent unit maps it, or
 *       puts it back.
 *   R2  The class of a unit in the page map is HAK_CLASS_NONE while the unit is free.
 *   R3  Ranges are never given back, nor are their tables.
 *   R4  The tables reach at least as far as super_slab_count. Who raises it has these SuperSlabs, maps them, and puts
 *       their units into circulation. Where somebody else's mapping lies already, the SuperSlab stays a hole for ever:
 *       its bit in `mapped` is clear, and none of its units is ever free. So does an absent unit in whose place a
 *       mapping was found.
 *   R5  One thread at a time makes a step of the tables. What lies in its way is not hakmem's, and the range ends
 *       there. Others wait for the maker, for a bounded time; then they make do with a further range. Nobody waits for
 *       a thread that waits: when the maker is done, or was refused, the next one sees what there is, or is the maker.
 *   R6  Once the kernel has refused to map SuperSlabs of a range, one thread at a time claims some, for a bounded time
 *       as in R5: so what is refused can be given up, and is no hole.
 *
 * All of it is lock-free but for R5 and R6. In a child after fork a step that another thread was making is never
 * finished: the range ends below it. SuperSlabs that another thread had claimed, and not mapped or put into
 * circulation, stay holes.
 */
#ifndef HAK_REGION_REGION_H
#define HAK_REGION_REGION_H

#include "base/atomic.h"
#include "base/bits.h"
#include "slab/slab.h"

#define HAK_SUPER_SLAB_BYTES ((size_t)2 << 20)
enum {
    HAK_UNITS_PER_SUPER_SLAB = 32,
    HAK_SUPER_SLABS_PER_GROUP = 64,
    HAK_RANGE_LIMIT = 250,
};

/* Kinds of hints (region/hints.h): a SuperSlab may have a run of 2^i free units, i below HAK_RUN_HINTS; dirty units;
 * its upper border may lie in a run of so many free units as region/units.c has for each span hint; partial slabs of a
 * class. */
enum {
    HAK_RUN_HINTS = 6,
    HAK_DIRTY_HINT = HAK_RUN_HINTS,
    HAK_UNIT_HINTS, /* those above are told by the SuperSlab's word alone */
    HAK_SPAN_HINT = HAK_UNIT_HINTS,
    HAK_SPAN_HINTS = 9,
    HAK_PARTIAL_HINT = HAK_SPAN_HINT + HAK_SPAN_HINTS, /* plus the class */
    HAK_HINTS = HAK_PARTIAL_HINT + HAK_CLASS_LIMIT,
};
#define HAK_RANGE_MOST_SUPER_SLABS ((uint32_t)1 << 23) /* 16 TiB */
/* The page map of every range begins so far below its first SuperSlab: the hit path needs no pointer to it. The first
 * one is there for HAK_NEAR_UNITS, 16 GiB, from the start on, whatever the heap has: for these the hit path need not
 * ask how far it reaches. */
#define HAK_PAGE_MAP_BYTES ((uintptr_t)HAK_RANGE_MOST_SUPER_SLABS * HAK_UNITS_PER_SUPER_SLAB * sizeof(uint16_t))
#define HAK_NEAR_UNITS ((uintptr_t)1 << 18)

/* Per SuperSlab. What it has in the pool's set of partial slabs lies beside its units: pool/partial_set.h. */
struct hak_super_slab {
    HAK_ATOMIC(uint64_t) free_units;  /* bits 0..31 dirty, bits 32..63 fresh; both: absent */
    HAK_ATOMIC(uint32_t) uses;        /* times all of it was free, with memory, and was used again; page_policy.c */
    HAK_ATOMIC(uint32_t) is_unbroken; /* page_policy.c, P1 */
    HAK_ATOMIC(uint32_t) given;       /* a bit per unit that has been purged, and not been used since */
    HAK_ATOMIC(uint32_t) apart;       /* a bit per unit that may be a mapping of its own; page_policy.c */
    HAK_ATOMIC(uint32_t) partial[HAK_CLASS_LIMIT]; /* [class]: a bit per unit */
};

/* The units of a SuperSlab's word: all that are free, and those of each kind. */
HAK_INLINE uint32_t hak_units_free(uint64_t word) { return (uint32_t)word | (uint32_t)(word >> 32); }
HAK_INLINE uint32_t hak_units_dirty(uint64_t word) { return (uint32_t)word & ~(uint32_t)(word >> 32); }
HAK_INLINE uint32_t hak_units_fresh(uint64_t word) { return (uint32_t)(word >> 32) & ~(uint32_t)word; }
HAK_INLINE uint32_t hak_units_absent(uint64_t word) { return (uint32_t)word & (uint32_t)(word >> 32); }

/* Per 64 SuperSlabs, a bit for each. */
struct hak_super_slab_group {
    HAK_ATOMIC(uint64_t) mapped; /* R4 */
    HAK_ATOMIC(uint64_t) huge;   /* page_policy.c */
    HAK_ATOMIC(uint64_t) hints[HAK_HINTS];
};

/* Per 64 groups, a bit for each: one of its hints may be set. And per 64 of these, but for the bit of the first one,
 * which counts as set. */
struct hak_hint_summary {
    HAK_ATOMIC(uint64_t) hints[HAK_HINTS];
};

enum { HAK_RANGE_TABLES = 6 };

struct hak_range {
    uintptr_t start;                        /* const: of its first SuperSlab */
    uint32_t number;                        /* const: its place in hak_ranges */
    HAK_ATOMIC(uint32_t) super_slab_limit;  /* addresses are for so many; may fall to what there are tables for (R5) */
    HAK_ATOMIC(uint32_t) super_slab_count;  /* there are so many, from the bottom, holes included (R4) */
    HAK_ATOMIC(uint32_t) table_super_slabs; /* tables are mapped for so many */
    HAK_ATOMIC(uint32_t) table_maker;       /* its generation while a thread makes the next step of the tables (R5) */
    HAK_ATOMIC(uint32_t) was_refused;       /* 1 since the kernel has refused to map a SuperSlab; */
    HAK_ATOMIC(uint32_t) grower;            /* its generation while a thread claims and maps SuperSlabs then (R6) */
    uint32_t mapped_tables[HAK_RANGE_TABLES]; /* each is mapped for so many; of who makes the next step (R5) */
    HAK_ATOMIC(uint16_t) *page_map;           /* [unit]: class, times HAK_BIN_STRIDE (R1, R2) */
    struct hak_hint_summary *tops;            /* [SuperSlab / 64 / 64 / 64], all mapped with this record */
    struct hak_hint_summary *summaries;       /* [SuperSlab / 64 / 64] */
    struct hak_super_slab_group *groups;      /* [SuperSlab / 64] */
    struct hak_super_slab *super_slabs;       /* [SuperSlab] */
    struct hak_slab *slabs;                   /* [unit] */
    HAK_ATOMIC(uint64_t) (*bit_rows)[HAK_SLAB_MAX_WORDS]; /* [unit]: bits of slabs with many blocks */
};

/* What the hit path knows of the first range. Its page map is there for HAK_NEAR_UNITS, or for `units` if these are
 * more, and zero beyond what is used: an address that is not ours has class 0. Until there is a range, `start` is
 * HAK_WINDOW_NOWHERE, far from all addresses: every one is foreign then. Written at growth, read at every free: it lies
 * alone. */
struct hak_window {
    HAK_ATOMIC(uintptr_t) start;
    HAK_ATOMIC(uintptr_t) units;
};
#define HAK_WINDOW_NOWHERE ((uintptr_t)0xAAAA << 48)
extern struct hak_window hak_window;

/* The unit's byte in the first range's page map can be read; the range may be smaller, and another one lie there. */
HAK_INLINE bool hak_page_map_reaches(uintptr_t unit) {
    return HAK_LIKELY(unit < HAK_NEAR_UNITS) || hak_relaxed_above(&hak_window.units, unit);
}

extern HAK_ATOMIC(struct hak_range *) hak_ranges[HAK_RANGE_LIMIT]; /* the first NULL ends it */

/* Chooses the first range, and maps its first tables. False when there is no address space. Called before anything else
 * here, and again only in a child whose parent forked during it. */
bool hak_region_initialize(void);

/* Where units come from. */
enum hak_unit_source {
    HAK_UNITS_FRESH,       /* without memory, in a SuperSlab that exists; bounded scan */
    HAK_UNITS_DIRTY,       /* given back by a slab or run; bounded scan */
    HAK_UNITS_FREE,        /* of any kind, in a SuperSlab that exists; bounded scan, also by the kernel's refusal */
    HAK_UNITS_NEW_SUPER,   /* a SuperSlab mapped now */
    HAK_UNITS_LAST_RESORT, /* dirty or fresh, wherever there are some */
};

/* `count` adjacent units within one SuperSlab, starting at a multiple of `alignment` units; both 1..32. Returns the
 * record of the first, with its `range` set, or NULL when the source has none. With `clear` the memory is zero: where
 * it is dirty it is made so. */
struct hak_slab *hak_region_acquire(uint32_t count, uint32_t alignment, enum hak_unit_source source, bool clear);

/* The same of dirty units that were a slab of the class when they were last used as one. Which these are is a guess,
 * and few SuperSlabs are looked into: it is for small heaps. */
struct hak_slab *hak_region_acquire_former(uint32_t size_class, bool clear);

/* Any number of adjacent units, across the borders of SuperSlabs, at an address that is a multiple of `alignment`
 * units: the lowest that are free, or, at the upper end of a range, with SuperSlabs made for it. Otherwise as
 * hak_region_acquire. */
struct hak_slab *hak_region_acquire_span(uint32_t count, uint32_t alignment, bool clear);

/* Gives units back, dirty, that were acquired. Their page map bytes must be HAK_CLASS_NONE. */
void hak_region_release(struct hak_slab *first, uint32_t count);

/* Says of acquired units, of one SuperSlab, that their memory went back for want of allowance (region/allowance.h). */
void hak_region_note_given(struct hak_slab *first, uint32_t count);

/* Gives units back whose memory has moved elsewhere, or went back: they read as zero. */
void hak_region_release_fresh(struct hak_slab *first, uint32_t count);

/* Tries to take the `count` units that follow a run of `have` units: free ones, and SuperSlabs made for it. */
bool hak_region_extend(struct hak_slab *first, uint32_t have, uint32_t count);

/* Gives back a unit that was unmapped. */
void hak_region_release_absent(struct hak_slab *unit);

/* Gives up a unit that has guards which the kernel doesn't take away: it becomes absent, or nobody's. */
HAK_COLD void hak_region_give_up_guarded(struct hak_slab *unit);

/* Unmaps free units of the first range, `want_bytes` of them if there are so many: near a limit, these may serve
 * elsewhere. In further ranges nothing is unmapped: where the kernel put a mapping in such a place, its entry in the
 * directory would be the SuperSlab's (D1). Returns the bytes. */
size_t hak_region_unmap_units(size_t want_bytes);

/* The same with SuperSlabs that are free as a whole, but for the first one, as far as the kernel has room for more
 * mappings: who may map no more, by then, has that one. */
size_t hak_region_unmap_super_slabs(void);

/* Writes the class of adjacent units into the page map. */
void hak_region_mark(struct hak_slab *first, uint32_t count, uint32_t size_class);

HAK_INLINE struct hak_range *hak_region_range(uint32_t number) {
    /* Acquire pairs with the publication of the range. */
    return hak_atomic_load(&hak_ranges[number], acquire);
}
/* The class of a unit, by the page map. */
HAK_INLINE uint32_t hak_page_map_class(const struct hak_range *range, uintptr_t unit) {
    return hak_atomic_load(&range->page_map[unit], relaxed) / HAK_BIN_STRIDE;
}
/* How many SuperSlabs it has (R4); whoever asks may use its tables for them. */
HAK_INLINE uint32_t hak_region_super_slabs(const struct hak_range *range) {
    /* Acquire pairs with hak_region_grow: the tables reach as far. */
    return hak_atomic_load(&range->super_slab_count, acquire);
}
HAK_INLINE struct hak_range *hak_region_range_of_record(const struct hak_slab *slab) {
    return hak_region_range(hak_atomic_load(&slab->range, relaxed));
}
HAK_INLINE uint32_t hak_region_unit_of(const struct hak_range *range, const struct hak_slab *slab) {
    return (uint32_t)(slab - range->slabs);
}
HAK_INLINE uintptr_t hak_region_start_of(const struct hak_range *range, const struct hak_slab *slab) {
    return range->start + ((uintptr_t)hak_region_unit_of(range, slab) << HAK_UNIT_SHIFT);
}

/* The bits of a slab of `size_class` whose record is `slab`: for those who do not have it. */
HAK_INLINE HAK_ATOMIC(uint64_t) *hak_region_bits_of(const struct hak_range *range, struct hak_slab *slab,
                                                    uint32_t size_class) {
    bool fits = hak_size_classes[size_class].block_count <= HAK_SLAB_INLINE_WORDS * 64;
    return fits ? slab->inline_bits : range->bit_rows[hak_region_unit_of(range, slab)];
}

/* The range that has a SuperSlab at an address, and no absent unit; or NULL. */
struct hak_range *hak_region_range_of(uintptr_t address);

/* What an address is. */
struct hak_place {
    enum hak_place_kind {
        HAK_PLACE_FOREIGN, /* not ours, or ours and free */
        HAK_PLACE_SMALL,   /* in a slab */
        HAK_PLACE_RUN,     /* in a page run */
        HAK_PLACE_MAPPING, /* in a large object's own mapping */
        HAK_PLACE_GUARDED, /* between guards (region/guard.h) */
    } kind;
    uint32_t size_class;   /* of a slab */
    struct hak_slab *slab; /* of a slab or a page run */
    uintptr_t start;       /* of the block that covers the address */
    size_t bytes;          /* usable, from there */
};

struct hak_place hak_region_find(uintptr_t address);

/* A page run or mapping. */
HAK_INLINE bool hak_place_is_large(const struct hak_place *place) {
    return place->kind == HAK_PLACE_RUN || place->kind == HAK_PLACE_MAPPING;
}

/* True when the address lies in a SuperSlab or mapping of ours, or among guards. */
bool hak_region_covers(uintptr_t address);

/* True when it lies in the tables of a range, the directory among them. */
bool hak_region_is_metadata(uintptr_t address);

/* Units that are free and have memory. */
extern HAK_ATOMIC(uint64_t) hak_dirty_units;

/* Gives dirty units back to the kernel, from the top: at least `want` of them (a SuperSlab's are not divided), or all
 * there are. Without `all`, SuperSlabs whose huge pages are worth more are passed over. Returns the bytes. */
size_t hak_region_purge_units(uint64_t want, bool all);

/* The same for a purge by turns, which go on where the last one ended: *place is HAK_PURGE_FROM_TOP before the first,
 * and 0 after the last. A turn ends when it has `want` units, or has passed over many SuperSlabs. */
#define HAK_PURGE_FROM_TOP UINT64_MAX
size_t hak_region_purge_turn(uint64_t *place, uint64_t want, bool all);

/* Gives back `bytes` at `start`, pages whose blocks the caller has; false when the kernel refuses. */
bool hak_region_purge_pages(uintptr_t start, size_t bytes);

/* In a child after fork: free units are found, whatever another thread was about to do at a SuperSlab, or at any. When
 * this was said of all where one was, they are counted again, and nobody makes tables. */
void hak_region_recover_around_after_fork(struct hak_range *range, uint32_t super_slab);
void hak_region_recover_all_after_fork(struct hak_range *range);
void hak_region_recount_after_fork(void);

/* In one that has other threads: who made tables or SuperSlabs and is no more, does so no longer. */
void hak_region_leave_dead_after_fork(void);

/* Of all ranges, holes included. */
uint64_t hak_region_count_super_slabs(void);

/* Sums for statistics, in bytes. */
struct hak_region_sums {
    uint64_t super_slabs, committed_bytes, metadata_bytes;
};
struct hak_region_sums hak_region_sums(void);

#endif
