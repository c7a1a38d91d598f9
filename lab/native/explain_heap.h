/* The heaps of hakmem in another process, and what each of their resident bytes is there for.
 *
 * hakmem's structures are read as its own headers declare them; that the process has the same is checked first
 * (observe/landmarks.h). They change while they are read: every pointer, index and count is checked before use. What can't be
 * assigned is assigned to nothing, and is missing from the sum. */
#ifndef HAK_LAB_EXPLAIN_HEAP_H
#define HAK_LAB_EXPLAIN_HEAP_H

#include "explain_process.h"
#include "observe/landmarks.h"

/* Resident bytes by cause. They exclude each other. */
struct causes {
    uint64_t live_small;    /* blocks of slabs that are in use; as large as the block is, not as was asked for */
    uint64_t live_runs;     /* page runs */
    uint64_t live_mappings; /* large objects' own mappings */
    uint64_t remainders;    /* behind the last block of a slab, and the last page of a run */
    uint64_t free_blocks;   /* in slabs */
    uint64_t cached;        /* blocks in threads' bins */
    uint64_t kept_units;    /* empty slabs that threads keep */
    uint64_t dirty_units;   /* free units that have memory */
    uint64_t lazily_freed;  /* pages the kernel may take when it needs some */
    uint64_t given_back;    /* free units that had memory when pages were looked at, and none when their record was */
    uint64_t in_hand;       /* units that are neither free nor used: a thread takes them, or gives them back */
    uint64_t huge_bloat;    /* pieces, of a page each, of huge pages, without a block in use or in a bin */
    uint64_t large_cache;   /* kept mappings */
    uint64_t metadata;
};

struct class_tally {
    uint64_t slabs, live_blocks, live, free, cached; /* bytes, but for the first two */
    uint64_t held;                                   /* bytes of the pages on which live ones lie */
};

struct heap_tally {
    uint64_t address;
    uint32_t number, thread_id, in_use;
    uint64_t cached_blocks, cached, kept_units; /* bytes, but for the first */
};

/* Address space that is hakmem's. */
struct owned {
    uint64_t start, end;
    enum { OWNED_HEAP, OWNED_METADATA, OWNED_BLOCK, OWNED_KEPT } kind;
};

/* A free block or unit that a thread has. */
struct kept {
    uint64_t address;
    uint32_t heap; /* index of its tally */
    bool is_unit;
};

/* A page of a slab of a sampled class on which blocks in use lie. */
struct held_page {
    uint64_t address, block_bytes, live_blocks;
};

struct heap_view {
    const struct process *process;
    char version[HAK_VERSION_BYTES];
    uint32_t copies; /* of hakmem in the process */
    bool has_lazy_pages;
    struct causes causes;
    uint64_t live_runs_count, live_mappings_count;
    uint64_t rounding_most; /* of the live bytes, what was not asked for is at most so much */
    struct class_tally classes[HAK_CLASS_LIMIT];
    struct heap_tally *heaps;
    size_t heap_count;
    struct owned *owned; /* in order of addresses, without overlap */
    size_t owned_count;
    struct kept *kept; /* in order of addresses */
    size_t kept_count;
    struct held_page *held;
    size_t held_count;
    uint64_t
        profile; /* the address of the tables of the heap profile (observe/profile_tables.h), of the last copy; or 0 */
};

/* Explains all heaps in the process. Fails when it has none, or those of another version. */
void heap_explain(struct heap_view *view, struct process *process, const char *version);

/* The build id of the file that is mapped there with its header; returns how many bytes, 0: it has none. It reads a page
 * of the file that may have no memory: to be asked when all is measured. */
size_t heap_build_id(const struct process *process, const struct mapping *mapping, unsigned char *id, size_t capacity);

#endif
