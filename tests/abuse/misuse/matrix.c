/* The matrix of misuse: what becomes of each misuse, for blocks of several sizes, with other calls of malloc and free
 * before it. A cell is MISUSE[/SIZE[/DELAY]]; outcome.h says how it runs, live.h which outcomes it finds itself.
 *
 * Most misuses have a beginning, as the first free of a double free, and then the misuse itself. The delay is what the
 * program does in between:
 *
 *     0        nothing
 *     same-N   N calls for the same size: two blocks are freed, then one is allocated, and so on. same-1 of a double
 *              free is thus "free A, free B, free A"
 *     other-N  N calls for other sizes: half of them allocate, then the blocks are freed
 *     then-N   nothing; but after the misuse N blocks of the same size are freed, before all else
 *
 * After the misuse the program looks for what could be exploited. It allocates up to SEARCH_BLOCKS blocks of the same
 * size, then blocks of many sizes, and looks whether any overlaps another; then it frees all that it had before, and
 * allocates once more; then it frees all and ends. A thread that took part in the misuse allocates, too. As many
 * allocations as can be come first: an allocator has found a misuse in time only if it did so before one of them. */
#include "live.h"
#include "operators.h"

enum { SEARCH_BLOCKS = 2048, SEARCH_BYTES = 128 << 20, SEARCH_LEAST = 16, MANY_SIZES = 64 };
static const size_t DELAY_BYTES = (size_t)4 << 30;

/* ---- Sizes and delays -------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t bytes, alignment;
} sizes[] = {
    {"16", 16, 0},        {"64", 64, 0},      {"1024", 1024, 0},    {"16K", 16 << 10, 0},
    {"64K", 64 << 10, 0}, {"1M", 1 << 20, 0}, {"64M", 64 << 20, 0}, {"aligned", 4096, 4096},
};

static const struct {
    const char *name;
    unsigned same, other, then;
} delays[] = {
    {"0", 0, 0, 0},
    {"same-1", 1, 0, 0},
    {"same-8", 8, 0, 0},
    {"same-64", 64, 0, 0},
    {"same-1000", 1000, 0, 0},
    {"other-1", 0, 1, 0},
    {"other-8", 0, 8, 0},
    {"other-64", 0, 64, 0},
    {"other-1000", 0, 1000, 0},
    {"then-1000", 0, 0, 1000},
};

enum { SIZES = sizeof sizes / sizeof *sizes, DELAYS = sizeof delays / sizeof *delays };

static size_t size, alignment; /* of this cell; alignment is 0 for what malloc gives */

static void *allocate(void) {
    outcome_count();
    void *block = alignment ? aligned_alloc(alignment, size) : malloc(size);
    return live_add(block, size, alignment ? alignment : 16);
}

static void *allocate_cleared(void) {
    outcome_count();
    uint64_t *words = calloc(1, size);
    if (words && (words[0] | words[size / 16] | words[size / 8 - 1]) != 0) outcome_found("corrupted");
    return live_add(words, size, 16);
}

static void *allocate_of(size_t bytes) {
    outcome_count();
    return live_add(malloc(bytes), bytes, 16);
}

static void *others[2048]; /* of the same size, before and after the block that is misused */
static unsigned others_count, others_freed;

static void free_other(void) { live_free(others[others_freed++]); }

static void wait_same(unsigned calls) {
    for (unsigned i = 0; i < calls; i++) {
        if (i % 3 < 2) free_other();
        else allocate();
    }
}

static void wait_other(unsigned calls) {
    static const size_t other_sizes[] = {48, 240, 3000, 40000};
    static void *blocks[512];
    for (unsigned i = 0; i < (calls + 1) / 2; i++) blocks[i] = malloc(other_sizes[i % 4]);
    for (unsigned i = 0; i < calls / 2; i++) free(blocks[i]);
}

/* ---- Another thread ---------------------------------------------------------------------------------------------- */

static pthread_barrier_t agent_barrier;
static void (*agent_order)(void);
static bool agent_is_there;

static void *agent_live(void *nothing) {
    for (;;) {
        pthread_barrier_wait(&agent_barrier);
        agent_order();
        pthread_barrier_wait(&agent_barrier);
    }
    return nothing;
}

static void agent_begin(void) {
    pthread_t agent;
    pthread_barrier_init(&agent_barrier, NULL, 2);
    expect(pthread_create(&agent, NULL, agent_live, NULL) == 0, "no thread");
    agent_is_there = true;
}

static void agent_do(void (*order)(void)) {
    agent_order = order;
    pthread_barrier_wait(&agent_barrier);
    pthread_barrier_wait(&agent_barrier);
}

