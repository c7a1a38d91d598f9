/* Blocks between guards (region/guard.h): the pool, and slots that go from thread to thread. Contents are plain data. */
#include "region/guard.h"
#include "library.h"

#include "region/region.h"

enum { SLOTS = 480, BYTES = 40 };

static const uintptr_t stack[] = {0x1000, 0x2000};
static void *made[3];

static void *alloc(void) {
    void *block = hak_guard_alloc(BYTES, stack, 2);
    if (block != NULL) library_touch_new(block);
    return block;
}

static enum hak_guard_outcome give(void *block) {
    ptrdiff_t offset;
    library_touch(block);
    return hak_guard_free(block, stack, 1, &offset);
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

static void setup_without(void) {
    library_reset();
    made[0] = made[1] = NULL;
}

static void setup_refused(void) {
    setup_without();
    fake_os.reserves_left = 0;
}

static void begin_one(void) {
    hak_guard_begin();
    made[0] = alloc();
}
static void begin_other(void) {
    hak_guard_begin();
    made[1] = alloc();
}
static void check_two(void) {
    model_assert(made[0] != NULL && made[1] != NULL && made[0] != made[1], "each has a block");
    model_assert(hak_guard_live_blocks == 2 && hak_guard_live_bytes == 2 * BYTES, "they are counted");
    library_touch(made[0]), library_touch(made[1]);
}
static void check_none(void) {
    model_assert(made[0] == NULL && made[1] == NULL, "there are no guards");
    model_assert(!hak_guard_covers((uintptr_t)made), "no address is theirs");
}

MODEL_HARNESS(guard_begun, setup_without, check_two, begin_one, begin_other);
MODEL_HARNESS(guard_refused, setup_refused, check_none, begin_one, begin_other);

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* Slot 0 has a block, and comes next. */
static void setup(void) {
    setup_without();
    hak_guard_begin();
    made[0] = alloc();
    made[1] = made[2] = NULL;
    library_skip_guard_turns(SLOTS - 1);
}

static void free_first(void) { give(made[0]); }

/* In slot 0, if it was freed by now; its first block is not there any more then. */
static void alloc_again(void) {
    library_skip_guard_turns(SLOTS);
    made[1] = alloc();
}
static void check_again(void) {
    uintptr_t start;
    size_t bytes;
    model_assert(made[1] != NULL, "there is room");
    library_touch(made[1]);
    model_assert(hak_guard_find((uintptr_t)made[1], &start, &bytes) && bytes == BYTES, "a live block is found");
    model_assert(made[1] == made[0] || !hak_guard_find((uintptr_t)made[0], &start, &bytes), "a freed one isn't");
    model_assert(hak_guard_live_blocks == 1, "one is live");
}

MODEL_HARNESS(guard_handed_on, setup, check_again, free_first, alloc_again);

/* The second one finds the slot as the first left it, whose page was refused. */
static void alloc_refused(void) {
    fake_os.refuses_commit = true;
    model_assert(alloc() == NULL, "it is refused");
    fake_os.refuses_commit = false;
    alloc_again();
}
MODEL_HARNESS(guard_commit_refused, setup, check_again, free_first, alloc_refused);

static enum hak_guard_outcome outcomes[2];
static void free_again(void) {
    ptrdiff_t offset;
    outcomes[0] = hak_guard_free(made[0], stack, 1, &offset);
}
static void free_too(void) {
    ptrdiff_t offset;
    outcomes[1] = hak_guard_free(made[0], stack, 2, &offset);
}
static void check_freed(void) {
    model_assert(outcomes[0] != outcomes[1], "one of two frees is the first");
    model_assert(hak_guard_live_blocks == 0 && hak_guard_live_bytes == 0, "none is live");
    model_assert(hak_guard_freed_bytes((uintptr_t)made[0]) == BYTES, "what was freed is known");
    model_assert(hak_guard_near((uintptr_t)made[0])->state == HAK_GUARD_FREED, "and how");
}
MODEL_HARNESS(guard_freed_twice, setup, check_freed, free_again, free_too);

/* ---- One thread's, for what the others don't run ----------------------------------------------------------------- */

static void spoil_and_ask(void) {
    ptrdiff_t offset;
    char *first = made[0], *second = alloc();
    first[BYTES] ^= 1;
    model_assert(hak_guard_free(first, stack, 1, &offset) == HAK_GUARD_SPOILED && offset == BYTES, "it is found");
    first[BYTES] ^= 1;
    model_assert(hak_region_find((uintptr_t)second).kind == HAK_PLACE_GUARDED, "it is a place");
    uintptr_t low = (uintptr_t)(first < second ? first : second) & -fake_os.page_bytes;
    model_assert(hak_guard_near(low + fake_os.page_bytes) != NULL, "in a guard there is a next one");
}
static void setup_beside(void) {
    setup_without();
    hak_guard_begin();
    made[0] = alloc();
}
MODEL_HARNESS(guard_spoiled, setup_beside, NULL, spoil_and_ask);

/* ---- Misses ------------------------------------------------------------------------------------------------------ */

static void setup_heap(void) {
    library_start(1, 1, 3, 1);
    fake_os.reserves_left = 1;
    hak_knobs.guard_share = 1;
    hak_profile_seed(1);
}
static void miss(void) {
    void *blocks[4];
    library_be(library_heaps[0]);
    for (int i = 0; i < 4; i++) blocks[i] = hak_front_alloc(PAIR * HAK_ALIGNMENT, NULL);
    for (int i = 0; i < 4; i++) hak_front_free(blocks[i], HAK_FROM_MALLOC);
}
static void check_missed(void) {
    model_assert(hak_guard_live_blocks == 0, "none is left");
    model_assert(library_heaps[0]->counters.guarded_allocs != 0, "there was one");
    model_assert(library_check() == 0, "nor of the others");
}
MODEL_HARNESS(guard_missed, setup_heap, check_missed, miss);
