/* Address: what an address is to hakmem. For crash reports, and for whoever debugs.
 *
 * Read-only, without locks or memory, of any address, at any moment, also in a signal handler that has interrupted
 * hakmem itself: what is found was so at some moment while it looked. It is what free and hak_owns go by
 * (hak_region_find), and what they need not know: bits, bins, kept mappings, tables.
 */
#ifndef HAK_OBSERVE_ADDRESS_H
#define HAK_OBSERVE_ADDRESS_H

#include "base/format.h"
#include "pool/heap.h"

struct hak_address {
    enum hak_address_kind {
        HAK_ADDRESS_FOREIGN,  /* not ours */
        HAK_ADDRESS_LIVE,     /* in a block that the program has */
        HAK_ADDRESS_CACHED,   /* in a free block that is in a bin of heap number `heap` */
        HAK_ADDRESS_FREE,     /* in a free block of a slab */
        HAK_ADDRESS_BEHIND,   /* in a slab or page run, behind the last block, which `start` and `bytes` tell */
        HAK_ADDRESS_KEPT,     /* in a large object that was freed: its mapping is kept for the next, or it waits */
        HAK_ADDRESS_EMPTY,    /* in a unit that no slab or page run has; the block is one of a slab that had it */
        HAK_ADDRESS_METADATA, /* in hakmem's tables */
        HAK_ADDRESS_GUARDED,  /* in or beside a block between guards, or a guard beside none: `start` is 0 */
        HAK_ADDRESS_HEAP,     /* in the record of heap number `heap`, or the slots of its bins */
    } kind;
    bool is_freed;  /* between guards, and not used again yet */
    bool is_large;  /* the block is a page run or mapping */
    bool is_purged; /* free, and without memory as far as is known: it has gone back, or was never touched */
    uint32_t heap;
    uintptr_t start; /* of the block that covers it or ends before it; 0 for none */
    size_t bytes;    /* usable, of that block */
};

HAK_COLD struct hak_address hak_address_find(uintptr_t address);

/* Adds what was found of `address` in words: "16 bytes into a free block of 64 bytes at 0x7f3c5a400040". */
HAK_COLD void hak_address_describe(const struct hak_address *found, uintptr_t address, struct hak_text *out);

#endif
