/* Threads that come and go: what they leave behind stays intact, and nothing of them stays that isn't needed. */
#include <limits.h>

#include "churn.h"

static void *start_and_join(void *(*run)(void *), void *argument) {
    pthread_t thread;
    void *result;
    expect(pthread_create(&thread, NULL, run, argument) == 0, "no thread");
    expect(pthread_join(thread, &result) == 0, "no join");
    return result;
}

/* ---- Blocks that outlive their thread -------------------------------------------------------------------------- */

enum { LEGACY = 2000 };

struct legacy {
    unsigned char *blocks[LEGACY];
    size_t sizes[LEGACY];
    unsigned char tag;
};

static void *legacy_leave(void *argument) {
    struct legacy *legacy = argument;
    uint64_t random = legacy->tag + 1u;
    for (int i = 0; i < LEGACY; i++) {
        legacy->sizes[i] = churn_size(&random, 4096);
        legacy->blocks[i] = malloc(legacy->sizes[i]);
        expect(legacy->blocks[i], "no memory");
        memset(legacy->blocks[i], legacy->tag, legacy->sizes[i]);
    }
    return NULL;
}

static void legacy_check(const struct legacy *legacy, int i) {
    expect(churn_is_filled(legacy->blocks[i], legacy->sizes[i], legacy->tag), "a dead thread's block has changed");
}

/* Reads all, grows every second one, frees half of them. */
static void *legacy_use(void *argument) {
    struct legacy *legacy = argument;
    for (int i = 0; i < LEGACY; i++) {
        legacy_check(legacy, i);
        if (i % 2 == 0) {
            size_t size = legacy->sizes[i];
            legacy->blocks[i] = realloc(legacy->blocks[i], size * 2);
            expect(legacy->blocks[i], "no memory");
            legacy_check(legacy, i);
            memset(legacy->blocks[i], legacy->tag, legacy->sizes[i] = size * 2);
        }
        if (i % 4 < 2) {
            free(legacy->blocks[i]);
            legacy->blocks[i] = NULL;
        }
    }
    return NULL;
}

static void run_inherit(void) {
    static struct legacy legacies[2];
    size_t settled = 0;
    for (unsigned round = 0; round < 300; round++) {
        for (int i = 0; i < 2; i++) {
            legacies[i].tag = (unsigned char)(round * 2 + (unsigned)i);
            start_and_join(legacy_leave, &legacies[i]);
        }
        start_and_join(legacy_use, &legacies[0]);
        start_and_join(legacy_use, &legacies[1]);
        for (int i = 0; i < LEGACY; i++) {
            for (int j = 0; j < 2; j++) {
                if (legacies[j].blocks[i]) legacy_check(&legacies[j], i);
                free(legacies[j].blocks[i]);
            }
        }
        if (round == 100) settled = case_rss_bytes();
    }
    size_t growth_kib = case_growth_kib(settled, case_rss_bytes());
    case_print(1, "200 rounds: RSS + %zu KiB", growth_kib);
    expect(growth_kib < 4 << 10, "blocks of dead threads are not used again: RSS + %zu KiB", growth_kib);
}

/* ---- Many threads ---------------------------------------------------------------------------------------------- */

static void *short_life(void *seed) {
    churn_once((uintptr_t)seed, 60, 4096);
    return NULL;
}

static size_t sequential_growth_kib(unsigned warm_count, unsigned count) {
    for (uintptr_t i = 0; i < warm_count; i++) start_and_join(short_life, (void *)i);
    size_t settled = case_rss_bytes();
    for (uintptr_t i = 0; i < count; i++) start_and_join(short_life, (void *)i);
    size_t growth_kib = case_growth_kib(settled, case_rss_bytes());
    case_print(1, "%u threads one after another: RSS + %zu KiB", count, growth_kib);
    return growth_kib;
}

static void run_sequential(void) {
    size_t growth_kib = sequential_growth_kib(1, 10000);
    expect(growth_kib < 32 << 10, "RSS + %zu KiB", growth_kib);
}

static void run_sequential_flat(void) {
    size_t growth_kib = sequential_growth_kib(2000, 100000);
    expect(growth_kib < 2 << 10, "RSS + %zu KiB", growth_kib);
}

enum { ALIVE = 2000 };

static pthread_barrier_t alive_barrier;

static void *alive_run(void *nothing) {
    char *block = malloc(64);
    expect(block, "no memory");
    memset(block, 1, 64);
    pthread_barrier_wait(&alive_barrier);
    pthread_barrier_wait(&alive_barrier);
    free(block);
    return nothing;
}

static void run_alive(void) {
    static pthread_t threads[ALIVE];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    pthread_barrier_init(&alive_barrier, NULL, ALIVE + 1);
    size_t before = case_rss_bytes();
    for (int i = 0; i < ALIVE; i++) {
        int error = pthread_create(&threads[i], &attributes, alive_run, NULL);
        if (error == EAGAIN) skip("this machine allows %d threads only", i);
        expect(error == 0, "no thread: %d", error);
    }
    pthread_barrier_wait(&alive_barrier);
    size_t each_kib = case_growth_kib(before, case_rss_bytes()) / ALIVE;
    case_print(1, "%d threads alive with one 64-byte block: RSS + %zu KiB each", ALIVE, each_kib);
    pthread_barrier_wait(&alive_barrier);
    for (int i = 0; i < ALIVE; i++) pthread_join(threads[i], NULL);
    expect(each_kib < 64, "%zu KiB of RSS for a thread", each_kib);
}

