#include "region/directory.h"

#include "os/os.h"

enum { LEAF_SHIFT = HAK_DIRECTORY_LEAF_SHIFT, ROOT_SHIFT = HAK_DIRECTORY_ROOT_SHIFT };

typedef HAK_ATOMIC(uint64_t) directory_entry;
#define LEAF_COUNT ((size_t)1 << LEAF_SHIFT)
#define LEAF_SPAN ((uintptr_t)1 << (HAK_GRANULE_SHIFT + LEAF_SHIFT)) /* 64 GiB of addresses */

static HAK_ATOMIC(directory_entry *) root[1u << ROOT_SHIFT];
const void *const hak_directory_root = root;
static HAK_ATOMIC(size_t) largest_mapping; /* ever made, in bytes: how far to look back */

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_mapping_count;
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_mapping_bytes;

static bool is_mapping(uint64_t value) { return (value & HAK_ENTRY_KIND_MASK) == HAK_ENTRY_MAPPING; }

/* D4 */
static void count_entry(uint64_t value) {
    if (!is_mapping(value)) return;
    hak_atomic_fetch_add(&hak_mapping_count, 1, relaxed);
    hak_atomic_fetch_add(&hak_mapping_bytes, hak_entry_mapping_bytes(value), relaxed);
    hak_signal_fence(); /* a child of fork finds no entry that is not counted */
}

static void discount_entry(uint64_t value) {
    if (!is_mapping(value)) return;
    hak_signal_fence();
    hak_atomic_fetch_sub(&hak_mapping_count, 1, relaxed);
    hak_atomic_fetch_sub(&hak_mapping_bytes, hak_entry_mapping_bytes(value), relaxed);
}

static directory_entry *leaf_of(uintptr_t address) {
    size_t index = address / LEAF_SPAN;
    if (index >= (size_t)1 << ROOT_SHIFT) return NULL;
    /* Acquire pairs with the publication in make_leaf: the leaf is zero. */
    return hak_atomic_load(&root[index], acquire);
}

static directory_entry *make_leaf(uintptr_t address) {
    directory_entry *leaf = leaf_of(address);
    if (leaf != NULL || address / LEAF_SPAN >= (size_t)1 << ROOT_SHIFT) return leaf;
    size_t bytes = hak_align_up(LEAF_COUNT * sizeof(directory_entry), hak_os_page_bytes());
    directory_entry *made = hak_os_map(bytes, hak_os_page_bytes());
    if (made == NULL) return NULL;
    /* Release pairs with leaf_of. Acquire: if another thread was faster, its leaf is used. */
    if (hak_atomic_cas(&root[address / LEAF_SPAN], &leaf, made, release, acquire)) return made;
    hak_os_unmap(made, bytes);
    return leaf;
}

static size_t slot_of(uintptr_t address) { return (address >> HAK_GRANULE_SHIFT) & (LEAF_COUNT - 1); }

uint64_t hak_directory_get(uintptr_t address) {
    directory_entry *leaf = leaf_of(address);
    /* Relaxed: an entry is a number. The range it names is acquired by hak_region_range, and whoever has a pointer into
     * a mapping got it after the entry was set. */
    return leaf == NULL ? HAK_ENTRY_NONE : hak_atomic_load(&leaf[slot_of(address)], relaxed);
}

bool hak_directory_set(uintptr_t address, uint64_t value) {
    directory_entry *leaf = make_leaf(address);
    if (leaf == NULL) return false;
    if (is_mapping(value)) {
        size_t bytes = hak_entry_mapping_bytes(value), largest = hak_atomic_load(&largest_mapping, relaxed);
        while (bytes > largest && !hak_atomic_cas(&largest_mapping, &largest, bytes, relaxed, relaxed)) {
        }
    }
    count_entry(value);
    discount_entry(hak_atomic_exchange(&leaf[slot_of(address)], value, relaxed));
    return true;
}

bool hak_directory_prepare(uintptr_t address) { return make_leaf(address) != NULL; }

bool hak_directory_replace(uintptr_t address, uint64_t expected, uint64_t value) {
    directory_entry *leaf = leaf_of(address);
    if (leaf == NULL) return false;
    uint64_t found = expected;
    count_entry(value);
    /* Relaxed: one wins. The mapping itself is handed on by whoever keeps it, or by the kernel. */
    bool replaced = hak_atomic_cas(&leaf[slot_of(address)], &found, value, relaxed, relaxed);
    discount_entry(replaced ? expected : value);
    return replaced;
}

bool hak_directory_find_mapping(uintptr_t address, uintptr_t *start, size_t *bytes) {
    size_t reach = hak_atomic_load(&largest_mapping, relaxed);
    uintptr_t at = hak_align_down(address, HAK_GRANULE_BYTES);
    while (address - at < reach) {
        if (leaf_of(at) == NULL) { /* nothing in all of this leaf: on to the last granule of the one before */
            uintptr_t leaf_start = hak_align_down(at, LEAF_SPAN);
            if (leaf_start == 0) return false;
            at = leaf_start - HAK_GRANULE_BYTES;
            continue;
        }
        uint64_t found = hak_directory_get(at);
        if (is_mapping(found)) {
            *start = at;
            *bytes = hak_entry_mapping_bytes(found);
            return address - at < *bytes;
        }
        if (found != HAK_ENTRY_NONE || at == 0) return false;
        at -= HAK_GRANULE_BYTES;
    }
    return false;
}

void hak_directory_for_each_mapping(void (*visit)(uintptr_t start, size_t bytes, void *context), void *context) {
    for (uintptr_t i = 0; i < (uintptr_t)1 << ROOT_SHIFT; i++) {
        if (leaf_of(i * LEAF_SPAN) == NULL) continue;
        for (uintptr_t at = i * LEAF_SPAN; at - i * LEAF_SPAN < LEAF_SPAN; at += HAK_GRANULE_BYTES) {
            uint64_t found = hak_directory_get(at);
            if (is_mapping(found)) visit(at, hak_entry_mapping_bytes(found), context);
        }
    }
}

bool hak_directory_is_table(uintptr_t address) {
    for (size_t i = 0; i < (size_t)1 << ROOT_SHIFT; i++) {
        uintptr_t leaf = (uintptr_t)leaf_of(i * LEAF_SPAN);
        if (leaf != 0 && address - leaf < LEAF_COUNT * sizeof(directory_entry)) return true;
    }
    return address - (uintptr_t)root < sizeof root;
}