/* ---- Beginnings: each returns the address to misuse -------------------------------------------------------------- */

enum { CXX_ALIGNMENT = 64 };

static void *allocate_new(void) { return live_add(new_block(size), size, 16); }
static void *allocate_array(void) { return live_add(new_array(size), size, 16); }
static void *allocate_new_aligned(void) { return live_add(new_aligned(size, CXX_ALIGNMENT), size, CXX_ALIGNMENT); }
static void *allocate_array_aligned(void) {
    return live_add(new_array_aligned(size, CXX_ALIGNMENT), size, CXX_ALIGNMENT);
}

static char *block; /* that is misused */

static char *begin_nothing(void) { return block; }

static char *begin_free(void) {
    live_free(block);
    return block;
}

/* The block is live again, and somebody else's. */
static char *begin_reuse(void) {
    live_free(block);
    for (int i = 0; i < SEARCH_LEAST; i++) {
        if (allocate() == block) return block;
    }
    outcome_found("not-reused");
    return NULL;
}

/* Many blocks were freed, and one of them has been handed out again: one that is close to it. An allocator may have
 * taken that ahead, too. */
static char *begin_beside_reused(void) {
    enum { MANY = 64, BESIDE = 20 };
    while (others_count < MANY) others[others_count++] = allocate();
    while (others_freed < others_count) free_other();
    for (int i = 0; i < SEARCH_BLOCKS; i++) {
        void *reused = allocate();
        for (unsigned at = 0; at < MANY; at++)
            if (others[at] == reused) return others[at < MANY / 2 ? at + BESIDE : at - BESIDE];
    }
    outcome_found("not-reused");
    return NULL;
}

static char *begin_realloc(void) {
    for (size_t larger = 4 * size; larger <= 16 * size; larger *= 2) {
        live_remove(block);
        void *moved = live_add(realloc(block, larger), larger, 16);
        if (moved != block) return block;
    }
    outcome_found("not-moved");
    return NULL;
}

static char *begin_end(void) { return block + malloc_usable_size(block); }
static char *begin_asked_end(void) { return block + size; }
static char *begin_plus_1(void) { return block + 1; }
static char *begin_plus_8(void) { return block + 8; }
static char *begin_plus_16(void) { return block + 16; }
static char *begin_middle(void) { return block + size / 2; }
static char *begin_minus_16(void) { return block - 16; }

/* What would be a block, but lies above all that was handed out. */
static char *begin_fresh(void) {
    const struct live *last = &lives[live_count - 1];
    size_t distance = lives[live_count - 1].start - lives[live_count - 2].start, step = last->size + 16;
    return (char *)last->start + 2 * (distance < 2 * step ? distance : step & ~(size_t)15);
}

/* Zeros stand before the two. */
enum { BYTES_BEFORE = 64, BYTES = 4096 };

static char *begin_global(void) {
    static _Alignas(64) char bytes[BYTES_BEFORE + BYTES];
    return live_add_foreign(bytes + BYTES_BEFORE, BYTES);
}

static char *begin_wild(void) { return (char *)0x123456789000; }

static char *begin_mapping(void) {
    void *pages = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return live_add_foreign(pages, 1 << 20);
}

static char *stack_bytes; /* of cell_run's frame */
static char *begin_stack(void) { return live_add_foreign(stack_bytes + BYTES_BEFORE, BYTES); }

/* ---- Misuses ----------------------------------------------------------------------------------------------------- */

static char *target;

static void do_free(void) { free(target); }

static void do_realloc(void) {
    void *result = realloc(target, size);
    if (result) live_add(result, size, 16);
}

static void do_realloc_larger(void) {
    void *result = realloc(target, 2 * size);
    if (result) live_add(result, 2 * size, 16);
}

static void do_usable_size(void) { hidden((void *)(uintptr_t)malloc_usable_size(target)); }

static void do_write_first(void) { memset(target, 'A', 8); }
static void do_write_last(void) { memset(target + size - 8, 'A', 8); }
static void do_write_both(void) {
    do_write_first();
    do_write_last();
}
static void do_overflow_1(void) { memset(target, 'A', 1); }
static void do_overflow_16(void) { memset(target, 'A', 16); }

/* What a reader of a freed block finds: the old words, or zero, or something else. The first two may be new, and the
 * others old. */
static void do_read(void) {
    struct live was = {.start = (uintptr_t)target, .size = size};
    unsigned old = 0, zero = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t word = *live_word(&was, i);
        old += word == live_tag(&was);
        zero += word == 0;
    }
    outcome_found(old > 0 ? "old-data" : zero == 3 ? "zero" : "other-data");
}

