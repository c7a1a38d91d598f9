#include "front/routes.h"

enum { LAST_INDEX = HAK_BLOCK_MAX / HAK_ALIGNMENT };

HAK_ATOMIC(uint16_t) hak_bin_offsets[LAST_INDEX + 1];

_Static_assert(HAK_CLASS_LIMIT <= UINT16_MAX / HAK_BIN_STRIDE, "bin offsets fit their table");

#define METERED ((uint32_t)1 << 31) /* below it, a bit for each group that is open */

static HAK_ATOMIC(uint32_t) facts;
HAK_ATOMIC(uint32_t) hak_routes_turns;

static uint32_t bit_of_group(uint32_t size_class) {
    return (uint32_t)1 << ((size_class - HAK_SINGLE_CLASS_COUNT - 1) / HAK_GROUP_CLASSES);
}

static uint32_t bin_of_class(uint32_t size_class, uint32_t known) {
    bool is_closed = size_class > HAK_SINGLE_CLASS_COUNT && (known & bit_of_group(size_class)) == 0;
    uint32_t serves = is_closed ? hak_widest_of_group(size_class) : size_class;
    return (known & METERED) != 0 ? hak_sampled_class(serves) : serves;
}

/* Writes the routes of some sizes, by their indices in the table. */
static void fill(size_t first, size_t last) {
    uint32_t known, again;
    do {
        known = hak_atomic_load(&facts, relaxed);
        for (size_t i = first; i <= last; i++) {
            uint32_t bin = bin_of_class(hak_class_of_block(i * HAK_ALIGNMENT), known);
            hak_atomic_store(&hak_bin_offsets[i], (uint16_t)(bin * HAK_BIN_STRIDE), relaxed);
        }
        /* Pairs with the fence in change: either we see that a fact has changed, or what is written there is written
         * later. */
        hak_atomic_fence(seq_cst);
        again = hak_atomic_load(&facts, relaxed);
    } while (known != again);
}

/* Sets or clears bits of the facts, and writes the routes that depend on them. */
static void change(uint32_t bits, bool is_set, size_t first, size_t last) {
    uint32_t before =
        is_set ? hak_atomic_fetch_or(&facts, bits, relaxed) : hak_atomic_fetch_and(&facts, ~bits, relaxed);
    if (is_set == ((before & bits) != 0)) return;
    if (bits == METERED) hak_atomic_fetch_add(&hak_routes_turns, 1, relaxed);
    hak_atomic_fence(seq_cst); /* pairs with the fence in fill */
    fill(first, last);
}

void hak_routes_initialize(void) { fill(0, LAST_INDEX); }

bool hak_routes_is_closed_group(uint32_t size_class) {
    return size_class > HAK_SINGLE_CLASS_COUNT && hak_widest_of_group(size_class) == size_class &&
           (hak_atomic_load(&facts, relaxed) & bit_of_group(size_class)) == 0;
}

void hak_routes_open_group(uint32_t size_class) {
    uint32_t widest = hak_widest_of_group(size_class);
    change(bit_of_group(size_class), true, hak_size_classes[widest - HAK_GROUP_CLASSES].block_bytes / HAK_ALIGNMENT + 1,
           hak_size_classes[widest].block_bytes / HAK_ALIGNMENT);
}

void hak_routes_meter(bool is_metered) { change(METERED, is_metered, 0, LAST_INDEX); }
