/* Model checker for code written against src/base/atomic.h: what harnesses and runners call. README.md beside this
 * file states the memory model and its limits.
 */
#ifndef MODEL_CHECKER_H
#define MODEL_CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "model_atomic.h"

enum {
    MODEL_THREADS = 8,      /* of a harness, at most */
    MODEL_LOCATIONS = 1536, /* atomic ones that an execution touches, at most */
    MODEL_DEFAULT = -1,
};

/* ---- harnesses ---------------------------------------------------------------------------------------------- */

/* An execution is: setup alone; the threads, interleaved; finally alone, when all have returned. Setup writes every
 * location and all plain data the threads use: nothing else is put back between executions. Either may be NULL. */
struct model_harness {
    const char *name;
    int preemptions, stale; /* MODEL_DEFAULT, or bounds of this harness */
    bool is_deep;           /* they hold unless more time is given */
    void (*setup)(void);
    void (*finally)(void);
    void (*thread[MODEL_THREADS])(void);
    struct model_harness *next;
};

#define MODEL_HARNESS(name, setup, finally, ...)                                                                       \
    MODEL_HARNESS_BOUNDED(name, MODEL_DEFAULT, MODEL_DEFAULT, setup, finally, __VA_ARGS__)

#define MODEL_HARNESS_BOUNDED(name, preemptions, stale, setup, finally, ...)                                           \
    MODEL_HARNESS_OF(name, preemptions, stale, false, setup, finally, __VA_ARGS__)

/* One whose executions within the default bounds take long: these are run with --deep; otherwise all with one
 * preemption. */
#define MODEL_HARNESS_DEEP(name, setup, finally, ...) MODEL_HARNESS_OF(name, 1, 2, true, setup, finally, __VA_ARGS__)

#define MODEL_HARNESS_OF(name, preemptions, stale, is_deep, setup, finally, ...)                                       \
    static struct model_harness model_harness_##name = {#name, preemptions, stale,         is_deep,                    \
                                                        setup, finally,     {__VA_ARGS__}, 0};                         \
    __attribute__((constructor)) static void model_register_##name(void) { model_register(&model_harness_##name); }    \
    _Static_assert(sizeof((void (*[])(void)){__VA_ARGS__}) / sizeof(void (*)(void)) <= MODEL_THREADS, "threads")

void model_register(struct model_harness *harness);
struct model_harness *model_harnesses(void); /* a list, in order of registration */

/* Number of the running thread: its place in the harness's list. */
unsigned model_thread(void);

#define model_assert(condition, text)                                                                                  \
    ((condition) ? (void)0 : model_fail("%s:%d: %s", model_base_name(__FILE__), __LINE__, (text)))
_Noreturn void model_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *model_base_name(const char *path);

#define model_await(condition)                                                                                         \
    do {                                                                                                               \
        while (!(condition)) model_yield();                                                                            \
    } while (0)

/* A futex: wait returns at once when the latest value is not `expected`, else sleeps until woken. */
void model_futex_wait(uint32_t *address, uint32_t expected);
void model_futex_wake(uint32_t *address, unsigned count);

/* Plain accesses, for code that is not compiled with -fsanitize=thread (which makes these calls by itself). Two
 * accesses of which one writes must be ordered by happens-before. */
#define model_plain_read(address) model_plain_access((address), sizeof(*(address)), false)
#define model_plain_write(address) model_plain_access((address), sizeof(*(address)), true)
void model_plain_access(const volatile void *address, size_t size, bool writes);

/* The address space, as a kernel hands it out. An access to what was reserved must come after a commit of it, one to
 * what was purged not at the same time, one to what was unmapped not at all, unless it is reserved again. Parts of
 * words of plain data are not told apart. */
enum model_area_change { MODEL_RESERVE, MODEL_COMMIT, MODEL_PURGE, MODEL_UNMAP };
void model_area(const volatile void *start, size_t size, enum model_area_change change);

/* The calling thread alone goes on, and sees all of memory as it is now: the child of a fork. The other threads stop where
 * they are. */
void model_fork(void);

/* To be set in setup: threads are stopped before each atomic operation and each write to plain data, whoever else uses
 * it. */
extern bool model_stops_anywhere;

/* While a child recovers: what is run then is not to be stopped by forks. */
extern bool model_recovers;

/* To be called in setup. */
void model_name(const volatile void *address, const char *name); /* what schedules call this location */
void model_thread_local(void *address, size_t size);             /* each thread has its own copy */

/* Bits of a location that are there against ABA. A mutant, of this name, leaves them out of every comparison. */
void model_tag(const volatile void *address, uint64_t mask, const char *name);

/* ---- exploring ---------------------------------------------------------------------------------------------- */

struct model_bounds {
    unsigned preemptions; /* switches away from a thread that could go on */
    unsigned stale;       /* reads of an older message, and writes below the newest, per execution */
    unsigned steps;       /* operations per execution: more is a livelock */
    uint64_t executions;  /* reaching it leaves the exploration incomplete */
};

#define MODEL_BOUNDS ((struct model_bounds){.preemptions = 2, .stale = 3, .steps = 4000, .executions = 50000000})

struct model_result {
    bool failed;
    bool complete;        /* all executions within the bounds were run */
    bool unbounded;       /* and the bounds on preemptions and stale reads never cut one off */
    unsigned preemptions; /* allowed when it ended: the least that fails, if it failed */
    uint64_t executions;
    char message[400];
};

/* Bounds of preemption are tried from 0 up, so a failure comes with as few as it needs. */
struct model_result model_explore(const struct model_harness *harness, struct model_bounds bounds);
void model_print_schedule(FILE *stream); /* of the failure model_explore just returned */

/* ---- mutants ------------------------------------------------------------------------------------------------ */

enum model_weakening { MODEL_WEAKEN_ORDER, MODEL_WEAKEN_FAILURE, MODEL_DROP_TAG };

struct model_mutant {
    struct model_entry *entry;
    enum model_weakening weakening;
    enum model_order order; /* after weakening */
};

/* A site as the program has it, with every copy its headers made; or a tag. */
struct model_entry {
    const struct model_site *site;   /* NULL: a tag */
    char name[80];                   /* base name:line:operation, or "tag" and its name */
    enum model_order order, failure; /* in force */
    bool dropped;                    /* a tag not compared */
    bool touched;                    /* by a thread of a harness, since last cleared */
    bool stopped;                    /* where threads are stopped anywhere, one was there that a fork stops */
    bool recovers;                   /* run while model_recovers */
};

size_t model_entries(struct model_entry **entries);
bool model_entry_is_in(const struct model_entry *entry, const char *path_prefix); /* path from src/ or tests/ on */
struct model_entry *model_tag_entry(const char *name);
size_t model_mutants_of(struct model_entry *entry, struct model_mutant mutants[4]); /* none if all is relaxed */
void model_mutant_apply(const struct model_mutant *mutant);
void model_mutant_revert(const struct model_mutant *mutant);
void model_mutant_name(const struct model_mutant *mutant, char *name, size_t size);
const char *model_order_name(enum model_order order);
const char *model_operation_name(enum model_operation operation);

#endif