static void do_delete(void) { delete_block(live_remove(target)); }
static void do_delete_array(void) { delete_array(live_remove(target)); }
static void do_free_new(void) { free(live_remove(target)); }
static void do_delete_smaller(void) { delete_sized(live_remove(target), size / 2); }
static void do_delete_larger(void) { delete_sized(live_remove(target), 2 * size); }
static void do_delete_aligned(void) { delete_aligned(live_remove(target), CXX_ALIGNMENT); }
static void do_delete_array_aligned(void) { delete_array_aligned(live_remove(target), CXX_ALIGNMENT); }
static void do_delete_alignment(void) { delete_sized_aligned(live_remove(target), size, 16 * CXX_ALIGNMENT); }

enum {
    SIZED = 1,
    DELAYED = 2, /* with what comes before the misuse */
    THEN = 4,    /* with what comes after it */
    BY_AGENT = 8,
    CLEARED = 16, /* the search is for blocks of calloc */
};

#define ADDRESS(kind, begin, flags)                                                                                    \
    {"free-" kind, begin, do_free, flags, allocate}, {"realloc-" kind, begin, do_realloc, flags, allocate}, {          \
        "usable-size-" kind, begin, do_usable_size, (flags) & ~THEN, allocate                                          \
    }

static const struct misuse {
    const char *name;
    char *(*begin)(void);
    void (*act)(void);
    unsigned flags;
    void *(*allocate)(void); /* the block to misuse */
} misuses[] = {
    {"double-free", begin_free, do_free, SIZED | DELAYED | THEN, allocate},
    {"double-free-by-thread", begin_free, do_free, SIZED | DELAYED | THEN | BY_AGENT, allocate},
    {"double-free-reused", begin_reuse, do_free, SIZED | THEN, allocate},
    {"realloc-freed", begin_free, do_realloc, SIZED | DELAYED | THEN, allocate},
    {"realloc-freed-larger", begin_free, do_realloc_larger, SIZED | DELAYED | THEN, allocate},
    {"usable-size-freed", begin_free, do_usable_size, SIZED | DELAYED, allocate},
    {"free-after-realloc", begin_realloc, do_free, SIZED | DELAYED | THEN, allocate},
    ADDRESS("plus-1", begin_plus_1, SIZED | THEN),
    ADDRESS("plus-8", begin_plus_8, SIZED | THEN),
    ADDRESS("plus-16", begin_plus_16, SIZED | THEN),
    ADDRESS("middle", begin_middle, SIZED | THEN),
    ADDRESS("minus-16", begin_minus_16, SIZED | THEN),
    ADDRESS("fresh", begin_fresh, SIZED | THEN),
    ADDRESS("beside-reused", begin_beside_reused, SIZED),
    ADDRESS("stack", begin_stack, 0),
    ADDRESS("global", begin_global, 0),
    ADDRESS("wild", begin_wild, 0),
    ADDRESS("mapping", begin_mapping, 0),
    {"write-first", begin_free, do_write_first, SIZED | DELAYED, allocate},
    {"write-last", begin_free, do_write_last, SIZED | DELAYED, allocate},
    {"write-cleared", begin_free, do_write_both, SIZED | DELAYED | CLEARED, allocate},
    {"write-reused", begin_reuse, do_write_first, SIZED, allocate},
    {"read", begin_free, do_read, SIZED | DELAYED, allocate},
    {"overflow-asked-1", begin_asked_end, do_overflow_1, SIZED | THEN, allocate},
    {"overflow-1", begin_end, do_overflow_1, SIZED | THEN, allocate},
    {"overflow-16", begin_end, do_overflow_16, SIZED | THEN, allocate},
    {"underflow-16", begin_minus_16, do_overflow_16, SIZED | THEN, allocate},
    {"malloc-delete", begin_nothing, do_delete, SIZED, allocate},
    {"malloc-delete-array", begin_nothing, do_delete_array, SIZED, allocate},
    {"new-free", begin_nothing, do_free_new, SIZED, allocate_new},
    {"new-delete-array", begin_nothing, do_delete_array, SIZED, allocate_new},
    {"array-delete", begin_nothing, do_delete, SIZED, allocate_array},
    {"delete-smaller", begin_nothing, do_delete_smaller, SIZED, allocate_new},
    {"delete-larger", begin_nothing, do_delete_larger, SIZED, allocate_new},
    {"new-aligned-delete", begin_nothing, do_delete, SIZED, allocate_new_aligned},
    {"new-delete-aligned", begin_nothing, do_delete_aligned, SIZED, allocate_new},
    {"delete-alignment", begin_nothing, do_delete_alignment, SIZED, allocate_new_aligned},
    {"aligned-new-delete-array", begin_nothing, do_delete_array_aligned, SIZED, allocate_new_aligned},
    {"aligned-array-delete", begin_nothing, do_delete_aligned, SIZED, allocate_array_aligned},
};

