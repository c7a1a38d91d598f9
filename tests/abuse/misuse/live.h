/* What a program believes to have: its live blocks, and memory of its own that no malloc may hand out. Whoever adds a
 * block finds out whether the allocator had the right to hand it out; live_check finds out whether all still have in
 * them what was written. Both end the process with the outcome (outcome.h):
 *
 *     twice      a block was handed out that begins where a live one does
 *     misplaced  a block was handed out that overlaps a live one otherwise, or is not aligned
 *     corrupted  a live block was changed, or a block of calloc's is not zero
 *     no-memory  malloc returned NULL after the misuse
 */
#ifndef HAK_TEST_LIVE_H
#define HAK_TEST_LIVE_H

#include <malloc.h>

#include "../outcome.h"

enum { LIVE_MOST = 16384 };

struct live {
    uintptr_t start;
    size_t size;
    bool is_foreign; /* none of malloc's */
};

static struct live lives[LIVE_MOST]; /* by address */
static size_t live_count;

/* The first one that begins after the address. */
static inline size_t live_after(uintptr_t address) {
    size_t low = 0, high = live_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (lives[middle].start <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Words of a block that hold its tag: the first, the middle, the last. */
static inline uint64_t *live_word(const struct live *live, int third) {
    uintptr_t offset = third == 0 ? 0 : third == 1 ? live->size / 2 & ~(uintptr_t)7 : (live->size - 8) & ~(uintptr_t)7;
    return hidden((void *)(live->start + offset));
}

/* Its lowest byte is none that a misuse writes. */
static inline uint64_t live_tag(const struct live *live) { return live->start * 0x9e3779b97f4a7c15u << 8 | 0x5a; }

static inline void live_check_one(const struct live *live) {
    for (int i = 0; i < 3; i++) {
        if (*live_word(live, i) != live_tag(live)) outcome_found("corrupted");
    }
}

static inline void live_check(void) {
    for (size_t i = 0; i < live_count; i++) live_check_one(&lives[i]);
}

static inline void live_insert(struct live live) {
    size_t place = live_after(live.start);
    expect(live_count < LIVE_MOST, "too many live blocks");
    memmove(&lives[place + 1], &lives[place], (live_count - place) * sizeof *lives);
    lives[place] = live;
    live_count++;
    for (int i = 0; i < 3; i++) *live_word(&live, i) = live_tag(&live);
}

/* The allocator has handed this out just now. */
static inline void *live_add(void *block, size_t size, size_t alignment) {
    struct live live = {.start = (uintptr_t)block, .size = size};
    if (!block && outcome_is_over) outcome_found("no-memory");
    expect(block, "no memory for %zu bytes", size);
    size_t place = live_after(live.start);
    if (place > 0 && lives[place - 1].start == live.start) outcome_found("twice");
    if (live.start % alignment != 0 || (place > 0 && lives[place - 1].start + lives[place - 1].size > live.start) ||
        (place < live_count && lives[place].start < live.start + live.size))
        outcome_found("misplaced");
    live_insert(live);
    return block;
}

/* Memory of the program's own. */
static inline void *live_add_foreign(void *start, size_t size) {
    live_insert((struct live){.start = (uintptr_t)start, .size = size, .is_foreign = true});
    return start;
}

/* The program gives it up, and has changed nothing in it. */
static inline void *live_remove(void *block) {
    size_t place = live_after((uintptr_t)block) - 1;
    expect(place < live_count && lives[place].start == (uintptr_t)block, "%p is not live", block);
    live_count--;
    memmove(&lives[place], &lives[place + 1], (live_count - place) * sizeof *lives);
    return block;
}

static inline void live_free(void *block) {
    live_check_one(&lives[live_after((uintptr_t)block) - 1]);
    outcome_count();
    free(live_remove(block));
}

/* The lowest blocks first. */
static inline void live_free_all(void) {
    for (size_t i = 0; i < live_count;) {
        if (lives[i].is_foreign) i++;
        else live_free((void *)lives[i].start);
    }
}

#endif
