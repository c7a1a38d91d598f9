/* The program of all harnesses: runs each, or each mutant of the library's atomics until a harness catches it.
 *
 *     model_tests [--harness NAME] [--deep] [--preemptions K] [--stale N] [--executions N]
 *                 [--mutants [--strict] | --mutant SITE:ORDER | --list]
 *
 * Exit status 0: every harness passed, every mutant was caught. 1: not so. 2: it was called wrongly.
 */
#include "checker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HARNESSES = 512 };

static const char production[] = "src/";
static const char *const memory_layers[] = {"src/slab/", "src/region/", "src/pool/"};

static struct {
    const char *harness, *mutant;
    int preemptions, stale;
    uint64_t executions;
    bool mutants, strict, list, deep;
} options = {.preemptions = MODEL_DEFAULT, .stale = MODEL_DEFAULT};

static struct model_harness *harnesses[HARNESSES];
static size_t harness_count;
static bool *touched[HARNESSES];         /* by entry; NULL: it was not explored */
static size_t touched_counts[HARNESSES]; /* how many entries */
static size_t order[HARNESSES];          /* in which harnesses are asked: first who runs the least */

static double now_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static struct model_bounds bounds_of(const struct model_harness *harness) {
    struct model_bounds bounds = MODEL_BOUNDS;
    bool is_bounded = !harness->is_deep || !options.deep;
    if (is_bounded && harness->preemptions != MODEL_DEFAULT) bounds.preemptions = (unsigned)harness->preemptions;
    if (is_bounded && harness->stale != MODEL_DEFAULT) bounds.stale = (unsigned)harness->stale;
    if (options.preemptions != MODEL_DEFAULT) bounds.preemptions = (unsigned)options.preemptions;
    if (options.stale != MODEL_DEFAULT) bounds.stale = (unsigned)options.stale;
    if (options.executions != 0) bounds.executions = options.executions;
    return bounds;
}

/* Prints one line, and the schedule of a failure. */
static struct model_result run_harness(const struct model_harness *harness, struct model_bounds bounds) {
    double start = now_seconds();
    struct model_result result = model_explore(harness, bounds);
    const char *verdict = result.failed      ? "FAILED"
                          : !result.complete ? "INCOMPLETE: the limit of executions was reached"
                          : result.unbounded ? "ok, all executions"
                                             : "ok, all within bounds";
    printf("%-32s %10ju executions  %5.1f s  preemptions <= %u, stale <= %u  %s\n", harness->name,
           (uintmax_t)result.executions, now_seconds() - start, bounds.preemptions, bounds.stale, verdict);
    if (result.failed) model_print_schedule(stdout);
    fflush(stdout);
    return result;
}

/* Tags are known once a setup has named them. */
static void name_tags(void) {
    struct model_bounds bounds = {.steps = 4000, .executions = 1};
    for (size_t h = 0; h < harness_count; h++) model_explore(harnesses[h], bounds);
}

static void forget_touched(void) {
    struct model_entry *entries;
    size_t entry_count = model_entries(&entries);
    for (size_t e = 0; e < entry_count; e++) entries[e].touched = false;
}

/* By harness `h`, since they were forgotten. */
static void note_touched(size_t h) {
    struct model_entry *entries;
    size_t entry_count = model_entries(&entries);
    touched[h] = calloc(entry_count + 1, sizeof(bool));
    for (size_t e = 0; touched[h] && e < entry_count; e++) touched_counts[h] += touched[h][e] = entries[e].touched;
}

static bool run_all(void) {
    bool passed = true;
    name_tags();
    for (size_t h = 0; h < harness_count; h++) {
        forget_touched();
        struct model_result result = run_harness(harnesses[h], bounds_of(harnesses[h]));
        note_touched(h);
        passed = passed && !result.failed && result.complete;
    }
    return passed;
}

/* What a mutant weakens. */
static const char *original(const struct model_mutant *mutant) {
    switch (mutant->weakening) {
    case MODEL_WEAKEN_ORDER: return model_order_name(mutant->entry->site->order);
    case MODEL_WEAKEN_FAILURE: return model_order_name(mutant->entry->site->failure);
    default: return "compared";
    }
}

