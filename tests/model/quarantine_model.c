/* Quarantine (pool/quarantine.h): blocks whose contents are plain data wait in the heap of the thread that frees them,
 * which another one may drain. And the canary, by which one of two threads frees a block (pool/canary.h). */
#include "library.h"

#include <string.h>

#include "pool/canary.h"

static void *freed[2];

static void setup(void) {
    library_start(1, 1, 3, 2);
    fake_os.maps_left = 1;
    hak_quarantine_begin();
    model_stops_anywhere = true; /* between a look at who has the heap and a write to a place is nothing atomic */
    for (int i = 0; i < 2; i++) freed[i] = library_take(library_heaps[0], PAIR);
}

/* Without the heap, the block does not wait. */
static void free_both(void) {
    library_be(library_heaps[0]);
    for (int i = 0; i < 2; i++) library_free_to_wait(PAIR, freed[i]);
}

/* As a drainer does (pool/drain.h). */
static void end_waits(void) {
    struct hak_heap *heap = library_heaps[0];
    if (!hak_heap_try_drain(heap)) return;
    /* H5. Acquire pairs with the end of a slow path that the fence met. */
    if (hak_fence_threads() && hak_atomic_load(&heap->busy, acquire) == 0) hak_quarantine_empty(heap);
    hak_heap_end_drain(heap);
}

static void check_emptied(void) {
    hak_quarantine_empty(library_heaps[0]);
    model_assert(!hak_quarantine_has_any(library_heaps[0]), "none waits");
    model_assert(library_check() == 0, "all are free");
}
MODEL_HARNESS(quarantine_drained, setup, check_emptied, free_both, end_waits);

static _Alignas(HAK_ALIGNMENT) uint64_t live[2], found[2];
static bool is_taken[2];
static void setup_live(void) {
    library_start(1, 1, 3, 1);
    memset(live, 0, sizeof live);
    hak_canary_hand_out(live, sizeof live[0], sizeof live[0], HAK_FROM_MALLOC);
}
static void take_as(int number) {
    is_taken[number] = hak_canary_take(live, sizeof live[0], HAK_FROM_MALLOC, &found[number]);
}
static void take(void) { take_as(0); }
static void take_too(void) { take_as(1); }
static void check_taken(void) {
    model_assert(is_taken[0] != is_taken[1], "one of them has freed the block");
    model_assert(found[is_taken[0]] == 0, "the other one knows");
}
MODEL_HARNESS(quarantine_freed_twice, setup_live, check_taken, take, take_too);

static void refused(void) {
    library_start(1, 1, 3, 1);
    fake_os.maps_left = 0;
    hak_quarantine_begin();
}
static void goes_back(void) {
    struct hak_heap *heap = library_heaps[0];
    void *block = library_take(heap, PAIR);
    model_assert(hak_quarantine_exchange(heap, block, PAIR) == block && !hak_quarantine_has_any(heap), "no places");
    hak_quarantine_empty(heap);
    library_put(heap, PAIR, block);
}
MODEL_HARNESS(quarantine_refused, refused, NULL, goes_back);
