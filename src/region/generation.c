#include "region/generation.h"

#include "os/os.h"

HAK_ATOMIC(uint32_t) hak_generation = 1;

/* G1 */
struct wiped {
    HAK_ATOMIC(uint32_t) is_settled; /* the handler has ended, or there was no fork */
    HAK_ATOMIC(uint32_t) entered;    /* how many threads have said so */
    HAK_ATOMIC(uintptr_t) recoverer; /* the thread that runs the handler, or 0 */
};

/* Without such a page. */
static struct wiped unwatched = {.is_settled = 1};
static struct wiped *wiped = &unwatched; /* const since before main */

void hak_generation_watch(void) {
    struct wiped *page = hak_os_map_wiped();
    if (page == NULL) return;
    hak_atomic_store(&page->is_settled, 1, relaxed);
    wiped = page;
}

uint32_t hak_generation_now(void) {
    return hak_atomic_load(&hak_generation, relaxed) + (hak_atomic_load(&wiped->is_settled, relaxed) == 0);
}

uint32_t hak_generation_enter(void) {
    if (wiped == &unwatched) return hak_atomic_load(&hak_generation, relaxed);
    /* Acquire pairs with hak_generation_end: it is the parent's if the page is found empty. */
    uint32_t generation = hak_atomic_load(&hak_generation, acquire);
    /* Acquire pairs with hak_generation_end: what the handler has repaired is seen. */
    if (HAK_LIKELY(hak_atomic_load(&wiped->is_settled, acquire) != 0)) return generation;
    /* G1, G2: between the two the order is seq_cst, here and in hak_generation_begin. */
    hak_atomic_fetch_add(&wiped->entered, 1, seq_cst);
    uintptr_t at_it;
    /* Also acquire, pairs with hak_generation_end. */
    while ((at_it = hak_atomic_load(&wiped->recoverer, seq_cst)) != 0) {
        if (at_it == hak_os_this_thread()) return 0;
        hak_cpu_relax();
        hak_os_yield();
    }
    return generation + 1;
}

/* Without the page: the number of the child that it ended in, and 1; 0 at first. */
static HAK_ATOMIC(uint32_t) last_child;

bool hak_generation_is_settled(void) {
    if (wiped == &unwatched) return hak_atomic_load(&last_child, relaxed) == hak_os_thread_id() + 1;
    return hak_atomic_load(&wiped->is_settled, relaxed) != 0;
}

bool hak_generation_begin(void) {
    hak_atomic_store(&wiped->recoverer, hak_os_this_thread(), seq_cst); /* G2 */
    return hak_atomic_load(&wiped->entered, seq_cst) == 0;
}

void hak_generation_end(void) {
    hak_atomic_store(&last_child, hak_os_thread_id() + 1, relaxed);
    /* Release pairs with hak_generation_enter, three times. */
    hak_atomic_store(&wiped->is_settled, 1, release);
    hak_atomic_store(&hak_generation, hak_atomic_load(&hak_generation, relaxed) + 1, release);
    hak_atomic_store(&wiped->recoverer, 0, release);
}