static bool is_run(size_t entry) {
    for (size_t h = 0; h < harness_count; h++)
        if (touched[h] != NULL && touched[h][entry]) return true;
    return false;
}

/* What is kept of a mutant; written by the process that tries it, which it may take with it. */
struct trial {
    struct model_mutant mutant;
    size_t entry;
    pid_t process; /* 0: none yet, or it has ended; not the process's to write */
    bool is_over, is_caught, is_complete;
    size_t harness; /* the last one asked */
    double seconds; /* of the processor */
    char message[sizeof((struct model_result *)0)->message];
};

_Noreturn static void fail(const char *what) {
    perror(what);
    exit(2);
}

static void *map_shared(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) fail("mmap");
    return start;
}

enum { SURVEYED_EXECUTIONS = 1000, FIRST_EXECUTIONS = 300, NEXT_EXECUTIONS = 4, MOST_MUTANTS = 4 };

/* Whether it may need an order: one that reads nothing but the newest is there for forks, and a child sees all. */
static bool is_asked(const struct model_harness *harness) { return harness->stale != 0; }

/* Each harness has so many executions to catch the mutant in; `is_done` of those that have run all of theirs, and
 * *all_done when all have. */
static bool is_caught(struct trial *trial, uint64_t executions, bool *is_done, bool *all_done) {
    *all_done = true;
    for (size_t i = 0; i < harness_count; i++) {
        size_t h = order[i];
        if (is_done[h] || touched[h] == NULL || !touched[h][trial->entry]) continue;
        struct model_bounds bounds = bounds_of(harnesses[h]);
        bool is_last = executions >= bounds.executions;
        if (!is_last) bounds.executions = executions;
        trial->harness = h;
        struct model_result result = model_explore(harnesses[h], bounds);
        if (result.failed) {
            memcpy(trial->message, result.message, sizeof(trial->message));
            return true;
        }
        is_done[h] = result.complete || is_last;
        *all_done = *all_done && is_done[h];
        trial->is_complete = trial->is_complete && (result.complete || !is_last);
    }
    return false;
}

/* In a process of its own. Most mutants are caught in a few executions by some harness, while another one would run all
 * of its own in vain; so each is asked for a few, and then for more. At last those are run in full that take long. */
static void try_mutant(struct trial *trial) {
    trial->is_complete = true;
    model_mutant_apply(&trial->mutant);
    for (int deep = 0; deep < 2 && !trial->is_caught; deep++) {
        bool is_done[HARNESSES] = {false}, all_done = false;
        options.deep = deep != 0;
        for (size_t h = 0; h < harness_count; h++) is_done[h] = options.deep && !harnesses[h]->is_deep;
        for (uint64_t executions = FIRST_EXECUTIONS; !trial->is_caught && !all_done; executions *= NEXT_EXECUTIONS)
            trial->is_caught = is_caught(trial, executions, is_done, &all_done);
    }
}

static void begin_trial(struct trial *trial) {
    fflush(stdout);
    pid_t process = fork();
    if (process < 0) fail("fork");
    if (process != 0) {
        trial->process = process;
        return;
    }
    int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    setrlimit(RLIMIT_CPU, &(struct rlimit){1800, 1800});
    try_mutant(trial);
    _exit(0);
}

/* Waits for the end of some trial. */
static void end_trial(struct trial *trials, size_t count) {
    int status;
    struct rusage use;
    pid_t ended = wait4(-1, &status, 0, &use);
    if (ended < 0) fail("wait4");
    for (size_t t = 0; t < count; t++) {
        if (trials[t].process != ended) continue;
        trials[t].process = 0;
        trials[t].is_over = true;
        trials[t].seconds = (double)use.ru_utime.tv_sec + (double)use.ru_utime.tv_usec * 1e-6;
        if (WIFEXITED(status)) continue;
        int signal_number = WTERMSIG(status);
        trials[t].is_complete = false;
        trials[t].is_caught = signal_number != SIGKILL && signal_number != SIGXCPU;
        snprintf(trials[t].message, sizeof(trials[t].message), "the process died: %s", strsignal(signal_number));
    }
}

