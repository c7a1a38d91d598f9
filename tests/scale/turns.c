#include "turns.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "lines.h"

/* Who spins reads the same words again and again: after so many loads it is another thread's turn. */
enum { MOST_LOADS = 4096, STACK_BYTES = 128 << 10, STACKS = 2 * LINES_MOST_CORES };

bool turns_are_steps;

static struct thread {
    sem_t turn;
    bool has_ended;
    pthread_t thread;
} threads[LINES_MOST_CORES];

static int thread_count;
static uint32_t loads; /* in this turn */
static void (*run_thread)(int number);
static char *stacks;

static void must(bool done) {
    if (!done) abort();
}

static void give_turn(int number) {
    loads = 0;
    sem_post(&threads[number].turn);
}

static void await_turn(int number) {
    while (sem_wait(&threads[number].turn) != 0) continue;
}

/* Whose turn it is after this one's; the same when there is no other. */
static int next_after(int number) {
    int next = number;
    do next = (next + 1) % thread_count;
    while (next != number && threads[next].has_ended);
    return next;
}

void turns_end(void) {
    int own = lines_core, next = next_after(own);
    if (next == own) return;
    give_turn(next);
    await_turn(own);
}

void turns_before_atomic(bool writes) {
    if (writes ? turns_are_steps : ++loads > MOST_LOADS) turns_end();
}

static pthread_t start(int stack, void *(*run)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    must(pthread_attr_init(&attributes) == 0);
    must(pthread_attr_setstack(&attributes, stacks + (size_t)stack * STACK_BYTES, STACK_BYTES) == 0);
    must(pthread_create(&thread, &attributes, run, argument) == 0);
    pthread_attr_destroy(&attributes);
    return thread;
}

static void *live(void *argument) {
    int own = (int)((struct thread *)argument - threads), next;
    lines_core = own;
    await_turn(own);
    run_thread(own);
    threads[own].has_ended = true;
    if ((next = next_after(own)) != own) give_turn(next);
    return NULL;
}

/* All on one processor: a turn is given without waking up another. */
static void stay_on_one_processor(void) {
    cpu_set_t processors;
    CPU_ZERO(&processors);
    CPU_SET((unsigned)sched_getcpu(), &processors);
    sched_setaffinity(0, sizeof processors, &processors);
}

void turns_run(int count, void (*run)(int number)) {
    stacks = mmap(NULL, (size_t)STACKS * STACK_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    must(stacks != MAP_FAILED && count <= LINES_MOST_CORES);
    lines_initialize((uintptr_t)stacks, (uint64_t)STACKS * STACK_BYTES);
    stay_on_one_processor();
    thread_count = count;
    run_thread = run;
    for (int i = 0; i < count; i++) {
        must(sem_init(&threads[i].turn, 0, 0) == 0);
        threads[i].thread = start(i, live, &threads[i]);
    }
    give_turn(0);
    for (int i = 0; i < count; i++) pthread_join(threads[i].thread, NULL);
}

struct inside {
    int core;
    void (*run)(int number);
};

static void *live_inside(void *argument) {
    struct inside *inside = argument;
    lines_core = inside->core;
    inside->run(inside->core);
    return NULL;
}

void turns_run_inside(void (*run)(int number)) {
    struct inside inside = {lines_core, run};
    pthread_join(start(LINES_MOST_CORES + lines_core, live_inside, &inside), NULL);
}
