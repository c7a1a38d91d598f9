/* Heap profile: how many bytes each call site has live, and has asked for in all, estimated from samples.
 *
 *   P1  An allocation of b bytes is sampled with the probability 1 - exp(-b / interval), whatever was sampled before:
 *       as if samples lay along all bytes ever handed out at random, `interval` apart on average (a Poisson process).
 *       The distance to the next one has no memory: it may be drawn anew at any moment, from another interval.
 *   P2  A sample counts for 1 / probability allocations, so that sums of samples are unbiased. A small block is taken
 *       for as large as all of its class. How many of a class there were is counted apart (front/meter.h).
 *   P3  While a sampled block is live it has an entry, found by its address; who frees a block that may have one
 *       removes the entry first. A small block that is sampled is of a sampled class, and so no free of it is a hit.
 *   P4  A site, all samples of one stack, is written before index and list say so and never changes then, but for its
 *       figures. It is not removed: live = recorded - freed, and both can be read at any time.
 *   P5  What each class and each site has live is noted again whenever all of what is live, which is counted, is a 64th
 *       more than at the last note, and when the profile is written. So the moment does not depend on the samples, and
 *       misses the peak by less than that.
 *   P6  In runs (hak_profile_in_runs), each thread's allocations of a class lie along a line, by their bytes, which is
 *       divided into slots of a run, and strata of as many slots as an interval has. One slot of each stratum is drawn,
 *       and what begins in it is sampled, and counts for as many as the stratum has slots. So sampled slabs are filled
 *       as others are, with what a thread asks for one after the other: a model of the heap on a smaller scale, in
 *       which it is known of each block whose it is. Which blocks keep a page is read from that.
 *   P7  A temporary is freed by the thread that allocated it, before this thread has allocated HAK_PROFILE_TEMPORARY
 *       more blocks. A moment is a thread's count of these, or unknown.
 *   P8  A place in a Python function is a word: from the top, a bit that is set; a bit for the innermost function of
 *       those that one call of the interpreter's loop runs; where the function is in the tables, in 38 bits, 0 if they
 *       have no room for it; and the line, in 24. Its name is taken at the sample: the interpreter frees functions.
 *
 * All of it lies in tables of a fixed size, which are mapped when the profile is first switched on; what they have no
 * room for is counted as lost. Lock-free; allocates nothing; a child after fork goes on with what its parent had.
 */
#ifndef HAK_OBSERVE_PROFILE_H
#define HAK_OBSERVE_PROFILE_H

#include "base/atomic.h"
#include "base/platform.h"
#include "observe/stack.h"

/* The tables: NULL before their first use. They begin with their size in bytes, a uint64_t. */
extern HAK_ATOMIC(struct hak_profile_tables *) hak_profile_tables;

extern HAK_ATOMIC(uint64_t) hak_profile_interval; /* mean bytes from sample to sample; 0 while the profile is off */

HAK_INLINE bool hak_profile_is_on(void) { return HAK_UNLIKELY(hak_atomic_load(&hak_profile_interval, relaxed) != 0); }

/* True since it was first switched on: there may be samples. */
HAK_INLINE bool hak_profile_is_begun(void) {
    return HAK_UNLIKELY(hak_atomic_load(&hak_profile_tables, relaxed) != NULL);
}

/* Switches sampling on, or to another interval (1 at least): what was recorded stays. False when there is no memory for
 * the tables. Where allocations are to be sampled is front's business. */
HAK_COLD bool hak_profile_begin(uint64_t interval_bytes);

/* A thread without a heap has got a block of a small class, or with 0, a large object. */
void hak_profile_count(uint32_t size_class);

/* A large object of so many bytes was handed out, or one has become so large, and has so many in memory. */
void hak_profile_count_large(uint64_t size, uint64_t bytes);

/* There are so many more large objects, which have so many bytes in memory more; below 0, less. */
void hak_profile_change_large(int64_t count, int64_t bytes);

/* Looks how much is live, which may be the peak (P5): bytes of now, and the most that there ever were. */
struct hak_profile_heights {
    uint64_t live_bytes, peak_bytes;
};
struct hak_profile_heights hak_profile_look(void);

/* Switches sampling off. Sampled blocks that are live stay known. */
void hak_profile_end(void);

/* Begins the sequence of random numbers. The second does so by the clock, unless it has begun: for who draws first. The
 * third gives a forked child another one than its parent's. */
void hak_profile_seed(uint64_t seed);
void hak_profile_seed_once(void);
void hak_profile_seed_child(void);
uint64_t hak_profile_random(void);

/* How many bytes from here to the next sample, 1 at least, drawn at random (P1): the allocation that reaches it is
 * sampled. */