static void print_trial(const struct trial *trial) {
    char name[120];
    model_mutant_name(&trial->mutant, name, sizeof(name));
    printf("%-44s %-9s %5.1f s ", name, original(&trial->mutant), trial->seconds);
    if (trial->is_caught) printf(" caught by %-24s %s\n", harnesses[trial->harness]->name, trial->message);
    else if (!is_run(trial->entry)) printf(" not tried: no thread of a harness runs it\n");
    else printf(" SURVIVES%s\n", trial->is_complete ? "" : " (not everything was explored)");
}

/* A process for each processor at a time; rows in the order of sites. */
static void run_trials(struct trial *trials, size_t count) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t begun = 0, printed = 0;
    for (long running = 0; printed < count;) {
        for (; begun < count && running < processors; begun++)
            if (!(trials[begun].is_over = !is_run(trials[begun].entry))) begin_trial(&trials[begun]), running++;
        if (!trials[printed].is_over) end_trial(trials, begun), running--;
        for (; printed < begun && trials[printed].is_over; printed++) print_trial(&trials[printed]);
        fflush(stdout);
    }
}

static int compare_touched(const void *left, const void *right) {
    size_t a = touched_counts[*(const size_t *)left], b = touched_counts[*(const size_t *)right];
    return (a > b) - (a < b);
}

/* Which harness runs what, as far as the first of its executions tell. False when one of them fails. */
static bool survey(void) {
    for (size_t h = 0; h < harness_count; h++) {
        if (!is_asked(harnesses[h])) continue;
        struct model_bounds bounds = bounds_of(harnesses[h]);
        bounds.executions = SURVEYED_EXECUTIONS;
        forget_touched();
        struct model_result result = model_explore(harnesses[h], bounds);
        note_touched(h);
        if (!result.failed) continue;
        printf("%s fails without a mutant: %s\n", harnesses[h]->name, result.message);
        return false;
    }
    for (size_t h = 0; h < harness_count; h++) order[h] = h;
    qsort(order, harness_count, sizeof order[0], compare_touched);
    return true;
}

static bool run_mutants(void) {
    struct model_entry *entries;
    name_tags();
    size_t entry_count = model_entries(&entries), count = 0, survivor_count = 0, idle_count = 0;
    struct trial *trials = map_shared(entry_count * MOST_MUTANTS * sizeof(struct trial));
    if (!survey()) return false;
    for (size_t e = 0; e < entry_count; e++) {
        struct model_mutant mutants[MOST_MUTANTS];
        size_t mutant_count = model_entry_is_in(&entries[e], production) ? model_mutants_of(&entries[e], mutants) : 0;
        for (size_t m = 0; m < mutant_count; m++) trials[count++] = (struct trial){.mutant = mutants[m], .entry = e};
    }
    printf("%-44s %-9s\n", "site:mutant", "original");
    run_trials(trials, count);
    for (size_t t = 0; t < count; t++) {
        bool idle = !is_run(trials[t].entry);
        idle_count += idle;
        survivor_count += !idle && !trials[t].is_caught;
    }
    printf("%zu mutants tried, %zu survive; %zu not tried\n", count - idle_count, survivor_count, idle_count);
    return survivor_count == 0 && (idle_count == 0 || !options.strict);
}

/* Each write to what heaps are made of that harnesses do is one before which some harness forks, but for those by
 * which a child recovers. */
static bool check_forks(void) {
    struct model_entry *entries;
    size_t entry_count = model_entries(&entries), missed_count = 0, count = 0;
    for (size_t e = 0; e < entry_count; e++) {
        const struct model_site *site = entries[e].site;
        if (site == NULL || site->operation == MODEL_LOAD || site->operation == MODEL_FENCE) continue;
        bool is_of_memory = false;
        for (size_t i = 0; i < sizeof memory_layers / sizeof memory_layers[0]; i++)
            is_of_memory = is_of_memory || model_entry_is_in(&entries[e], memory_layers[i]);
        if (!is_of_memory || !is_run(e) || entries[e].recovers) continue;
        count++;
        if (entries[e].stopped) continue;
        missed_count++;
        printf("no fork before %s\n", entries[e].name);
    }
    printf("%zu of %zu writes have a fork before them\n", count - missed_count, count);
    return missed_count == 0;
}

