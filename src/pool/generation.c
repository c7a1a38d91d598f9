#include "pool/generation.h"

#include "os/os.h"

HAK_ATOMIC(uint32_t) hak_generation = 1;

static HAK_ATOMIC(uint32_t) *mark; /* G1; NULL: there is no such page. Const since before main */

static HAK_ATOMIC(uint32_t) entered;  /* how many threads have said so */
static HAK_ATOMIC(uint32_t) accepted; /* of these, those before the last handler's end */

static HAK_ATOMIC(uintptr_t) recoverer; /* the thread that runs the handler, or 0 */

void hak_generation_watch(void) {
    mark = hak_os_map_wiped();
    if (mark != NULL) hak_atomic_store(mark, 1, relaxed);
}

uint32_t hak_generation_enter(void) {
    if (mark == NULL) return hak_atomic_load(&hak_generation, relaxed);
    /* Acquire pairs with hak_generation_end: it is the parent's if the page is found empty. */
    uint32_t generation = hak_atomic_load(&hak_generation, acquire);
    /* Acquire pairs with hak_generation_end: what the handler has repaired is seen. */
    if (HAK_LIKELY(hak_atomic_load(mark, acquire) != 0)) return generation;
    /* G1, G2: between the two the order is seq_cst, here and in hak_generation_begin. */
    hak_atomic_fetch_add(&entered, 1, seq_cst);
    uintptr_t at_it;
    /* Also acquire, pairs with hak_generation_end. */
    while ((at_it = hak_atomic_load(&recoverer, seq_cst)) != 0) {
        if (at_it == hak_os_this_thread()) return 0;
        hak_cpu_relax();
        hak_os_yield();
    }
    return generation + 1;
}

bool hak_generation_begin(bool has_entered) {
    hak_atomic_store(&recoverer, hak_os_this_thread(), seq_cst); /* G2 */
    return hak_atomic_load(&entered, seq_cst) - hak_atomic_load(&accepted, relaxed) == has_entered;
}

void hak_generation_end(void) {
    hak_atomic_store(&accepted, hak_atomic_load(&entered, relaxed), relaxed);
    /* Release pairs with hak_generation_enter, three times. */
    if (mark != NULL) hak_atomic_store(mark, 1, release);
    hak_atomic_store(&hak_generation, hak_atomic_load(&hak_generation, relaxed) + 1, release);
    hak_atomic_store(&recoverer, 0, release);
}
