/* Phases: threads fill a heap with blocks of one size, hand them round, free each other's, and go on to another size.
 * Afterwards each stage of acquiring a slab has been taken, by the counters of the process itself; and all phases together
 * have taken no more memory than two, and a SuperSlab for each thread. That is what a heap comes to in a thousand phases,
 * and not in a hundred: each size wants its most where another has left it little, and when all meet is chance.
 *
 *     stages [THREADS [PHASES]]
 *
 * The program starts itself again with HAKMEM_STATS, and reads what that writes at its end. Speaks to the standard names, or
 * with STRESS_HAK to hak_*. Exit status 3: the heap is not hakmem's. */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hakmem/hakmem.h"

#ifdef STRESS_HAK
#define HEAP(function) hak_##function
#else
#include <dlfcn.h>
#define HEAP(function) function
#endif

enum {
    THREADS_MAX = 16,
    PHASE_BYTES = 8 << 20,                           /* of all threads */
    MOST_LIVE_BYTES = PHASE_BYTES + PHASE_BYTES / 4, /* with what stays of the phase before */
    SUPER_SLAB_BYTES = 2 << 20,
    BLOCKS_MAX = PHASE_BYTES / 16,
};

static const size_t sizes[] = {64, 1024, 16, 8192, 256, 32768, 48, 2048, 640, 12288};
enum { SIZE_COUNT = sizeof sizes / sizeof sizes[0] };

static uint64_t *blocks[THREADS_MAX][BLOCKS_MAX];
static pthread_barrier_t barrier;
static unsigned thread_count = 4, phase_count = 100;
static int (*ask_stats)(struct hak_statistics *, size_t);

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    exit(1);
}

/* ---- Phases -------------------------------------------------------------------------------------------------------- */

static size_t blocks_per_thread(unsigned phase) { return PHASE_BYTES / thread_count / sizes[phase % SIZE_COUNT]; }

static void fill_share(unsigned phase, unsigned thread) {
    size_t count = blocks_per_thread(phase), size = sizes[phase % SIZE_COUNT];
    for (size_t i = 0; i < count; i++) {
        uint64_t *block = HEAP(malloc)(size);
        if (block == NULL) fail("phase %u: no memory for %zu bytes\n", phase, size);
        block[0] = (uint64_t)(uintptr_t)block ^ phase;
        block[size / 8 - 1] = block[0];
        blocks[thread][i] = block;
    }
}

/* Every fourth block stays, from phase to phase, until the one after. */
static void free_share(unsigned phase, unsigned thread, bool rest) {
    size_t count = blocks_per_thread(phase), size = sizes[phase % SIZE_COUNT];
    for (size_t i = 0; i < count; i++) {
        uint64_t *block = blocks[thread][i];
        if ((i % 4 == 3) != rest) continue;
        if (block[0] != ((uint64_t)(uintptr_t)block ^ phase) || block[size / 8 - 1] != block[0])
            fail("phase %u: block %p has changed\n", phase, (void *)block);
        HEAP(free)(block);
    }
}

