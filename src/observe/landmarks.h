/* Landmarks: where a reader outside of the process finds the heap, and how he knows that he was compiled to read this
 * one.
 *
 * An ELF note, of the owner "hakmem" and the type HAK_LANDMARKS_NOTE, holds the distance from that number to the record
 * below. Notes are mapped with the file they are in, and outlive strip and static linking. In the process, another copy
 * of hakmem looks whether the note is there (os/libc.h); nothing else reads it.
 *
 * The readers are lab/native/explain.c and, for the wish, lab/hakmem/ctl.py;
 * docs/decisions/0030-explain-from-outside.md has the reasons.
 */
#ifndef HAK_OBSERVE_LANDMARKS_H
#define HAK_OBSERVE_LANDMARKS_H

#include "observe/profile_tables.h"
#include "pool/heap.h"

enum { HAK_LANDMARKS_NOTE = 0x68616b31, HAK_VERSION_BYTES = 24, HAK_LAYOUT_COUNT = 29 };

/* Sizes, offsets and constants that a reader relies on, as they were compiled. */
#define HAK_LAYOUT                                                                                                     \
    {                                                                                                                  \
        sizeof(struct hak_range), offsetof(struct hak_range, page_map), offsetof(struct hak_range, bit_rows),          \
            sizeof(struct hak_super_slab), sizeof(struct hak_slab), offsetof(struct hak_slab, claimed),                \
            offsetof(struct hak_slab, purged_pages), offsetof(struct hak_slab, run_pages),                             \
            offsetof(struct hak_slab, claimed_word), offsetof(struct hak_slab, tail_word),                             \
            offsetof(struct hak_slab, inline_bits), HAK_SLAB_MAX_WORDS, sizeof(struct hak_heap),                       \
            offsetof(struct hak_heap, number), offsetof(struct hak_heap, empty_slabs),                                 \
            offsetof(struct hak_heap, in_use), offsetof(struct hak_heap, thread_id), offsetof(struct hak_heap, next),  \
            HAK_HEAP_BYTES, HAK_CLASS_LIMIT, HAK_SMALL_CLASS_COUNT, HAK_RANGE_LIMIT, HAK_UNIT_SHIFT,                   \
            HAK_DIRECTORY_LEAF_SHIFT, HAK_KEPT_MAPPINGS, sizeof(struct hak_profile_tables),                            \
            offsetof(struct hak_profile_tables, samples), offsetof(struct hak_profile_tables, words),                  \
            offsetof(struct hak_profile_site, addresses)                                                               \
    }

struct hak_landmarks {
    /* These two are in all versions, and stay where they are. What follows is each version's own affair. */
    char version[HAK_VERSION_BYTES];
    const void *wish; /* hak_channel_wish */
    uint32_t layout[HAK_LAYOUT_COUNT];
    const void *ranges;        /* hak_ranges */
    const void *heaps;         /* hak_heaps */
    const void *directory;     /* hak_directory_root */
    const void *kept_mappings; /* hak_kept_mappings */
    const void *profile;       /* hak_profile_tables */
    uint64_t is_secure;        /* HAK_SECURE */
};

extern const struct hak_landmarks hak_landmarks;

#endif
