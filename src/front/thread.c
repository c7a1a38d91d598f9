#include "front/thread.h"

#include <pthread.h>

#include "front/background.h"
#include "front/miss.h"
#include "front/process.h"
#include "observe/crash.h"
#include "os/os.h"
#include "region/in_hand.h"

/* Heaps without number, memory or blocks: all bins miss. */
static struct hak_heap no_heap;     /* of a thread that has asked for nothing yet */
static struct hak_heap exited_heap; /* of a thread that will have no heap any more */

__thread struct hak_heap *hak_thread_heap = &no_heap;

/* It is getting its heap, or leaving it: hak_thread_heap doesn't tell which. */
static __thread bool is_between_heaps;

#if defined(__GLIBC__) && !defined(HAK_NO_OVERRIDE)
/* While the dynamic linker relocates the program, thread-local variables are zero, not yet what they are initialised
 * with, but IFUNC resolvers run and may allocate. A resolver of our own, which runs when this library is relocated and
 * so before the program is, sets the one we need. */
static void nothing(void) {}
__attribute__((used)) static void (*set_thread_heap(void))(void) {
    if (hak_os_has_thread_pointer()) hak_thread_heap = &no_heap;
    return nothing;
}
__attribute__((used)) static void before_relocation(void) __attribute__((ifunc("set_thread_heap")));
__attribute__((used)) static void (*const needs_relocation)(void) = before_relocation;
#endif

static pthread_key_t key;

enum { KEY_NONE, KEY_BEING_MADE, KEY_MADE, KEY_REFUSED };
static HAK_ATOMIC(uint32_t) key_state = KEY_NONE;

/* What lies between is known to a child that a signal handler forks in this thread. */
static void begin_between(void) {
    is_between_heaps = true;
    hak_signal_fence();
}
static void end_between(void) {
    hak_signal_fence();
    is_between_heaps = false;
}

bool hak_thread_is_between_heaps(void) { return is_between_heaps; }

/* Thread-specific destructors run in rounds, in no order we know; other destructors may allocate and free after ours.
 * They go without a heap. To wait for the last round would be better for them, but a thread that gets its heap in one
 * of these destructors can't know which round it is, and would keep the heap for ever. */
static void on_thread_exit(void *value) {
    /* The place for it may be another hakmem's, as below. All heaps are looked at only where the thread had its own
     * before its thread-local variables were initialised, and has made no miss since. */
    if (value != hak_thread_heap && !hak_heap_is_known(value)) return;
    struct hak_heap *heap = value;
    begin_between();
    hak_thread_refuse_heap();
    if (hak_process_config()->crash) hak_crash_leave_thread(heap);
    hak_heap_leave(heap);
    end_between();
    hak_background_notice();
    hak_background_thread_ended();
}

/* Not 0, the number of each key that a program has declared and not made: what it finds there by mistake is nothing, as
 * without us. */
static bool make_key(void) {
    if (pthread_key_create(&key, on_thread_exit) != 0) return false;
    pthread_key_t first = key;
    if (first != 0) return true;
    if (pthread_key_create(&key, on_thread_exit) == 0) pthread_key_delete(first);
    else key = first;
    return true;
}

bool hak_thread_initialize(void) {
    /* Acquire pairs with the release below: the key is there. */
    uint32_t state = hak_atomic_load(&key_state, acquire);
    if (HAK_LIKELY(state != KEY_NONE)) return state == KEY_MADE;
    /* Acquire as above. */
    if (!hak_atomic_cas(&key_state, &state, KEY_BEING_MADE, acquire, acquire)) return state == KEY_MADE;
    bool made = make_key();
    /* Release pairs with the acquires above. */
    hak_atomic_store(&key_state, made ? KEY_MADE : KEY_REFUSED, release);
    return made;
}

void hak_thread_after_fork(void) {
    /* Who was making it is not here. */
    if (hak_atomic_load(&key_state, relaxed) == KEY_BEING_MADE) hak_atomic_store(&key_state, KEY_NONE, relaxed);
}

uintptr_t hak_thread_identity(void) { return (uintptr_t)&hak_thread_heap; }

static struct hak_heap *take_heap(void) {
    /* Until it has one, a signal handler goes without a heap, and so does what libc allocates here. */
    hak_thread_heap = &exited_heap;
    hak_signal_fence();
    /* The thread may have a heap: from before its thread-local variables were initialised. Or its place for one is in
     * use by another hakmem: the copies of libc that dlmopen loads share these places. */
    struct hak_heap *heap = pthread_getspecific(key);
    if (heap == NULL) heap = hak_heap_acquire();
    else if (!hak_heap_is_known(heap)) heap = NULL;
    if (heap == NULL) {
        hak_thread_heap = &no_heap;
        return NULL;
    }
    heap->tenant++;
    hak_atomic_store(&heap->thread_id, hak_os_thread_id(), relaxed);
    hak_large_hand = &heap->large_hand;
    hak_thread_heap = heap;
    return heap;
}

static HAK_MISS struct hak_heap *give_heap(void) {
    if (hak_thread_heap == &exited_heap || !hak_process_initialize() || !hak_thread_initialize()) return NULL;
    begin_between();
    struct hak_heap *heap = take_heap();
    end_between();
    if (heap == NULL) return NULL;
    if (pthread_setspecific(key, heap) != 0) { /* which may allocate */
        begin_between();
        hak_thread_refuse_heap();
        hak_heap_release(heap);
        end_between();
        return NULL;
    }
    if (hak_process_config()->crash) hak_crash_enter_thread(heap);
    return heap;
}

void hak_thread_abandon_heap(void) {
    hak_large_hand = NULL;
    hak_thread_heap = &no_heap;
    pthread_setspecific(key, NULL);
}

void hak_thread_refuse_heap(void) {
    hak_large_hand = NULL;
    hak_thread_heap = &exited_heap;
}

struct hak_heap *hak_thread_attach(void) {
    struct hak_heap *heap = hak_thread_heap;
    if (HAK_UNLIKELY(heap->number == 0)) heap = give_heap();
    if (HAK_UNLIKELY(heap == NULL) || HAK_UNLIKELY(hak_atomic_load(&heap->busy, relaxed) != 0)) return NULL;
    return heap;
}
