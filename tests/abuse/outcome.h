/* Tables of outcomes: a program holds many cells, each a misuse of the heap under stated circumstances, and says what
 * came of each under the allocator that it runs on, whichever that is.
 *
 *     program --list          the names of the cells
 *     program CELL            runs one; prints CELL, a tab, the outcome
 *     program --all [JOBS]    runs all, so many at a time
 *
 * A cell is a process of its own (the victim), executed anew, where it may be at the same addresses every time. It says
 * on standard output how far it has come: the address that it is about to misuse; "after" when the misuse is over, and
 * again after more calls of malloc and free; "exit" when it ends. A line "= WORD" is an outcome that it found itself.
 *
 *     named      stopped by the misuse, and the allocator named the address
 *     stopped    stopped by the misuse
 *     later-N    stopped at the latest N calls after the misuse
 *     at-exit    stopped when the process ended
 *     faulted    a signal of the processor's by the misuse; faulted-later: after it
 *     hung       it had to be killed
 *     intact     it ended as if nothing had happened
 *
 * outcomes.py compares what a program prints with a file. */
#ifndef HAK_TEST_OUTCOME_H
#define HAK_TEST_OUTCOME_H

#include <sys/mman.h>
#include <sys/personality.h>

#include "case.h"

enum { OUTCOME_MOST = 24, OUTCOME_NAME_MOST = 64, OUTCOME_SECONDS = 20, OUTCOME_MEMORY_MIB = 12288 };

static unsigned outcome_calls; /* since the misuse */
static bool outcome_is_over;   /* the misuse has happened */

/* ---- In the victim ----------------------------------------------------------------------------------------------- */

static inline void outcome_before(const volatile void *address) {
    case_print(1, "%#lx", (unsigned long)(uintptr_t)address);
}

static inline void outcome_after(void) {
    outcome_is_over = true;
    case_print(1, "after 1");
}

/* To be called before each call of malloc or free. */
static inline void outcome_count(void) {
    static unsigned steps[] = {1, 8, 64, 1000, 10000};
    if (!outcome_is_over) return;
    for (size_t i = 0; i + 1 < sizeof steps / sizeof *steps; i++) {
        if (outcome_calls == steps[i]) case_print(1, "after %u", steps[i + 1]);
    }
    outcome_calls++;
}

static inline void outcome_found(const char *word) {
    case_print(1, "= %s", word);
    _exit(0);
}

static inline void outcome_exit(void) {
    case_print(1, "exit");
    exit(0);
}

/* ---- Around it --------------------------------------------------------------------------------------------------- */

static inline bool outcome_is_fault(int signal) { return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE; }

/* What became of the victim; "broken ..." if it never came to its misuse, or an expectation of its own failed. */
static inline void outcome_of(const struct case_end *end, char *word) {
    const char *last = NULL;
    char text[sizeof end->output];
    strcpy(text, end->output);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) last = line;
    bool is_exited = end->status >= 0 && WIFEXITED(end->status), is_well = is_exited && WEXITSTATUS(end->status) == 0;
    bool is_fault = end->status >= 0 && WIFSIGNALED(end->status) && outcome_is_fault(WTERMSIG(end->status));
    size_t address_length = strcspn(end->output, "\n");
    char address[32];
    snprintf(address, sizeof address, "%.*s", (int)address_length, end->output);
    if (last && strncmp(last, "= ", 2) == 0 && is_well) snprintf(word, OUTCOME_MOST, "%s", last + 2);
    else if (!last || (is_exited && WEXITSTATUS(end->status) == CASE_FAILED && strstr(end->error, ": expected ")))
        snprintf(word, OUTCOME_MOST, "broken %#x", (unsigned)end->status);
    else if (end->status < 0 || (is_exited && WEXITSTATUS(end->status) == CASE_OUT_OF_TIME))
        snprintf(word, OUTCOME_MOST, "hung");
    else if (strcmp(last, "exit") == 0) snprintf(word, OUTCOME_MOST, "%s", is_well ? "intact" : "at-exit");
    else if (strncmp(last, "after ", 6) == 0)
        snprintf(word, OUTCOME_MOST, is_fault ? "faulted-later" : "later-%s", last + 6);
    else snprintf(word, OUTCOME_MOST, "%s", is_fault ? "faulted" : strstr(end->error, address) ? "named" : "stopped");
}

