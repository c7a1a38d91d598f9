/* Directory: from an address outside the first range to what lies there. A radix tree over granules of 2 MiB.
 *
 *   D1  An entry belongs to the range or mapping that covers its granule; both start at granules, so no two share one.
 *   D2  A mapping has one entry, at its first granule: interior addresses are found by looking back.
 *   D3  Who sets an entry has all the addresses that it covers, while it is set: it is set when they are had, and goes
 *       before they go back to the kernel, for another thread may have them at once.
 *   D4  Mappings are counted before they have an entry, and while they have one: in a child of fork, too, the counts
 *       are no less than what can be taken off them.
 *
 * Lock-free. Leaves are made on demand and stay. Written when address space is mapped, read when a pointer is not in
 * the first range: by frees of large objects, and by questions about foreign pointers.
 */
#ifndef HAK_REGION_DIRECTORY_H
#define HAK_REGION_DIRECTORY_H

#include "base/atomic.h"
#include "base/bits.h"
#include "slab/size_class.h"

#define HAK_GRANULE_SHIFT 21
#define HAK_GRANULE_BYTES ((size_t)1 << HAK_GRANULE_SHIFT)

/* An entry: 0 for nothing; the number of a range, tagged; or the bytes of a mapping, a multiple of the page size,
 * tagged. In the secure build a mapping's says of its object, too, where it is from (slab/origin.h), whether its last
 * page is forbidden (hak_page_policy_forbid), whether somebody is about to free or resize it (taken), and above the
 * bytes how many of them are not the program's, less HAK_CANARY_BYTES. */
enum { HAK_ENTRY_NONE = 0, HAK_ENTRY_RANGE = 1, HAK_ENTRY_MAPPING = 2, HAK_ENTRY_KIND_MASK = 3 };
enum { HAK_ENTRY_ORIGIN_SHIFT = 2, HAK_ENTRY_FORBIDDEN = 1 << 10, HAK_ENTRY_TAKEN = 1 << 11 };
enum { HAK_ENTRY_BYTES_SHIFT = 12, HAK_ENTRY_REST_SHIFT = 47 };

HAK_INLINE uint64_t hak_entry_for_range(uint32_t number) { return (uint64_t)number << 2 | HAK_ENTRY_RANGE; }
HAK_INLINE uint64_t hak_entry_for_mapping(size_t bytes) { return bytes | HAK_ENTRY_MAPPING; }
HAK_INLINE size_t hak_entry_mapping_bytes(uint64_t entry) {
    return entry & hak_low_bits(HAK_ENTRY_REST_SHIFT) & ~hak_low_bits(HAK_ENTRY_BYTES_SHIFT);
}

/* The secure build's. */
HAK_INLINE uint64_t hak_entry_for_object(size_t bytes, size_t usable, uint32_t from) {
    uint64_t rest = bytes - usable - HAK_CANARY_BYTES;
    return hak_entry_for_mapping(bytes) | (uint64_t)from << HAK_ENTRY_ORIGIN_SHIFT | rest << HAK_ENTRY_REST_SHIFT;
}
HAK_INLINE size_t hak_entry_usable_bytes(uint64_t entry) {
    return hak_entry_mapping_bytes(entry) - HAK_CANARY_BYTES - (entry >> HAK_ENTRY_REST_SHIFT);
}
HAK_INLINE uint32_t hak_entry_origin(uint64_t entry) { return entry >> HAK_ENTRY_ORIGIN_SHIFT & 0xFF; }

/* The entry of the granule of `address`; HAK_ENTRY_NONE for any address that has none, whatever its value. */
uint64_t hak_directory_get(uintptr_t address);

/* Sets the entry of a granule. False when there is no memory for a leaf, or the address is beyond 48 bits. */
bool hak_directory_set(uintptr_t address, uint64_t entry);

/* Makes room for the entry of a granule: hak_directory_set can't fail for it afterwards. False as there. */
bool hak_directory_prepare(uintptr_t address);

/* Replaces `expected`; false when the entry was something else: then somebody else was faster. */
bool hak_directory_replace(uintptr_t address, uint64_t expected, uint64_t entry);

/* For readers outside of the process: the root, with 2^ROOT_SHIFT pointers to leaves of 2^LEAF_SHIFT entries each, or
 * NULL. */
enum { HAK_DIRECTORY_LEAF_SHIFT = 15, HAK_DIRECTORY_ROOT_SHIFT = 48 - HAK_GRANULE_SHIFT - HAK_DIRECTORY_LEAF_SHIFT };
extern const void *const hak_directory_root;

/* All mappings that have an entry, and those that are about to have one (D4). */
extern HAK_ATOMIC(uint64_t) hak_mapping_count;
extern HAK_ATOMIC(uint64_t) hak_mapping_bytes;

/* The mapping that covers `address`: its start and bytes; false when there is none. */
bool hak_directory_find_mapping(uintptr_t address, uintptr_t *start, size_t *bytes);

/* True for an address in the tree itself. */
bool hak_directory_is_table(uintptr_t address);

/* Calls `visit` for every mapping. */
void hak_directory_for_each_mapping(void (*visit)(uintptr_t start, size_t bytes, void *context), void *context);

#endif