static void *live(void *argument) {
    unsigned thread = (unsigned)(uintptr_t)argument;
    for (unsigned phase = 0; phase < phase_count; phase++) {
        fill_share(phase, thread);
        pthread_barrier_wait(&barrier);
        free_share(phase, (thread + phase) % thread_count, false); /* often another thread's */
        pthread_barrier_wait(&barrier);
        free_share(phase, thread, true);
        pthread_barrier_wait(&barrier); /* the main thread looks at the heap */
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static struct hak_statistics look(void) {
    struct hak_statistics stats;
    if (ask_stats(&stats, sizeof stats) != 0) fail("hak_stats failed\n");
    return stats;
}

static void run_phases(void) {
    pthread_t threads[THREADS_MAX];
    struct hak_statistics stats = {0};
    uint64_t most_committed = 2 * MOST_LIVE_BYTES + (uint64_t)(thread_count + 1) * SUPER_SLAB_BYTES;
    uint64_t most_mapped = most_committed + most_committed / 8; /* with tables */
    pthread_barrier_init(&barrier, NULL, thread_count + 1);
    for (unsigned i = 0; i < thread_count; i++)
        if (pthread_create(&threads[i], NULL, live, (void *)(uintptr_t)i) != 0) fail("no thread\n");
    for (unsigned phase = 0; phase < phase_count; phase++) {
        for (int i = 0; i < 3; i++) pthread_barrier_wait(&barrier);
        stats = look();
        if (stats.committed_bytes > most_committed || stats.mapped_bytes > most_mapped)
            fail("phase %u: %llu bytes mapped, %llu committed; %llu and %llu may be\n", phase,
                 (unsigned long long)stats.mapped_bytes, (unsigned long long)stats.committed_bytes,
                 (unsigned long long)most_mapped, (unsigned long long)most_committed);
        pthread_barrier_wait(&barrier);
    }
    for (unsigned i = 0; i < thread_count; i++) pthread_join(threads[i], NULL);
    printf("stages: %u phases, %llu MiB committed\n", phase_count, (unsigned long long)(stats.committed_bytes >> 20));
}

/* ---- Stages -------------------------------------------------------------------------------------------------------- */

static unsigned long long counter(const char *json, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *found = strstr(json, key);
    if (found == NULL) fail("the statistics have no %s:\n%s\n", name, json);
    return strtoull(found + strlen(key), NULL, 10);
}

static void check_statistics(const char *path) {
    static const char *const stages[] = {"slabs_pool_partial", "slabs_own_empty", "slabs_pool_empty", "slabs_fresh",
                                         "slabs_super"};
    static char json[64 << 10];
    FILE *file = fopen(path, "re");
    if (file == NULL) fail("no statistics in %s\n", path);
    json[fread(json, 1, sizeof json - 1, file)] = '\0';
    fclose(file);
    unlink(path);
    /* Where frees go to their slabs, all slabs of a phase are empty at its end, but for blocks that a malloc has taken ahead:
     * and those a thread that misses little gives back, when hakmem's thread asks for them. */
    bool may_lack_partial = counter(json, "direct_free_mode") != 0;
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        printf("stages: %s %llu\n", stages[i], counter(json, stages[i]));
        if (i == 0 && may_lack_partial) continue;
        if (counter(json, stages[i]) == 0) fail("no slab was acquired as %s\n", stages[i]);
    }
    if (counter(json, "remote_frees") == 0) fail("no block was freed by another thread\n");
    unsigned long long small = 0;
    if (counter(json, "refilled_blocks") < counter(json, "flushed_blocks")) fail("more blocks went back than came\n");
    small = counter(json, "refilled_blocks") - counter(json, "flushed_blocks");
    if (small + counter(json, "large_blocks") != counter(json, "live_blocks") + counter(json, "cached_blocks"))
        fail("%llu small blocks are out, but %llu are live and %llu cached\n", small, counter(json, "live_blocks"),
             counter(json, "cached_blocks"));
}

static void prove_takeover(void) {
    int (*owns)(const void *) = NULL;
#ifdef STRESS_HAK
    owns = hak_owns;
    ask_stats = hak_stats;
#else
    *(void **)&owns = dlsym(RTLD_DEFAULT, "hak_owns");
    *(void **)&ask_stats = dlsym(RTLD_DEFAULT, "hak_stats");
#endif
    void *block = HEAP(malloc)(1);
    if (owns == NULL || ask_stats == NULL || owns(block) != 1) {
        fprintf(stderr, "this process does not run on hakmem\n");
        exit(3);
    }
    HEAP(free)(block);
}

static int run_counted(char **argv, const char *path) {
    char setting[64];
    int status = -1;
    snprintf(setting, sizeof setting, "json:%s", path);
    pid_t child = fork();
    if (child == 0) {
        setenv("HAKMEM_STATS", setting, 1);
        setenv("STAGES_INNER", "1", 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv) {
    if (argc > 1) thread_count = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2) phase_count = (unsigned)strtoul(argv[2], NULL, 10);
    if (thread_count < 1 || thread_count > THREADS_MAX) fail("1 to %d threads\n", THREADS_MAX);
    if (getenv("STAGES_INNER") != NULL) {
        prove_takeover();
        run_phases();
        return 0;
    }
    char path[] = "stages-XXXXXX";
    int descriptor = mkstemp(path);
    if (descriptor < 0) fail("no file for the statistics\n");
    close(descriptor);
    int status = run_counted(argv, path);
    if (status == 0) check_statistics(path);
    unlink(path);
    return status;
}