int64_t hak_profile_draw(uint64_t interval_bytes);

/* What a sampled allocation of so many bytes counts for, in 1024ths of an allocation (P2). It was drawn from this
 * interval. */
uint64_t hak_profile_weight(uint64_t bytes, uint64_t interval_bytes);

/* Samples come in runs (P6), not single (P1). Set before the profile is switched on. */
extern HAK_ATOMIC(bool) hak_profile_in_runs;

/* The runs of a class of blocks. */
struct hak_profile_runs {
    bool are_on;
    uint64_t interval_bytes; /* of the profile: 0 while it is off */
    uint64_t run_bytes;      /* a block at least */
    uint64_t slot_count;     /* of a stratum */
};
struct hak_profile_runs hak_profile_runs_of(uint64_t block_bytes);

/* How many bytes from here to the first run, 0 and up. */
int64_t hak_profile_begin_runs(const struct hak_profile_runs *runs, uint16_t *slot);

/* The same from where a class has come to: `to_run` is up to 0 in a run, and as far below as it lasts. */
int64_t hak_profile_next_run(const struct hak_profile_runs *runs, int64_t to_run, uint16_t *slot);

/* What a sample of a run counts for, as with hak_profile_weight. */
uint64_t hak_profile_run_weight(const struct hak_profile_runs *runs);

/* Stacks of the profile: up to HAK_STACK_MOST addresses, as of hak_stack_walk; and behind them, where the thread runs
 * Python, up to HAK_PROFILE_PYTHON_MOST words with this bit, each a place in a function (P8). Returns how many there
 * are in all. */
enum { HAK_PROFILE_PYTHON_MOST = 96, HAK_PROFILE_STACK_MOST = HAK_STACK_MOST + HAK_PROFILE_PYTHON_MOST };
#define HAK_PROFILE_IN_PYTHON ((uintptr_t)1 << 63)
uint32_t hak_profile_walk(const void *frame, uintptr_t *addresses);

HAK_INLINE bool hak_profile_is_python(uintptr_t word) { return (word & HAK_PROFILE_IN_PYTHON) != 0; }

/* What such a word stands for: the function's text, as of observe/python.h, and the line. */
const char *hak_profile_python_function(uintptr_t word);
uint32_t hak_profile_python_line(uintptr_t word);

/* Records a sampled allocation: of `size` bytes asked for, in a block of a small class, or with 0, in a large object;
 * by a stack as from hak_profile_walk. `born` is the caller's moment (P7): two of one thread, in one time of metering,
 * are as far apart as blocks that it has allocated between them, any others at least HAK_PROFILE_TEMPORARY. 0: unknown.
 */
void hak_profile_record(const void *block, size_t size, uint32_t size_class, uint64_t weight, uint64_t born,
                        const uintptr_t *addresses, uint32_t depth);

/* The block is about to be freed, or moved: removes its entry if it has one (P3), and returns it. */
struct hak_profile_entry {
    uint32_t site; /* 0: there was none */
    uint32_t size_class;
    uint64_t size, block_bytes, weight, born_ms, freed_ms;
    uint64_t born; /* moment; 0: unknown */
};
struct hak_profile_entry hak_profile_forget(const void *block);

/* What was forgotten is freed at this moment: counts it if it is a temporary (P7). 0: unknown. */
void hak_profile_judge(const struct hak_profile_entry *entry, uint64_t freed);

/* It was not, and nobody else can have had it meanwhile: it has its entry again. */
HAK_COLD void hak_profile_take_back(const void *block, const struct hak_profile_entry *entry);

/* The last sampled allocation at the start of which `block` was, as far as the tables have it still. May be called at
 * any moment, in a signal handler that has interrupted hakmem itself, too. */
struct hak_profile_origin {
    uint64_t size; /* asked for */
    bool is_freed; /* since, or moved; another allocation that was not sampled may have the block now */
    uint64_t depth;
    const uintptr_t *addresses; /* its stack, as of hak_profile_walk; stays as it is */
};
HAK_COLD bool hak_profile_find(const void *block, struct hak_profile_origin *origin);

/* Writes all there is, as text, with the map of the process's memory. Returns 0, ENODATA when there never was a
 * profile, or EIO when not all could be written. */
HAK_COLD int hak_profile_write(int descriptor);

/* The same to any place, in pieces of text, and without the map, which would follow. With a line
 * `build_id START HEX` for each file that the map has from START on with its header. */
HAK_COLD bool hak_profile_write_sites(void (*write)(const char *text, void *context), void *context);

/* True for addresses in them. */
bool hak_profile_is_metadata(uintptr_t address);

#endif
