/* The tables of the heap profile, as they lie in memory: for observe/profile.c, and for a reader outside of the process
 * (observe/landmarks.h). observe/profile.h has the rules.
 */
#ifndef HAK_OBSERVE_PROFILE_TABLES_H
#define HAK_OBSERVE_PROFILE_TABLES_H

#include "observe/profile.h"
#include "slab/size_class.h"

enum {
    HAK_PROFILE_SITE_SLOTS = 1 << 15,
    HAK_PROFILE_SITE_WORDS = 1 << 21, /* 16 MiB: some 10,000 sites of a program in Python, whose stacks are long */
    HAK_PROFILE_SINGLE_SLOTS = 1 << 15,
    HAK_PROFILE_RUN_SLOTS = 1 << 17, /* behind these: a sample in a run stands for less */
    HAK_PROFILE_SAMPLE_SLOTS = HAK_PROFILE_SINGLE_SLOTS + HAK_PROFILE_RUN_SLOTS,
    HAK_PROFILE_WEIGHT_ONE = 1024, /* weights of samples are fractions of this */
    HAK_PROFILE_TEMPORARY = 8,     /* P7 */
    HAK_PROFILE_PLACES = 1 << 12,
};

/* FIGURE(name): what a site sums up. Weights are numbers of allocations, and bytes are estimates, of all samples or of
 * those freed again; freed_ms is the sum of weights times lifetimes, and those after it are the weights of
 * lifetimes; then come temporaries (P7), what was live at the peak (P5), and the variances of bytes, in squares of 64.
 */
#define HAK_PROFILE_FIGURES(FIGURE)                                                                                    \
    FIGURE(samples)                                                                                                    \
    FIGURE(freed_samples)                                                                                              \
    FIGURE(weight)                                                                                                     \
    FIGURE(freed_weight)                                                                                               \
    FIGURE(bytes)                                                                                                      \
    FIGURE(freed_bytes)                                                                                                \
    FIGURE(block_bytes)                                                                                                \
    FIGURE(freed_block_bytes)                                                                                          \
    FIGURE(least_size)                                                                                                 \
    FIGURE(largest_size)                                                                                               \
    FIGURE(freed_ms)                                                                                                   \
    FIGURE(freed_below_10ms)                                                                                           \
    FIGURE(freed_below_100ms)                                                                                          \
    FIGURE(freed_below_1s)                                                                                             \
    FIGURE(freed_below_10s)                                                                                            \
    FIGURE(freed_below_100s)                                                                                           \
    FIGURE(freed_later)                                                                                                \
    FIGURE(temporary_weight)                                                                                           \
    FIGURE(temporary_bytes)                                                                                            \
    FIGURE(peak_weight)                                                                                                \
    FIGURE(peak_bytes)                                                                                                 \
    FIGURE(variance)                                                                                                   \
    FIGURE(freed_variance)                                                                                             \
    FIGURE(peak_variance)

struct hak_profile_site {
#define FIGURE(name) HAK_ATOMIC(uint64_t) name; /* relaxed */
    HAK_PROFILE_FIGURES(FIGURE)
#undef FIGURE
    uint32_t next; /* const from here on (P4): the site in `words` that was new before this one; 0 for none */
    uint64_t hash;
    uint64_t depth;
    uintptr_t addresses[]; /* the innermost first; of a function its text, as of observe/python.h, which ends in 0 */
};

/* Sites, or functions of a Python program, found by what they are of: where each is in `words`; 0 for none (P4). */
struct hak_profile_index {
    HAK_ATOMIC(uint32_t) slots[HAK_PROFILE_SITE_SLOTS];
    HAK_ATOMIC(uint32_t) newest; /* all of them are in a list */
};

/* Of a size class; the first one of large objects: how many threads without a heap have got, the sums of its samples;
 * how many were live when the profile was last switched on, for which no sample stands; how many were live at the last
 * note (P5), the sums of samples that were live then, and the number of the others then. */
struct hak_profile_class {
    HAK_ATOMIC(uint64_t) metered;
    HAK_ATOMIC(uint64_t) weight, freed_weight, bytes, freed_bytes;
    HAK_ATOMIC(uint64_t) unsampled_blocks;
    HAK_ATOMIC(int64_t) peak_blocks;
    HAK_ATOMIC(uint64_t) peak_weight, peak_bytes, peak_unsampled_blocks;
};

/* Of the block that has the slot, or had it last: for who may not wait for the owner of a sample, nor be waited for.
 * The address is 0 while the rest is being written. */
struct hak_profile_last {
    HAK_ATOMIC(uintptr_t) block;
    HAK_ATOMIC(uint64_t) size;
    HAK_ATOMIC(uint32_t) site;
};

/* The word of a place in a function of Python (P8), and what tells the place: two threads that write the same entry may
 * leave the halves of two. */
struct hak_profile_place {
    HAK_ATOMIC(uint64_t) word, identity_and_word;
};

struct hak_profile_tables {
    uint64_t bytes; /* const: of all this, as it is mapped */
    struct hak_profile_index sites, functions;
    struct hak_profile_place places[HAK_PROFILE_PLACES];
    HAK_ATOMIC(uintptr_t) blocks[HAK_PROFILE_SAMPLE_SLOTS]; /* addresses of sampled blocks; 0 for none (P3) */
    struct hak_profile_entry
        samples[HAK_PROFILE_SAMPLE_SLOTS]; /* of who sets the address, and then of who removes it */
    struct hak_profile_last origins[HAK_PROFILE_SAMPLE_SLOTS];
    HAK_ATOMIC(uint32_t) words_used;
    HAK_ATOMIC(uint64_t) lost_samples;
    struct hak_profile_class classes[HAK_SMALL_CLASS_COUNT + 1];
    HAK_ATOMIC(uint64_t) large_bytes, large_memory;   /* asked for by large objects in all, and what they got */
    HAK_ATOMIC(int64_t) live_large, live_large_bytes; /* how many are live, and their memory; */
    HAK_ATOMIC(int64_t) peak_large_bytes;             /* at the last note */
    HAK_ATOMIC(int64_t) most_bytes;                   /* that any look has found live, */
    HAK_ATOMIC(int64_t) noted_bytes;                  /* and that the last note has (P5) */
    HAK_ATOMIC(uint64_t) peak_ms;                     /* when that was */
    HAK_ATOMIC(uint64_t) unsampled_large_bytes;       /* of large objects' memory, as `unsampled_blocks` */
    HAK_ATOMIC(uint32_t) noting; /* process that notes it; 0, or one that forked meanwhile: nobody does */
    uint64_t began_ms;
    uint64_t identity;                   /* another one in each process that has made tables; a child has it, too */
    HAK_ATOMIC(uint64_t) interval_bytes; /* as of hak_profile_begin; 0 while it is off */
    HAK_ATOMIC(uint64_t) last_interval_bytes; /* the same, also then */
    HAK_ATOMIC(uint64_t) off_ms, ended_ms;    /* for how long it was off in between; and off since when, or 0 */
    HAK_ATOMIC(bool) had_runs;                /* samples in runs may be in their slots */
    HAK_ATOMIC(uint64_t) runs_since_ms;       /* samples have come in runs since then (P6); 0: they don't */
    uint64_t words[HAK_PROFILE_SITE_WORDS];   /* sites, one after the other */
};

#endif
