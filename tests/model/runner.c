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
static bool *touched[HARNESSES];             /* by entry */
static uint64_t execution_counts[HARNESSES]; /* without a mutant */

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
static struct model_result run_harness(const struct model_harness *harness) {
    struct model_bounds bounds = bounds_of(harness);
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

static bool run_all(void) {
    struct model_entry *entries;
    bool passed = true;
    name_tags();
    size_t entry_count = model_entries(&entries);
    for (size_t h = 0; h < harness_count; h++) {
        for (size_t e = 0; e < entry_count; e++) entries[e].touched = false;
        struct model_result result = run_harness(harnesses[h]);
        passed = passed && !result.failed && result.complete;
        execution_counts[h] = result.executions;
        touched[h] = calloc(entry_count + 1, sizeof(bool));
        for (size_t e = 0; touched[h] && e < entry_count; e++) touched[h][e] = entries[e].touched;
    }
    return passed;
}

/* In a process of its own: a mutant may do anything. */
static struct model_result explore_apart(const struct model_harness *harness) {
    struct model_result result = {0};
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0) {
        perror("pipe");
        exit(2);
    }
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        setrlimit(RLIMIT_CPU, &(struct rlimit){1800, 1800});
        result = model_explore(harness, bounds_of(harness));
        _exit(write(ends[1], &result, sizeof(result)) == (ssize_t)sizeof(result) ? 0 : 3);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], &result, sizeof(result));
    close(ends[0]);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (length != (ssize_t)sizeof(result)) {
        result = (struct model_result){0};
        int signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        result.failed = signal_number != 0 && signal_number != SIGKILL && signal_number != SIGXCPU;
        snprintf(result.message, sizeof(result.message), "the process died: %s",
                 signal_number ? strsignal(signal_number) : "no result");
    }
    return result;
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
        if (touched[h][entry]) return true;
    return false;
}

static int compare_costs(const void *left, const void *right) {
    uint64_t a = execution_counts[*(const size_t *)left], b = execution_counts[*(const size_t *)right];
    return (a > b) - (a < b);
}

/* The cheapest harnesses are asked first; with --deep, only those that do more then. */
static bool is_caught(const struct model_mutant *mutant, size_t entry, bool *all_complete) {
    size_t order[HARNESSES];
    for (size_t h = 0; h < harness_count; h++) order[h] = h;
    qsort(order, harness_count, sizeof order[0], compare_costs);
    for (size_t i = 0; i < harness_count; i++) {
        size_t h = order[i];
        if (!touched[h][entry] || (options.deep && !harnesses[h]->is_deep)) continue;
        model_mutant_apply(mutant);
        struct model_result result = explore_apart(harnesses[h]);
        model_mutant_revert(mutant);
        if (result.failed) {
            printf(" caught by %-24s %s\n", harnesses[h]->name, result.message);
            return true;
        }
        *all_complete = *all_complete && result.complete;
    }
    return false;
}

/* Prints one row; true when some harness caught it: if none does, one of those that take long, at last. */
static bool try_mutant(const struct model_mutant *mutant, size_t entry) {
    bool all_complete = true, caught = is_caught(mutant, entry, &all_complete);
    if (!caught) {
        options.deep = true;
        caught = is_caught(mutant, entry, &all_complete);
        options.deep = false;
    }
    if (caught) return true;
    printf(" SURVIVES%s\n", all_complete ? "" : " (not everything was explored)");
    return false;
}

static bool run_mutants(void) {
    struct model_entry *entries;
    size_t entry_count = model_entries(&entries), mutant_count = 0, survivor_count = 0, idle_count = 0;
    printf("\n%-44s %-9s\n", "site:mutant", "original");
    for (size_t e = 0; e < entry_count; e++) {
        struct model_mutant mutants[4];
        size_t count = model_entry_is_in(&entries[e], production) ? model_mutants_of(&entries[e], mutants) : 0;
        for (size_t m = 0; m < count; m++) {
            char name[120];
            model_mutant_name(&mutants[m], name, sizeof(name));
            printf("%-44s %-9s", name, original(&mutants[m]));
            if (is_run(e)) {
                mutant_count++;
                survivor_count += !try_mutant(&mutants[m], e);
            } else {
                idle_count++;
                printf(" not tried: no thread of a harness runs it\n");
            }
        }
    }
    printf("%zu mutants tried, %zu survive; %zu not tried\n", mutant_count, survivor_count, idle_count);
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
        struct model_mutant mutants[4];
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
    for (size_t h = 0; h < harness_count; h++) caught |= run_harness(harnesses[h]).failed;
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
    setrlimit(RLIMIT_DATA, &(struct rlimit){1u << 30, 1u << 30});
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
    bool passed = run_all();
    if (options.harness == NULL) passed = check_forks() && passed;
    if (passed && options.mutants) passed = run_mutants();
    return passed ? 0 : 1;
}