/* ---- Destructors of thread-specific data ----------------------------------------------------------------------- */

/* Enough keys that their values need a second table, which libc allocates and frees after the last destructor. One is
 * made before the allocator can have made its own, the others after. */
enum { KEYS = 40 };

static pthread_key_t keys[1 + KEYS];
static atomic_uint destructor_calls;

struct keyed {
    pthread_key_t key;
    unsigned rounds;
    char payload[200];
};

static struct keyed *keyed_make(pthread_key_t key, unsigned rounds) {
    struct keyed *keyed = malloc(sizeof *keyed);
    expect(keyed, "no memory");
    memset(keyed, (int)rounds, sizeof *keyed);
    keyed->key = key;
    keyed->rounds = rounds;
    return keyed;
}

/* Sets a new value as often as there are rounds, so that the last blocks come after every other destructor. */
static void keyed_destroy(void *value) {
    struct keyed *keyed = value;
    atomic_fetch_add(&destructor_calls, 1);
    churn_once(keyed->key + 1, 20, 4096);
    if (keyed->rounds + 1 < PTHREAD_DESTRUCTOR_ITERATIONS) {
        pthread_setspecific(keyed->key, keyed_make(keyed->key, keyed->rounds + 1));
    }
    expect(churn_is_filled((unsigned char *)keyed->payload, sizeof keyed->payload, (unsigned char)keyed->rounds),
           "the value has changed");
    free(keyed);
}

static void make_first_key(void) { pthread_key_create(&keys[0], keyed_destroy); }
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = make_first_key;

static void *keyed_life(void *all_keys) {
    for (int i = 0; i <= KEYS; i++) {
        if (all_keys || i % 10 == 0) pthread_setspecific(keys[i], keyed_make(keys[i], 0));
    }
    return NULL;
}

/* Runs threads of one kind until the heap has settled, then 2,000 more, which must leave nothing. */
static void expect_no_leak(void *(*life)(void *), void *argument) {
    struct hak_statistics before = {0}, after = {0};
    for (int i = 0; i < 300; i++) start_and_join(life, argument);
    size_t settled = case_rss_bytes();
    bool counted = case_stats(&before);
    for (int i = 0; i < 2000; i++) start_and_join(life, argument);
    if (counted) case_stats(&after);
    size_t growth_kib = case_growth_kib(settled, case_rss_bytes());
    case_print(1, "2000 threads: RSS + %zu KiB, live blocks %+lld, heaps %+lld", growth_kib,
               (long long)(after.live_blocks - before.live_blocks), (long long)(after.heaps - before.heaps));
    expect(growth_kib < 1 << 10, "RSS + %zu KiB", growth_kib);
    expect(after.live_blocks < before.live_blocks + 100, "%llu blocks leaked",
           (unsigned long long)(after.live_blocks - before.live_blocks));
    expect(after.heaps < before.heaps + 10, "%llu heaps leaked", (unsigned long long)(after.heaps - before.heaps));
}

static void run_key_destructors(void) {
    for (int i = 1; i <= KEYS; i++) expect(pthread_key_create(&keys[i], keyed_destroy) == 0, "no key");
    expect_no_leak(keyed_life, NULL);
    expect(atomic_load(&destructor_calls) == 2300u * 5 * PTHREAD_DESTRUCTOR_ITERATIONS, "%u destructor calls",
           atomic_load(&destructor_calls));
    expect_no_leak(keyed_life, keys);
}

/* What `thread_local` objects of C++ become: libc allocates the list of them. */
extern int __cxa_thread_atexit_impl(void (*destroy)(void *), void *object, void *library);
extern void *__dso_handle;

static void object_destroy(void *object) {
    churn_once((uintptr_t)object, 30, 4096);
    free(object);
}

static void *object_life(void *nothing) {
    for (int i = 0; i < 20; i++) {
        void *object = malloc(300);
        expect(object && __cxa_thread_atexit_impl(object_destroy, object, &__dso_handle) == 0, "no memory");
    }
    return nothing;
}

static void run_object_destructors(void) { expect_no_leak(object_life, NULL); }

/* libc's own blocks of a thread, freed after all destructors. */
static void *libc_life(void *nothing) {
    expect(strerror(123456), "no text");
    expect(!dlopen("/no such library", RTLD_NOW) && dlerror(), "no error");
    free(malloc(100));
    return nothing;
}

static void run_libc_buffers(void) { expect_no_leak(libc_life, NULL); }

static const struct hak_case cases[] = {
    {.name = "inherit", .run = run_inherit, .seconds = 120, .memory_mib = 512},
    {.name = "sequential", .run = run_sequential, .seconds = 120, .memory_mib = 512},
    {.name = "sequential-flat", .run = run_sequential_flat, .seconds = 600, .memory_mib = 512},
    {.name = "alive", .run = run_alive, .seconds = 120, .memory_mib = 2048},
    {.name = "key-destructors", .run = run_key_destructors, .seconds = 120, .memory_mib = 512},
    {.name = "object-destructors", .run = run_object_destructors, .seconds = 120, .memory_mib = 512},
    {.name = "libc-buffers", .run = run_libc_buffers, .seconds = 120, .memory_mib = 512},
};

CASE_MAIN(cases)
