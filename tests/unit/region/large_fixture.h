/* For tests of large objects: they are told by where they begin. */
#ifndef LARGE_FIXTURE_H
#define LARGE_FIXTURE_H

#include "unit.h"

#include "region/large.h"

static inline char *alloc(size_t bytes) { return hak_large_alloc(bytes, HAK_ALIGNMENT, false); }

static inline struct hak_place place_of(const char *block) {
    struct hak_place place = hak_region_find((uintptr_t)block);
    assert_int_equal(place.start, (uintptr_t)block);
    return place;
}

static inline bool free_block(const char *block) {
    struct hak_place place = place_of(block);
    return hak_large_free(&place);
}

static inline char *resize(const char *block, size_t bytes) {
    struct hak_place place = place_of(block);
    return hak_large_resize(&place, bytes);
}

#endif
