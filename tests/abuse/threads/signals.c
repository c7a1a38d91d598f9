/* Signals and cancellation in the midst of malloc and free. */
#include <malloc.h>

#include "churn.h"

/* ---- 5,000 signals a second ------------------------------------------------------------------------------------ */

static atomic_uint signal_count;

static void count_signal(int signal) {
    (void)signal;
    atomic_fetch_add(&signal_count, 1);
}

static void run_timer(void) {
    struct sigaction action = {.sa_handler = count_signal};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec every = {{0, 200000}, {0, 200000}};
    struct churners churners = {0};
    struct churn churn;
    timer_t timer;
    churners_start(&churners, 2);
    churn_start(&churn, 1, 64 << 10);
    sigaction(SIGUSR1, &action, NULL);
    expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "no timer");
    timer_settime(timer, 0, &every, NULL);
    while (atomic_load(&signal_count) < 6000) churn_steps(&churn, 100);
    timer_delete(timer);
    churners_stop(&churners);
    churn_end(&churn);
}

/* ---- Cancelled threads ----------------------------------------------------------------------------------------- */

enum { CANCELLED = 1500, WAVE = 20 };

static void churn_cleanup(void *churn) { churn_end(churn); }

static void *churn_until_cancelled(void *seed) {
    struct churn churn;
    churn_start(&churn, (uintptr_t)seed, 64 << 10);
    pthread_cleanup_push(churn_cleanup, &churn);
    for (;;) {
        churn_steps(&churn, 50);
        pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void cancel_wave(unsigned wave) {
    pthread_t threads[WAVE];
    for (uintptr_t i = 0; i < WAVE; i++) {
        expect(pthread_create(&threads[i], NULL, churn_until_cancelled, (void *)(wave * WAVE + i)) == 0, "no thread");
    }
    case_sleep_us(500);
    for (int i = 0; i < WAVE; i++) pthread_cancel(threads[i]);
    for (int i = 0; i < WAVE; i++) {
        void *result;
        pthread_join(threads[i], &result);
        expect(result == PTHREAD_CANCELED, "a thread was not cancelled");
    }
}

static void run_cancel(void) {
    size_t settled = 0;
    for (unsigned wave = 0; wave < CANCELLED / WAVE; wave++) {
        cancel_wave(wave);
        if (wave != 25) continue;
        malloc_trim(0); /* what is free may stay resident for a while: no leak */
        settled = case_rss_bytes();
    }
    malloc_trim(0);
    size_t growth_kib = case_growth_kib(settled, case_rss_bytes());
    case_print(1, "RSS + %zu KiB", growth_kib);
    expect(growth_kib < 16 << 10, "cancelled threads leak: RSS + %zu KiB", growth_kib);
}

/* ---- malloc is no cancellation point --------------------------------------------------------------------------- */

static pthread_barrier_t pending_barrier;
static atomic_uint passed_count;

/* Everything that can miss, flush, map, unmap or purge, from the thread's first malloc on, with a cancel pending. */
static void *work_with_cancel_pending(void *seed) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_barrier_wait(&pending_barrier); /* now this thread exists: it is cancelled */
    pthread_barrier_wait(&pending_barrier);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    churn_once((uintptr_t)seed, 500, 64 << 10);
    for (size_t size = 1 << 20; size <= 64 << 20; size *= 2) {
        free(realloc(realloc(calloc(1, size), size * 2), 100));
        free(memalign(size, 1000));
    }
    malloc_trim(0);
    free(malloc(SIZE_MAX / 4));
    mallinfo2();
    atomic_fetch_add(&passed_count, 1);
    pthread_testcancel();
    return NULL;
}

static void run_cancel_pending(void) {
    enum { ROUNDS = 20 };
    pthread_barrier_init(&pending_barrier, NULL, 2);
    for (uintptr_t i = 0; i < ROUNDS; i++) {
        pthread_t thread;
        void *result;
        expect(pthread_create(&thread, NULL, work_with_cancel_pending, (void *)i) == 0, "no thread");
        pthread_barrier_wait(&pending_barrier);
        pthread_cancel(thread);
        pthread_barrier_wait(&pending_barrier);
        pthread_join(thread, &result);
        expect(result == PTHREAD_CANCELED, "the thread was not cancelled at all");
    }
    expect(atomic_load(&passed_count) == ROUNDS, "%u of %d threads were cancelled inside the allocator",
           ROUNDS - atomic_load(&passed_count), ROUNDS);
}

static const struct hak_case cases[] = {
    {.name = "timer", .run = run_timer, .seconds = 120, .memory_mib = 1024},
    {.name = "cancel", .run = run_cancel, .seconds = 120, .memory_mib = 1024},
    {.name = "cancel-pending", .run = run_cancel_pending, .seconds = 120, .memory_mib = 1024},
};

CASE_MAIN(cases)
