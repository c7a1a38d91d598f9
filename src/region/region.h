/* Region: which addresses are ours, and for what. Hands out units of 64 KiB of address space and takes them back.
 *
 * Address space is reserved in ranges: the first one as large as allowed, and found by one subtraction (hit path); more
 * when it is used up, found by the directory. A range is cut into SuperSlabs of 2 MiB, which become readable and writable
 * one by one from the bottom, and SuperSlabs into 32 units. Per unit there are a byte in the page map (its class) and a slab
 * record, both out of band; the larger tables are committed in steps as the range grows.
 *
 *   R1  A unit is free in the SuperSlab's word (dirty: has memory; fresh: reads as zero, has none), or it belongs to whoever
 *       cleared its bit there; that one alone writes its page map byte and, but for S4 of slab.h, its slab record.
 *   R2  The page map byte of a unit is HAK_CLASS_NONE while the unit is free.
 *   R3  Ranges are never given back.
 *
 * All of it is lock-free. System calls are made outside of any exclusive state: what two threads do at once is harmless
 * to do twice, and published by one of them.
 */
#ifndef HAK_REGION_REGION_H
#define HAK_REGION_REGION_H

#include "base/atomic.h"
#include "base/bits.h"
#include "slab/slab.h"

#define HAK_SUPER_SLAB_BYTES ((size_t)2 << 20)
enum {
    HAK_UNITS_PER_SUPER_SLAB = 32,
    HAK_FIRST_RANGE_UNITS = 1 << 20, /* 64 GiB */
    HAK_RANGE_LIMIT = 250,
    HAK_RUN_HINTS = 6, /* runs of 1, 2, 4 .. 32 units */
    HAK_DIRTY_HINT = HAK_RUN_HINTS,
    HAK_UNIT_HINTS,
};

struct hak_super_slab {
    HAK_ATOMIC(uint64_t) free_units; /* bits 0..31 dirty, bits 32..63 fresh */
    HAK_ATOMIC(uint32_t) uses;       /* times all of it was free, with memory, and was used again; page_policy.c */
};

struct hak_range {
    uintptr_t start;
    uint32_t number;
    uint32_t super_slab_limit;                            /* reserved */
    HAK_ATOMIC(uint32_t) super_slab_count;                /* committed, from the bottom */
    HAK_ATOMIC(uint32_t) metadata_super_slabs;            /* metadata is committed for so many */
    size_t metadata_bytes;                                /* committed at creation */
    HAK_ATOMIC(uint8_t) *page_map;                        /* [unit]: class (R1, R2) */
    struct hak_slab *slabs;                               /* [unit] */
    HAK_ATOMIC(uint64_t) (*bit_rows)[HAK_SLAB_MAX_WORDS]; /* [unit]: bits of slabs with many blocks */
    struct hak_super_slab *super_slabs;
    /* Hints, a bit per SuperSlab: it may have a run of 2^i free units, or (the last) dirty units. */
    HAK_ATOMIC(uint64_t) (*unit_hints)[HAK_UNIT_HINTS]; /* [SuperSlab / 64][hint] */
    HAK_ATOMIC(uint64_t) *huge;                         /* [SuperSlab / 64]: a bit per SuperSlab; page_policy.c */
    /* The pool's set of partial slabs; see pool/partial_set.h. */
    HAK_ATOMIC(uint32_t) (*partial_rows)[HAK_CLASS_LIMIT];  /* [SuperSlab][class]: a bit per unit */
    HAK_ATOMIC(uint64_t) (*partial_index)[HAK_CLASS_LIMIT]; /* [SuperSlab / 64][class]: hint, a bit per SuperSlab */
};

/* What the hit path knows. The page map covers the first range and is zero beyond what is used: an address in it that is
 * not ours has class 0. `hak_first_range_start` is 0 until there is a range: every address is foreign then. */
extern HAK_ATOMIC(uint8_t) hak_page_map[HAK_FIRST_RANGE_UNITS];
extern HAK_ATOMIC(uintptr_t) hak_first_range_start;

extern HAK_ATOMIC(struct hak_range *) hak_ranges[HAK_RANGE_LIMIT]; /* the first NULL ends it */

