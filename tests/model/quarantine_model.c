/* Quarantine (pool/quarantine.h): blocks that one thread frees and another takes out, whose contents are plain data. */
#include "library.h"

static void *freed[2], *out[2], *earlier; /* a group has two places, one of which that one has */

static void *put_in(void *block, uint64_t turn) {
    const void *twice;
    void *other = hak_quarantine_exchange(block, PAIR, turn, &twice);
    model_assert(twice == NULL, "none is freed twice");
    return other;
}

static void setup(void) {
    library_start(1, 1, 3, 2);
    fake_os.maps_left = 1;
    hak_quarantine_begin();
    for (int i = 0; i < 2; i++) freed[i] = library_take(library_heaps[i], PAIR);
    earlier = library_take(library_heaps[0], PAIR);
    put_in(earlier, 1);
    out[0] = out[1] = NULL;
}

/* What comes out is the caller's. */
static void exchange(int number) {
    library_touch(freed[number]);
    out[number] = put_in(freed[number], 1);
    if (out[number] == NULL) return;
    library_touch(out[number]);
    library_put(library_heaps[number], PAIR, out[number]);
}
static void free_one(void) { exchange(0); }
static void free_other(void) { exchange(1); }

static void check(void) {
    model_assert((out[0] == NULL) != (out[1] == NULL), "one finds an empty place");
    model_assert(hak_quarantine_count(PAIR) == 2, "two wait");
    model_assert(hak_quarantine_has(freed[0], PAIR) + hak_quarantine_has(freed[1], PAIR) +
                         hak_quarantine_has(earlier, PAIR) ==
                     2,
                 "and are known");
    model_assert(library_check() == 2, "the other one is free");
    hak_quarantine_empty(library_heaps[0]);
    model_assert(library_check() == 0, "and now all");
}
MODEL_HARNESS(quarantine_two, setup, check, free_one, free_other);

static void check_emptied(void) {
    hak_quarantine_empty(NULL);
    model_assert(library_check() == 1, "the other block is live");
}
/* Who empties it hands the block on. */
static void take_again(void) {
    hak_quarantine_empty(NULL);
    void *blocks[4];
    for (int i = 0; i < 4; i++) blocks[i] = library_take(library_heaps[0], PAIR);
    for (int i = 0; i < 4; i++)
        if (blocks[i] != NULL) library_put(library_heaps[0], PAIR, blocks[i]);
}
MODEL_HARNESS(quarantine_emptied, setup, check_emptied, free_one, take_again);

/* One comes out by chance, of whichever place. */
static void release(void) {
    const void *twice;
    void *block = hak_quarantine_release(PAIR, 1, &twice);
    model_assert(twice == NULL, "none is freed twice");
    if (block == NULL) return;
    library_touch(block);
    library_put(library_heaps[1], PAIR, block);
}
MODEL_HARNESS(quarantine_released, setup, check_emptied, free_one, release);

static bool found[2];
static void setup_twice(void) {
    setup();
    found[0] = found[1] = false;
}
static void free_it_as(int number) {
    const void *mine;
    hak_quarantine_exchange(freed[0], PAIR, (uint64_t)number, &mine);
    found[number] = mine == freed[0];
}
static void free_it(void) { free_it_as(0); }
static void free_it_again(void) { free_it_as(1); }
static void check_found(void) {
    const void *mine = NULL;
    if (!found[0] && !found[1]) hak_quarantine_exchange(freed[1], PAIR, 1, &mine);
    model_assert(found[0] || found[1] || mine == freed[0], "it is found, at the latest when one comes out");
}
static void check_found_by_chance(void) {
    const void *mine = NULL;
    if (!found[0] && !found[1]) hak_quarantine_release(PAIR, 1, &mine);
    model_assert(found[0] || found[1] || mine == freed[0], "it is found, whichever comes out");
}
MODEL_HARNESS(quarantine_twice, setup_twice, check_found, free_it, free_it_again);
MODEL_HARNESS(quarantine_twice_by_chance, setup_twice, check_found_by_chance, free_it, free_it_again);

static void refused(void) {
    library_start(1, 1, 3, 1);
    fake_os.maps_left = 0;
    hak_quarantine_begin();
}
static void goes_back(void) {
    void *block = library_take(library_heaps[0], PAIR);
    model_assert(put_in(block, 1) == block && !hak_quarantine_has(block, PAIR), "there is none");
    hak_quarantine_empty(NULL);
    library_put(library_heaps[0], PAIR, block);
}
MODEL_HARNESS(quarantine_refused, refused, NULL, goes_back);
