#include "pool/vacant.h"

/* The topmost heap of a stack, and in the bits that its address has no use for, how many were put there so far. */
HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) unused_heaps;

/* Only the handler in a child of fork puts heaps there, which nobody has, and which don't lie there; if the fork came
 * from a signal handler that has interrupted who takes one, it puts none there. So none is put back while a thread
 * takes it, and the number doesn't matter here. */
static HAK_ATOMIC(uint64_t) orphaned_heaps;
enum { HEAP_SHIFT = 12, HEAP_BITS = 57 - HEAP_SHIFT }; /* at the start of a page; below the largest address there is */

HAK_WRITTEN_BY_MANY static HAK_ATOMIC(struct hak_heap *) kept_heaps[HAK_MOST_KEPT_HEAPS];

/* ---- Stacks ------------------------------------------------------------------------------------------------------ */

static struct hak_heap *topmost(uint64_t stack) {
    return (struct hak_heap *)(uintptr_t)((stack & hak_low_bits(HEAP_BITS)) << HEAP_SHIFT);
}

static uint64_t with_topmost(uint64_t stack, const struct hak_heap *heap) {
    return (stack & ~hak_low_bits(HEAP_BITS)) | (uintptr_t)heap >> HEAP_SHIFT;
}

static void push(HAK_ATOMIC(uint64_t) *heaps, struct hak_heap *heap) {
    uint64_t stack = hak_atomic_load(heaps, relaxed), pushed;
    do {
        hak_atomic_store(&heap->below, topmost(stack), relaxed);
        pushed = with_topmost(stack, heap) + ((uint64_t)1 << HEAP_BITS);
        /* Release pairs with pop. */
    } while (!hak_atomic_cas(heaps, &stack, pushed, release, relaxed));
}

static struct hak_heap *pop(HAK_ATOMIC(uint64_t) *heaps) {
    for (;;) {
        /* Acquire pairs with push: what is below, and how the heap was left. */
        uint64_t stack = hak_atomic_load(heaps, acquire);
        struct hak_heap *heap = topmost(stack);
        if (heap == NULL) return NULL;
        const struct hak_heap *below = hak_atomic_load(&heap->below, relaxed);
        /* Where others have taken this one and put it back meanwhile, their number tells: what is there is what was
         * loaded. */
        if (hak_atomic_cas(heaps, &stack, with_topmost(stack, below), relaxed, relaxed)) return heap;
    }
}

void hak_vacant_put_unused(struct hak_heap *heap) { push(&unused_heaps, heap); }
struct hak_heap *hak_vacant_take_unused(void) {
    return pop(&unused_heaps);
}
void hak_vacant_put_orphaned(struct hak_heap *heap) { push(&orphaned_heaps, heap); }
struct hak_heap *hak_vacant_take_orphaned(void) {
    return pop(&orphaned_heaps);
}
bool hak_vacant_has_orphaned(void) { return topmost(hak_atomic_load(&orphaned_heaps, relaxed)) != NULL; }

/* ---- Places ------------------------------------------------------------------------------------------------------ */

struct hak_heap *hak_vacant_kept(uint32_t i) {
    /* Acquire pairs with hak_vacant_put_kept. */
    return hak_atomic_load(&kept_heaps[i], acquire);
}

uint32_t hak_vacant_count_kept(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++) count += hak_atomic_load(&kept_heaps[i], relaxed) != NULL;
    return count;
}

bool hak_vacant_put_kept(struct hak_heap *heap) {
    for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++) {
        struct hak_heap *nobody = NULL;
        /* Release pairs with hak_vacant_kept: the record is seen. */
        if (hak_atomic_cas(&kept_heaps[i], &nobody, heap, release, relaxed)) return true;
    }
    return false;
}

void hak_vacant_remove_kept(const struct hak_heap *heap) {
    for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++)
        if (hak_atomic_load(&kept_heaps[i], relaxed) == heap) hak_atomic_store(&kept_heaps[i], NULL, relaxed);
}

void hak_vacant_forget_all(void) {
    hak_atomic_store(&unused_heaps, 0, relaxed);
    hak_atomic_store(&orphaned_heaps, 0, relaxed);
    for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++) hak_atomic_store(&kept_heaps[i], NULL, relaxed);
}
