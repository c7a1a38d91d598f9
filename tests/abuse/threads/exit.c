/* The end of a process while its heap is busy, and what allocates after everything else has ended. */
#include "churn.h"

static void *churn_for_ever(void *seed) {
    struct churn churn;
    churn_start(&churn, (uintptr_t)seed, 64 << 10);
    for (;;) churn_step(&churn);
    return NULL;
}

static void *handed_to_exit[64];

static void allocate_at_exit(void) {
    churn_once(1, 500, 64 << 10);
    for (int i = 0; i < 64; i++) free(handed_to_exit[i]);
}

static void victim_detached(const char *delay_us) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (uintptr_t i = 0; i < 6; i++) {
        pthread_t thread;
        expect(pthread_create(&thread, &attributes, churn_for_ever, (void *)i) == 0, "no thread");
    }
    for (int i = 0; i < 64; i++) handed_to_exit[i] = malloc((size_t)16 << i % 13);
    atexit(allocate_at_exit);
    case_sleep_us((unsigned)strtoul(delay_us, NULL, 10));
    exit(0);
}

static void expect_clean_end(const char *argument) {
    struct case_end end = case_watch(argument);
    expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0, "wait status %#x; it said: %s", (unsigned)end.status,
           end.error);
    expect(!end.error[0] && !end.output[0], "it said: %s%s", end.output, end.error);
}

static void run_detached(void) {
    for (unsigned i = 0; i < 60; i++) {
        char delay_us[16];
        snprintf(delay_us, sizeof delay_us, "%u", i * i * 3);
        expect_clean_end(delay_us);
    }
}

/* main leaves by pthread_exit; the last thread ends the process, after its cache has gone. */
static void *churn_a_while(void *seed) {
    for (unsigned i = 0; i < 20; i++) churn_once((uintptr_t)seed + i, 500, 64 << 10);
    return NULL;
}

static void victim_main_leaves(const char *argument) {
    (void)argument;
    pthread_t thread;
    for (uintptr_t i = 0; i < 4; i++) {
        expect(pthread_create(&thread, NULL, churn_a_while, (void *)i) == 0, "no thread");
        pthread_detach(thread);
    }
    for (int i = 0; i < 64; i++) handed_to_exit[i] = malloc((size_t)16 << i % 13);
    atexit(allocate_at_exit);
    pthread_exit(NULL);
}

static void run_main_leaves(void) {
    for (int i = 0; i < 30; i++) expect_clean_end("once");
}

/* Destructors of the program and of a library that is linked to it; exit handlers that register others. The library
 * (late.c) ends after hakmem has. */
extern void late_keep(void *block);

static void *kept_for_destructor;

__attribute__((destructor(101))) static void allocate_in_destructor(void) {
    if (!kept_for_destructor) return;
    churn_once(2, 500, 64 << 10);
    free(kept_for_destructor);
}

static void allocate_once_more(void) { churn_once(3, 20, 64 << 10); }

/* More than fit into the list that libc has ready: it allocates another. */
static void allocate_and_register(void) {
    for (int i = 0; i < 100; i++) atexit(allocate_once_more);
}

static void victim_late(const char *argument) {
    (void)argument;
    kept_for_destructor = malloc(1000);
    late_keep(malloc(100));
    atexit(allocate_and_register);
    exit(0);
}

static void run_late(void) { expect_clean_end("once"); }

static const struct hak_case cases[] = {
    {.name = "detached", .run = run_detached, .seconds = 120, .memory_mib = 1024, .victim = victim_detached},
    {.name = "main-leaves", .run = run_main_leaves, .seconds = 120, .memory_mib = 1024, .victim = victim_main_leaves},
    {.name = "late", .run = run_late, .seconds = 120, .memory_mib = 512, .victim = victim_late},
};

CASE_MAIN(cases)
