/* A heap that grows gives back what is free: one thread at a time has the hand, while others take and free. A page is half a
 * unit: in a slab of pairs, one block.
 */
#include "library.h"

#include "pool/exchange.h"

static void *blocks[2];
static uint32_t taken, left;

/* A slab of pairs in the pool, of which the program has a block, and one more unit. */
static void setup(void) {
    library_start(1, 1, 2, 2);
    fake_os.page_bytes = HAK_UNIT_BYTES / 2;
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(NULL, PAIR);
    library_put(NULL, PAIR, blocks[1]);
    taken = 0, left = 1;
    library_let_exchange();
    model_name(&hak_exchange_at_pages, "next look");
}

static void exchange(void) { hak_exchange_notice(); }
static void take_and_exchange(void) {
    void *block = library_take(library_heaps[0], PAIR);
    if (block != NULL) library_touch(block), taken++;
    hak_exchange_notice();
}
static void grow_and_exchange(void) { /* by another unit, as if it were a mebibyte */
    void *block = library_take(library_heaps[0], TRIPLE);
    if (block != NULL) library_touch(block), taken++;
    hak_count_growth(HAK_MIB / fake_os.page_bytes);
    hak_exchange_notice();
}
static void put_and_exchange(void) {
    library_put(library_heaps[1], PAIR, blocks[0]);
    left = 0;
    hak_exchange_notice();
}

static void check(void) {
    model_assert(library_check() == taken + left, "every block is free, in a bin, or the program's");
    hak_exchange_notice(); /* of growth while somebody was at it */
    model_assert(hak_exchange_at_pages > hak_pages_grown, "nobody is at it any more, and the next look comes later");
}
static void check_given(void) {
    check();
    model_assert(hak_region_find((uintptr_t)blocks[0]).slab->purged_pages != 0, "the hole has gone back");
}

MODEL_HARNESS(exchange_two, setup, check_given, exchange, exchange);
MODEL_HARNESS_BOUNDED(exchange_grow, 1, 2, setup, check, grow_and_exchange, exchange);
MODEL_HARNESS_BOUNDED(exchange_take, 1, 2, setup, check, take_and_exchange, exchange);
MODEL_HARNESS_BOUNDED(exchange_put, 1, 2, setup, check, put_and_exchange, exchange);