static bool find_mutant(struct model_mutant *found) {
    struct model_entry *entries;
    name_tags();
    size_t entry_count = model_entries(&entries);
    for (size_t e = 0; e < entry_count; e++) {
        struct model_mutant mutants[MOST_MUTANTS];
        char name[120];
        size_t count = model_mutants_of(&entries[e], mutants);
        for (size_t m = 0; m < count; m++) {
            model_mutant_name(&mutants[m], name, sizeof(name));
            if (strcmp(name, options.mutant) == 0) {
                *found = mutants[m];
                return true;
            }
        }
    }
    return false;
}

/* One mutant under every harness, with the schedule that catches it. */
static bool run_mutant(const struct model_mutant *mutant) {
    model_mutant_apply(mutant);
    bool caught = false;
    for (size_t h = 0; h < harness_count; h++) caught |= run_harness(harnesses[h], bounds_of(harnesses[h])).failed;
    model_mutant_revert(mutant);
    printf("%s %s\n", options.mutant, caught ? "caught" : "SURVIVES");
    return caught;
}

static void list(void) {
    struct model_entry *entries;
    name_tags();
    size_t entry_count = model_entries(&entries);
    printf("harnesses:\n");
    for (size_t h = 0; h < harness_count; h++) printf("  %s\n", harnesses[h]->name);
    printf("sites:\n");
    for (size_t e = 0; e < entry_count; e++) {
        const struct model_site *site = entries[e].site;
        printf("  %-44s", entries[e].name);
        if (site) printf(" %s", model_order_name(site->order));
        if (site && site->operation == MODEL_CAS) printf("/%s", model_order_name(site->failure));
        printf("%s\n", model_entry_is_in(&entries[e], production) ? "" : "  (not of the library)");
    }
}

static bool parse_count(const char *text, uint64_t *count) {
    char *end;
    errno = 0;
    *count = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == 0 && errno == 0;
}

static bool parse(int argument_count, char **arguments) {
    for (int i = 1; i < argument_count; i++) {
        const char *name = arguments[i], *value = i + 1 < argument_count ? arguments[i + 1] : "";
        uint64_t count;
        if (strcmp(name, "--mutants") == 0) options.mutants = true;
        else if (strcmp(name, "--strict") == 0) options.strict = true;
        else if (strcmp(name, "--list") == 0) options.list = true;
        else if (strcmp(name, "--deep") == 0) options.deep = true;
        else if (strcmp(name, "--harness") == 0 && *value && ++i) options.harness = value;
        else if (strcmp(name, "--mutant") == 0 && *value && ++i) options.mutant = value;
        else if (strcmp(name, "--preemptions") == 0 && parse_count(value, &count) && count < 1000 && ++i)
            options.preemptions = (int)count;
        else if (strcmp(name, "--stale") == 0 && parse_count(value, &count) && count < 1000 && ++i)
            options.stale = (int)count;
        else if (strcmp(name, "--executions") == 0 && parse_count(value, &count) && count > 0 && ++i)
            options.executions = count;
        else return false;
    }
    return true;
}

int main(int argument_count, char **arguments) {
    if (!parse(argument_count, arguments)) {
        fprintf(stderr,
                "usage: %s [--harness NAME] [--deep] [--preemptions K] [--stale N] [--executions N]\n"
                "       [--mutants [--strict] | --mutant SITE:ORDER | --list]\n",
                arguments[0]);
        return 2;
    }
    for (struct model_harness *h = model_harnesses(); h; h = h->next)
        if (harness_count < HARNESSES && (!options.harness || strcmp(options.harness, h->name) == 0))
            harnesses[harness_count++] = h;
    if (harness_count == 0 || harness_count == HARNESSES) {
        fprintf(stderr, harness_count ? "more harnesses than there is room for\n" : "no such harness\n");
        return 2;
    }
    setrlimit(RLIMIT_DATA, &(struct rlimit){3u << 30, 3u << 30});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (options.list) {
        list();
        return 0;
    }
    if (options.mutant) {
        struct model_mutant mutant;
        if (!find_mutant(&mutant)) {
            fprintf(stderr, "no such mutant: %s (--list shows sites)\n", options.mutant);
            return 2;
        }
        return run_mutant(&mutant) ? 0 : 1;
    }
    if (options.mutants) return run_mutants() ? 0 : 1;
    bool passed = run_all();
    if (options.harness == NULL) passed = check_forks() && passed;
    return passed ? 0 : 1;
}