/* Reserves the first range. False when there is no address space. Called before anything else here, and again only in
 * a child whose parent forked during it. */
bool hak_region_initialize(void);

/* Where units come from. */
enum hak_unit_source {
    HAK_UNITS_FRESH,       /* without memory, in a SuperSlab that exists; bounded scan */
    HAK_UNITS_DIRTY,       /* given back by a slab or run; bounded scan */
    HAK_UNITS_FREE,        /* dirty or fresh, in a SuperSlab that exists; bounded scan */
    HAK_UNITS_NEW_SUPER,   /* a SuperSlab made now */
    HAK_UNITS_LAST_RESORT, /* as FREE, wherever there are some */
};

/* `count` adjacent units within one SuperSlab, starting at a multiple of `alignment` units; both 1..32. Returns the record of
 * the first, with its `range` set, or NULL when the source has none. With `clear` the memory is zero: where it is dirty it
 * is made so. */
struct hak_slab *hak_region_acquire(uint32_t count, uint32_t alignment, enum hak_unit_source source, bool clear);

/* Any number of adjacent units, across the borders of SuperSlabs, at an address that is a multiple of `alignment` units: the
 * lowest that are free, or, at the upper end of a range, with SuperSlabs made for it. Otherwise as hak_region_acquire. */
struct hak_slab *hak_region_acquire_span(uint32_t count, uint32_t alignment, bool clear);

/* Gives units back, dirty, that were acquired. Their page map bytes must be HAK_CLASS_NONE. */
void hak_region_release(struct hak_slab *first, uint32_t count);

/* Gives units back whose memory has moved elsewhere: they read as zero. */
void hak_region_release_fresh(struct hak_slab *first, uint32_t count);

/* Tries to take the `count` units that follow a run of `have` units: free ones, and SuperSlabs made for it. */
bool hak_region_extend(struct hak_slab *first, uint32_t have, uint32_t count);

/* Writes the class of adjacent units into the page map. */
void hak_region_mark(struct hak_slab *first, uint32_t count, uint32_t first_class, uint32_t rest_class);

HAK_INLINE struct hak_range *hak_region_range(uint32_t number) {
    /* Acquire pairs with the publication of the range. */
    return hak_atomic_load(&hak_ranges[number], acquire);
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

/* The range that covers an address, or NULL. */
struct hak_range *hak_region_range_of(uintptr_t address);

/* What an address is. */
struct hak_place {
    enum hak_place_kind {
        HAK_PLACE_FOREIGN, /* not ours, or ours and free */
        HAK_PLACE_SMALL,   /* in a slab */
        HAK_PLACE_RUN,     /* in a page run */
        HAK_PLACE_MAPPING, /* in a large object's own mapping */
    } kind;
    uint32_t size_class;   /* of a slab */
    struct hak_slab *slab; /* of a slab or a page run */
    uintptr_t start;       /* of the block that covers the address */
    size_t bytes;          /* usable, from there */
};

struct hak_place hak_region_find(uintptr_t address);

/* True when the address lies in a range or mapping. */
bool hak_region_covers(uintptr_t address);

/* True when it lies in the tables of a range, the directory among them. */
bool hak_region_is_metadata(uintptr_t address);

/* Units that are free and have memory. */
extern HAK_ATOMIC(uint64_t) hak_dirty_units;

/* Gives dirty units back to the kernel, from the top: at least `want` of them (a SuperSlab's are not divided), or all there
 * are. Without `all`, SuperSlabs whose huge pages are worth more are passed over. Returns the bytes. */
size_t hak_region_purge_units(uint64_t want, bool all);

/* Gives back `bytes` at `start`, pages whose blocks the caller has; false when the kernel refuses. */
bool hak_region_purge_pages(uintptr_t start, size_t bytes);

/* In a child after fork: free units are found and counted again, whatever other threads were about to do. */
void hak_region_recover_after_fork(void);

/* Sums for statistics, in bytes. */
struct hak_region_sums {
    uint64_t super_slabs, committed_bytes, metadata_bytes;
};
struct hak_region_sums hak_region_sums(void);

#endif
