/* Mapping cache: mappings of freed large objects, kept for the next ones: no system call, no page faults. Bounded by
 * the knob mapping_cache_bytes, and by a quarter of the heap once that is more than 64 MiB; what comes in pushes as
 * much of older ones out as there is too much, which costs no more than to give it back itself; and what has not been
 * used for a while goes, by turns. If the kernel refuses to take a mapping back it stays here, beyond the bound, and is
 * used again, resized if need be.
 *
 * A fixed number of places, each one atomic word that holds a whole mapping: who exchanges it has the mapping.
 * Lock-free.
 */
#ifndef HAK_REGION_MAPPING_CACHE_H
#define HAK_REGION_MAPPING_CACHE_H

#include "base/bits.h"
#include "region/directory.h"

/* What may be kept, where a quarter of the heap is less. */
#define HAK_SMALL_CACHE_BYTES (64 * HAK_MIB)

/* Takes a mapping that has no directory entry any more. */
void hak_mapping_cache_put(uintptr_t start, size_t bytes);

/* A mapping was made, as none that is kept would do. If one of about its size went back for want of an allowance, that
 * was in vain. */
void hak_mapping_cache_tell_mapped(size_t bytes);

/* The same for one that nobody will ask for: it goes back to the kernel, and is kept only if the kernel refuses. False
 * then; and if there is no place for it, it has no memory any more, but its addresses are lost. */
bool hak_mapping_cache_give_back(uintptr_t start, size_t bytes);

/* A kept mapping of `bytes`, which is *have_bytes, or up to a quarter more, but not in the secure build; with a
 * directory entry; its contents are what its last user left. NULL when there is none. `bytes` is a multiple of the
 * page size. */
void *hak_mapping_cache_take(size_t bytes, size_t *have_bytes);

/* How much lies free: dirty units, and kept mappings. */
uint64_t hak_mapping_cache_free_bytes(void);

/* Ends a period: what has been kept through all of the last one is owed to the kernel. Returns its bytes. */
uint64_t hak_mapping_cache_age(void);

/* Places of mappings that are owed, a bit for each; a guess. */
extern HAK_ATOMIC(uint64_t) hak_mappings_owed;

/* All that is kept is owed. */
void hak_mapping_cache_owe_all(void);

/* Gives back what is owed, up to `most_bytes` of it: of a larger mapping the end. Returns the bytes. */
size_t hak_mapping_cache_pay(size_t most_bytes);

/* Gives all back to the kernel; returns the bytes. */
size_t hak_mapping_cache_purge(void);

/* In a child after fork: counts again, whatever other threads were about to add or subtract. */
void hak_mapping_cache_recover_after_fork(void);

/* The kept mapping that covers `address`: its start and bytes; false when there is none. It may go at any moment. */
bool hak_mapping_cache_find(uintptr_t address, uintptr_t *start, size_t *bytes);
/* A mapping in a word: whether it was there when the period began, its granule, its pages. 0 is none. */
enum { HAK_KEPT_MAPPINGS = 64, HAK_KEPT_PAGE_BITS = 36 };
#define HAK_KEPT_AGED ((uint64_t)1 << 63)

HAK_INLINE uintptr_t hak_kept_start(uint64_t word) {
    return (uintptr_t)((word & ~HAK_KEPT_AGED) >> HAK_KEPT_PAGE_BITS) << HAK_GRANULE_SHIFT;
}
HAK_INLINE size_t hak_kept_pages(uint64_t word) { return word & hak_low_bits(HAK_KEPT_PAGE_BITS); }

/* For readers outside of the process: the places, HAK_KEPT_MAPPINGS words. */
extern const void *const hak_kept_mappings;

/* Bytes kept now. */
size_t hak_mapping_cache_bytes(void);

#endif