/* ---- After the misuse -------------------------------------------------------------------------------------------- */

static void search_same(unsigned most, void *(*take)(void)) {
    size_t count = SEARCH_BYTES / size;
    if (count > most) count = most;
    if (count < SEARCH_LEAST) count = SEARCH_LEAST;
    for (size_t i = 0; i < count; i++) take();
}

static void search_many(void) {
    for (size_t i = 1; i <= MANY_SIZES; i++) {
        allocate_of(16 * i);
        allocate_of(16 * i);
    }
}

static void search_by_agent(void) { search_same(SEARCH_BLOCKS / 16, allocate); }

static void free_before(void) {
    while (others_freed < others_count) free_other();
    if (live_after((uintptr_t)block) > 0 && lives[live_after((uintptr_t)block) - 1].start == (uintptr_t)block)
        live_free(block);
}

static void search(bool is_cleared) {
    search_same(SEARCH_BLOCKS, is_cleared ? allocate_cleared : allocate);
    if (agent_is_there) agent_do(search_by_agent);
    search_many();
    live_check();
    free_before();
    search_same(SEARCH_BLOCKS / 8, allocate);
    search_many();
    live_check();
    live_free_all();
}

/* ---- Cells ------------------------------------------------------------------------------------------------------- */

struct cell {
    const struct misuse *misuse;
    unsigned size, delay;
};

static bool is_cell(struct cell cell) {
    if (cell.size > 0 && !(cell.misuse->flags & SIZED)) return false;
    if (cell.delay > 0 && !(cell.misuse->flags & (delays[cell.delay].then ? THEN : DELAYED))) return false;
    return (delays[cell.delay].same + delays[cell.delay].then) * sizes[cell.size].bytes <= DELAY_BYTES;
}

enum { MISUSES = sizeof misuses / sizeof *misuses, CELLS_MOST = MISUSES * SIZES * DELAYS };

static struct cell cells[CELLS_MOST];
static struct outcome_table table;

static void cells_make(void) {
    for (size_t i = 0; i < CELLS_MOST; i++) {
        struct cell cell = {&misuses[i / DELAYS / SIZES], i / DELAYS % SIZES, i % DELAYS};
        if (is_cell(cell)) cells[table.count++] = cell;
    }
}

static void cell_name(size_t index, char name[OUTCOME_NAME_MOST]) {
    const struct cell *cell = &cells[index];
    unsigned flags = cell->misuse->flags;
    int length = snprintf(name, OUTCOME_NAME_MOST, "%s", cell->misuse->name);
    if (flags & SIZED) length += snprintf(name + length, OUTCOME_NAME_MOST - length, "/%s", sizes[cell->size].name);
    if (flags & (DELAYED | THEN)) snprintf(name + length, OUTCOME_NAME_MOST - length, "/%s", delays[cell->delay].name);
}

static void cell_run(size_t index) {
    _Alignas(64) char bytes[BYTES_BEFORE + BYTES] = "";
    const struct cell *cell = &cells[index];
    const struct misuse *misuse = cell->misuse;
    stack_bytes = hidden(bytes);
    size = sizes[cell->size].bytes;
    alignment = sizes[cell->size].alignment;
    if (misuse->flags & BY_AGENT) agent_begin();
    others_count = 2 * (delays[cell->delay].same / 3) + delays[cell->delay].then + 16;
    for (unsigned i = 0; i < others_count; i++) {
        if (i == others_count / 2) block = misuse->allocate();
        others[i] = allocate();
    }
    target = misuse->begin();
    wait_same(delays[cell->delay].same);
    wait_other(delays[cell->delay].other);
    outcome_before(target);
    if (misuse->flags & BY_AGENT) agent_do(misuse->act);
    else misuse->act();
    outcome_after();
    for (unsigned i = 0; i < delays[cell->delay].then; i++) free_other();
    search(misuse->flags & CLEARED);
}

int main(int argc, char **argv) {
    cells_make();
    table.name = cell_name;
    table.victim = cell_run;
    return outcome_main(argc, argv, &table);
}