/* A table: `name` writes the name of cell `index`, `victim` is its process. */
struct outcome_table {
    size_t count;
    void (*name)(size_t index, char name[OUTCOME_NAME_MOST]);
    void (*victim)(size_t index);
};

static inline size_t outcome_find(const struct outcome_table *table, const char *wanted) {
    for (size_t i = 0; i < table->count; i++) {
        char name[OUTCOME_NAME_MOST];
        table->name(i, name);
        if (strcmp(name, wanted) == 0) return i;
    }
    expect(false, "no such cell: %s", wanted);
    return 0;
}

static inline void outcome_run(const struct outcome_table *table, size_t index, char *word) {
    char name[OUTCOME_NAME_MOST];
    table->name(index, name);
    struct case_end end = case_watch(name);
    outcome_of(&end, word);
    if (strncmp(word, "broken", 6) == 0) case_print(2, "%s: %s: %s%s", name, word, end.output, end.error);
}

/* Each job takes the next cell that nobody has taken. */
static inline int outcome_run_all(const struct outcome_table *table, unsigned jobs) {
    size_t bytes = sizeof(atomic_size_t) + table->count * OUTCOME_MOST;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(shared != MAP_FAILED, "no memory to share");
    atomic_size_t *next = shared;
    char(*words)[OUTCOME_MOST] = (void *)(next + 1);
    for (unsigned i = 0; i < jobs; i++) {
        pid_t job = fork();
        expect(job >= 0, "no job: errno %d", errno);
        if (job > 0) continue;
        for (size_t cell; (cell = atomic_fetch_add(next, 1)) < table->count;) outcome_run(table, cell, words[cell]);
        _exit(0);
    }
    int status = 0;
    for (unsigned i = 0; i < jobs; i++) {
        int ended;
        expect(wait(&ended) > 0, "a job is gone");
        status |= ended;
    }
    for (size_t i = 0; i < table->count; i++) {
        char name[OUTCOME_NAME_MOST];
        table->name(i, name);
        case_print(1, "%s\t%s", name, words[i]);
        if (strncmp(words[i], "broken", 6) == 0) status |= 1;
    }
    return status != 0;
}

static inline int outcome_main(int argc, char **argv, const struct outcome_table *table) {
    static const struct hak_case victim = {.name = "--victim", .seconds = OUTCOME_SECONDS};
    case_current = &victim;
    case_bound_memory(OUTCOME_MEMORY_MIB);
    if (argc == 3 && strcmp(argv[1], "--victim") == 0) {
        case_bound_time(OUTCOME_SECONDS);
        table->victim(outcome_find(table, argv[2]));
        outcome_exit();
    }
    personality(ADDR_NO_RANDOMIZE); /* of what is executed from now on; where that is refused, outcomes may vary */
    if (argc >= 2 && strcmp(argv[1], "--all") == 0) {
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        return outcome_run_all(table, argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)processors);
    }
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < table->count; i++) {
            char name[OUTCOME_NAME_MOST];
            table->name(i, name);
            case_print(1, "%s", name);
        }
        return 0;
    }
    expect(argc == 2, "usage: %s --list | --all [JOBS] | CELL", argv[0]);
    char word[OUTCOME_MOST];
    outcome_run(table, outcome_find(table, argv[1]), word);
    case_print(1, "%s\t%s", argv[1], word);
    return strncmp(word, "broken", 6) == 0;
}

#endif
