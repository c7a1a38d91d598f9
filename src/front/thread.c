#include "front/thread.h"

#include <limits.h>
#include <pthread.h>

#include "front/background.h"
#include "front/miss.h"
#include "front/process.h"
#include "observe/crash.h"
#include "os/os.h"

/* ThreadSanitizer takes its own thread state down in the last round of destructors. */
#ifdef __SANITIZE_THREAD__
enum { LAST_EXIT_ROUND = PTHREAD_DESTRUCTOR_ITERATIONS - 1 };
#else
enum { LAST_EXIT_ROUND = PTHREAD_DESTRUCTOR_ITERATIONS };
#endif

/* Heaps without number, memory or blocks: all bins miss. */
static struct hak_heap no_heap;     /* of a thread that has asked for nothing yet */
static struct hak_heap exited_heap; /* of a thread that will have no heap any more */

__thread struct hak_heap *hak_thread_heap = &no_heap;

#if defined(__GLIBC__) && !defined(HAK_NO_OVERRIDE)
/* While the dynamic linker relocates the program, thread-local variables are zero, not yet what they are initialised with, but
 * IFUNC resolvers run and may allocate. A resolver of our own, which runs when this library is relocated and so before
 * the program is, sets the one we need. */
static void nothing(void) {}
__attribute__((used)) static void (*set_thread_heap(void))(void) {
    if (hak_os_has_thread_pointer()) hak_thread_heap = &no_heap;
    return nothing;
}
__attribute__((used)) static void before_relocation(void) __attribute__((ifunc("set_thread_heap")));
__attribute__((used)) static void (*const needs_relocation)(void) = before_relocation;
#endif

static pthread_key_t key;
static bool have_key;

/* Thread-specific destructors run in rounds, in no order we know; other destructors may allocate and free after ours. So ours
 * asks for another round until the last, and what comes later still goes without a heap. */
static void on_thread_exit(void *value) {
    if (!hak_heap_is_known(value)) return;
    struct hak_heap *heap = value;
    if (++heap->exit_rounds < LAST_EXIT_ROUND && pthread_setspecific(key, heap) == 0) return;
    hak_thread_heap = &exited_heap;
    if (hak_process_config()->crash) hak_crash_leave_thread(heap);
    hak_heap_leave(heap);
    hak_background_notice();
    hak_background_thread_ended();
}

void hak_thread_initialize(void) { have_key = pthread_key_create(&key, on_thread_exit) == 0; }

static HAK_COLD struct hak_heap *give_heap(void) {
    if (hak_thread_heap == &exited_heap || !hak_process_initialize() || !have_key) return NULL;
    /* The thread may have a heap: from before its thread-local variables were initialised. Or its place for one is in use by
     * another hakmem: the copies of libc that dlmopen loads share these places. */
    struct hak_heap *heap = pthread_getspecific(key);
    if (heap == NULL) heap = hak_heap_acquire();
    else if (!hak_heap_is_known(heap)) heap = NULL;
    if (heap == NULL) return NULL;
    hak_atomic_store(&heap->thread_id, hak_os_thread_id(), relaxed);
    hak_thread_heap = heap; /* before pthread_setspecific, which may allocate */
    if (pthread_setspecific(key, heap) != 0) {
        hak_thread_heap = &exited_heap;
        hak_heap_release(heap);
        return NULL;
    }
    if (hak_process_config()->crash) hak_crash_enter_thread(heap);
    if (hak_process_config()->prewarm_bytes != 0) hak_front_prewarm(hak_process_config()->prewarm_bytes);
    return heap;
}

void hak_thread_abandon_heap(void) {
    hak_thread_heap = &no_heap;
    pthread_setspecific(key, NULL);
}

void hak_thread_refuse_heap(void) { hak_thread_heap = &exited_heap; }

struct hak_heap *hak_thread_attach(void) {
    struct hak_heap *heap = hak_thread_heap;
    if (HAK_UNLIKELY(heap->number == 0)) heap = give_heap();
    if (HAK_UNLIKELY(heap == NULL) || HAK_UNLIKELY(hak_atomic_load(&heap->busy, relaxed) != 0)) return NULL;
    return heap;
}
