/* malloc where libc holds locks of its own: hakmem's thread begins in none of these calls. In each case a second thread, whose
 * mallocs are all libc's, makes the one from which on the process has what that thread needs. */
#include "churn.h"

#include <malloc.h>
#include <sched.h>

enum { BLOCKS = 60, BYTES = 200000, THREAD_LOCAL_BYTES = 300 << 10, MANY = 200000 };

/* More than the stack that hakmem asks for at first. */
static _Thread_local volatile char thread_locals[THREAD_LOCAL_BYTES];

static void *return_at_once(void *unused) {
    thread_locals[THREAD_LOCAL_BYTES - 1] = 1;
    return unused;
}

static void *create_by_defaults(void *unused) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, return_at_once, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    return unused;
}

static void *read_defaults(void *unused) {
    pthread_attr_t attributes;
    expect(pthread_getattr_default_np(&attributes) == 0, "no defaults");
    pthread_attr_destroy(&attributes);
    return unused;
}

/* Defaults with a set of processors, which libc copies into memory of malloc's, with a lock held. */
static void set_defaults(void) {
    pthread_attr_t attributes;
    cpu_set_t processors;
    expect(sched_getaffinity(0, sizeof processors, &processors) == 0, "no processors");
    pthread_attr_init(&attributes);
    pthread_attr_setaffinity_np(&attributes, sizeof processors, &processors);
    pthread_attr_setstacksize(&attributes, 8 << 20);
    expect(pthread_setattr_default_np(&attributes) == 0, "no defaults");
    pthread_attr_destroy(&attributes);
}

static void run_in_a_thread(void *(*run)(void *)) {
    static char *blocks[BLOCKS];
    set_defaults();
    for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(BYTES), 1, BYTES);
    pthread_t thread;
    expect(pthread_create(&thread, NULL, run, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

static void create(void) { run_in_a_thread(create_by_defaults); }
static void defaults(void) { run_in_a_thread(read_defaults); }

static int count_threads(void) {
    char text[4096] = "";
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    const char *line = length > 0 ? strstr(text, "\nThreads:") : NULL;
    return line == NULL ? 0 : atoi(line + strlen("\nThreads:"));
}

static void *only_copy(void *copies) {
    char **copy = copies;
    for (int i = 0; i < MANY; i++) copy[i] = strdup("a string of some length, so that there are 8 MiB of them");
    expect(count_threads() == 2, "%d threads after mallocs of libc's", count_threads());
    for (int i = 0; i < MANY; i++) free(copy[i]);
    for (int i = 0; i < BLOCKS; i++) copy[i] = malloc(BYTES);
    expect(count_threads() > 2, "no thread of hakmem's after the program's own");
    for (int i = 0; i < BLOCKS; i++) free(copy[i]);
    return NULL;
}

/* Every function of the program's own begins the thread. */
static void *grow_by_malloc(void *block) { return free(block), malloc(BYTES); }
static void *grow_by_calloc(void *block) { return free(block), calloc(1, BYTES); }
static void *grow_by_realloc(void *block) { return realloc(block, malloc_usable_size(block) + BYTES / 2); }
static void *grow_by_small_realloc(void *block) {
    return realloc(block, (malloc_usable_size(block) + 100) % 30000 + 16);
}
static void *grow_by_aligned_alloc(void *block) { return free(block), aligned_alloc(4096, BYTES); }
static void *grow_by_memalign(void *block) { return free(block), memalign(1 << 16, BYTES); }
static void *grow_by_posix_memalign(void *block) {
    free(block);
    return posix_memalign(&block, 64, 3000) == 0 ? block : NULL;
}

enum { KEPT = 100 };
static void *kept[KEPT]; /* the main thread's at first */

static void *grow_until_there(void *grow) {
    void *(*by)(void *) = *(void *(**)(void *))grow;
    for (int i = 0; i < MANY && count_threads() == 2; i++) kept[i % KEPT] = by(kept[i % KEPT]);
    expect(count_threads() > 2, "no thread of hakmem's");
    for (int i = 0; i < KEPT; i++) free(kept[i]);
    return NULL;
}

static void by_each(void *(*by)(void *)) {
    static char *copy[MANY];
    for (int i = 0; i < MANY; i++) copy[i] = strdup("a string of some length, so that there are 8 MiB of them");
    for (int i = 0; i < KEPT; i++) kept[i] = malloc(BYTES / 2);
    pthread_t thread;
    expect(pthread_create(&thread, NULL, grow_until_there, &by) == 0, "no thread");
    pthread_join(thread, NULL);
    for (int i = 0; i < MANY; i++) free(copy[i]);
}

static void by_malloc(void) { by_each(grow_by_malloc); }
static void by_calloc(void) { by_each(grow_by_calloc); }
static void by_realloc(void) { by_each(grow_by_realloc); }
static void by_small_realloc(void) { by_each(grow_by_small_realloc); }
static void by_aligned_alloc(void) { by_each(grow_by_aligned_alloc); }
static void by_memalign(void) { by_each(grow_by_memalign); }
static void by_posix_memalign(void) { by_each(grow_by_posix_memalign); }

static void copies(void) {
    static char *copy[MANY];
    pthread_t thread;
    free(malloc(1));
    expect(pthread_create(&thread, NULL, only_copy, copy) == 0, "no thread");
    pthread_join(thread, NULL);
}

static const struct hak_case cases[] = {
    {.name = "create", .run = create, .seconds = 60, .memory_mib = 512},
    {.name = "defaults", .run = defaults, .seconds = 60, .memory_mib = 512},
    {.name = "copies", .run = copies, .seconds = 60, .memory_mib = 512},
    {.name = "by-malloc", .run = by_malloc, .seconds = 60, .memory_mib = 512},
    {.name = "by-calloc", .run = by_calloc, .seconds = 60, .memory_mib = 512},
    {.name = "by-realloc", .run = by_realloc, .seconds = 60, .memory_mib = 2048},
    {.name = "by-small-realloc", .run = by_small_realloc, .seconds = 60, .memory_mib = 512},
    {.name = "by-aligned-alloc", .run = by_aligned_alloc, .seconds = 60, .memory_mib = 512},
    {.name = "by-memalign", .run = by_memalign, .seconds = 60, .memory_mib = 512},
    {.name = "by-posix-memalign", .run = by_posix_memalign, .seconds = 60, .memory_mib = 512},
};

CASE_MAIN(cases)
