/* Memory that runs out: the address space (RLIMIT_AS) or the writable part of it (RLIMIT_DATA). malloc gives NULL and
 * ENOMEM, live blocks keep their contents, and what was had before is to be had again after frees.
 *
 *     exhaust address_space|data|late_address_space|late_data BYTES|mixed|phases
 *     exhaust threads|thread_exit|kept_by_others
 *
 * The late ones meet the limit in a running process; what an allocator has reserved before may be used up first. */
#include "process.h"

#include <pthread.h>

enum { ROUNDS = 3 };

/* A limit small enough to be filled with 16-byte blocks three times in a few seconds. */
#define LIMIT_BYTES (256 * MIB)
/* Where a reservation outlives a late limit, a round ends here. */
#define ROUND_BYTES_MAX (512 * MIB)

static const size_t sizes[] = {16, 64, 1000, 5000, 40000, 300000, 3 * MIB};

static const char *what; /* the second argument */

/* ---- Lists of live blocks, kept in the blocks themselves ---- */

struct block {
    struct block *next;
    uint64_t stamp; /* from the address and the index of the size; also in the last word when there is room */
};

struct list {
    struct block *first;
    size_t bytes;
};

static uint64_t stamp_of(const struct block *block, size_t index) {
    return ((uintptr_t)block * 0x9E3779B97F4A7C15u & ~(uint64_t)15) | index;
}

static uint64_t *last_word(struct block *block, size_t size) {
    return (uint64_t *)(void *)((char *)block + (size - 8) / 8 * 8);
}

static void check(struct block *block) {
    size_t index = block->stamp & 15;
    EXPECT(index < COUNT_OF(sizes) && block->stamp == stamp_of(block, index), "block %p changed", (void *)block);
    EXPECT(*last_word(block, sizes[index]) == block->stamp, "the end of block %p changed", (void *)block);
}

/* One more block of the size; 0 when there is none. */
static int grow(struct list *list, size_t index) {
    errno = 0;
    struct block *block = malloc(sizes[index]);
    if (!block) {
        EXPECT(errno == ENOMEM, "malloc(%zu) gave NULL", sizes[index]);
        return 0;
    }
    EXPECT(is_aligned(block, 16) && owned(block), "malloc(%zu) gave %p", sizes[index], (void *)block);
    block->next = list->first;
    block->stamp = stamp_of(block, index);
    *last_word(block, sizes[index]) = block->stamp;
    list->first = block;
    list->bytes += sizes[index];
    return 1;
}

static void check_list(const struct list *list) {
    for (struct block *block = list->first; block; block = block->next) {
        check(block);
    }
}

/* Frees every block, or every second one first, which leaves holes. */
static void free_list(struct list *list, int holes_first) {
    while (list->first) {
        struct block **at = &list->first;
        while (*at) {
            struct block *block = *at;
            *at = block->next;
            check(block);
            free(block);
            if (holes_first && *at) {
                at = &(*at)->next;
            }
        }
        holes_first = 0;
    }
    list->bytes = 0;
}

/* ---- Exhaustion ---- */

static void fill_with(struct list *list, size_t index) {
    while (list->bytes < ROUND_BYTES_MAX && grow(list, index)) {
    }
}

/* Sizes in turns, as many bytes of each, then every size by itself until nothing more fits. */
static void fill_mixed(struct list *list) {
    uint64_t state = 5;
    size_t bytes[COUNT_OF(sizes)] = {0};
    size_t index = 0;
    while (list->bytes < ROUND_BYTES_MAX && grow(list, index)) {
        bytes[index] += sizes[index];
        size_t other = random_next(&state) % COUNT_OF(sizes);
        index = bytes[other] < bytes[index] ? other : index;
        other = random_next(&state) % COUNT_OF(sizes);
        index = bytes[other] < bytes[index] ? other : index;
    }
    for (index = COUNT_OF(sizes); index-- > 0;) {
        fill_with(list, index);
    }
}

/* With nothing left, every entry point refuses or serves, and leaves what lives alone. */
static void probe(struct list *list, size_t index) {
    size_t size = sizes[index];
    for (int i = 0; i < 50; i++) {
        void *served[5] = {0};
        errno = 0;
        served[0] = malloc(size);
        EXPECT(served[0] || errno == ENOMEM, "malloc");
        errno = 0;
        served[1] = calloc(1, size);
        EXPECT(served[1] || errno == ENOMEM, "calloc");
        errno = 0;
        served[2] = memalign(4096, size);
        EXPECT(served[2] || errno == ENOMEM, "memalign");
        errno = 0;
        served[3] = realloc(NULL, size);
        EXPECT(served[3] || errno == ENOMEM, "realloc");
        int code = posix_memalign(&served[4], 64, size);
        EXPECT(code == (served[4] ? 0 : ENOMEM), "posix_memalign gave %d", code);
        for (size_t s = 0; s < COUNT_OF(served); s++) {
            free(served[s]);
        }
        EXPECT_REFUSED(ENOMEM, realloc(list->first, opaque((size_t)1 << 46)));
        check(list->first);
    }
}

static void expect_as_much(size_t first, size_t again, const char *of) {
    EXPECT(again >= first - first / 10, "%s: %zu bytes at first, %zu after frees", of, first, again);
}

/* Each size after all the others, twice: memory must find its way from one to the next. */
static void phases(void) {
    size_t first[COUNT_OF(sizes)] = {0};
    for (int round = 0; round < 2; round++) {
        for (size_t index = 0; index < COUNT_OF(sizes); index++) {
            struct list list = {0};
            fill_with(&list, index);
            char of[32];
            snprintf(of, sizeof(of), "blocks of %zu", sizes[index]);
            EXPECT(list.bytes > LIMIT_BYTES / 3, "%s: only %zu bytes", of, list.bytes);
            if (round == 0) {
                first[index] = list.bytes;
            }
            expect_as_much(first[index], list.bytes, of);
            free_list(&list, 0);
        }
    }
}

static void exhaust(void) {
    EXPECT(what, "no size given");
    if (!strcmp(what, "phases")) {
        phases();
        return;
    }
    size_t index = 0;
    while (index < COUNT_OF(sizes) && sizes[index] != strtoul(what, NULL, 10)) {
        index++;
    }
    int mixed = !strcmp(what, "mixed");
    EXPECT(mixed || index < COUNT_OF(sizes), "no such size: %s", what);
    size_t first = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct list list = {0};
        if (mixed) {
            fill_mixed(&list);
        } else {
            fill_with(&list, index);
        }
        probe(&list, mixed ? 3 : index);
        check_list(&list);
        EXPECT(list.bytes > LIMIT_BYTES / 3, "only %zu bytes to be had", list.bytes);
        if (round == 0) {
            first = list.bytes;
        }
        expect_as_much(first, list.bytes, what);
        free_list(&list, round == 1);
    }
}

/* ---- Limits that come late ---- */

static void late(int resource, int field) {
    struct list before = {0};
    for (int i = 0; i < 1000; i++) {
        EXPECT(grow(&before, (size_t)i % 4), "malloc before the limit");
    }
    size_t limit_bytes = statm_bytes("/proc/self/statm", field) + LIMIT_BYTES;
    struct rlimit limit = {limit_bytes, limit_bytes};
    EXPECT(!setrlimit((__rlimit_resource_t)resource, &limit), "setrlimit");
    exhaust();
    check_list(&before);
    free_list(&before, 0);
}

static void late_address_space(void) { late(RLIMIT_AS, 0); }

static void late_data(void) { late(RLIMIT_DATA, 5); }

/* ---- Threads whose first malloc finds nothing left ---- */

enum { THREADS = 8 };

static pthread_barrier_t exhausted;
static pthread_barrier_t tried;
static pthread_barrier_t freed;

static void *first_malloc(void *exits_at_once) {
    static const size_t wanted[] = {1, 16, 64, 1024, 5000, 40000, 300000, 3 * MIB};
    struct {
        char *block;
        size_t size;
    } had[3 * COUNT_OF(wanted)];
    size_t count = 0;
    pthread_barrier_wait(&exhausted);
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        for (int entry = 0; entry < 3; entry++) {
            errno = 0;
            char *block = entry == 0 ? malloc(wanted[i]) : entry == 1 ? calloc(1, wanted[i]) : realloc(NULL, wanted[i]);
            EXPECT(block || errno == ENOMEM, "entry %d, %zu bytes", entry, wanted[i]);
            if (block) {
                block[0] = block[wanted[i] - 1] = 'x';
                had[count].size = wanted[i];
                had[count++].block = block;
            }
        }
        free(NULL);
    }
    for (size_t i = 0; i < count; i++) {
        EXPECT(had[i].block[0] == 'x' && had[i].block[had[i].size - 1] == 'x', "block %p changed",
               (void *)had[i].block);
        free(had[i].block);
    }
    pthread_barrier_wait(&tried);
    if (exits_at_once) {
        return NULL;
    }
    pthread_barrier_wait(&freed);
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        char *block = malloc(wanted[i]);
        EXPECT(block, "malloc(%zu) after all was freed", wanted[i]);
        memset(block, 1, wanted[i]);
        free(block);
    }
    return NULL;
}

static void run_threads(int exit_at_once) {
    pthread_t threads[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * KIB);
    pthread_barrier_init(&exhausted, NULL, THREADS + 1);
    pthread_barrier_init(&tried, NULL, THREADS + 1);
    pthread_barrier_init(&freed, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        int code = pthread_create(&threads[i], &attributes, first_malloc, exit_at_once ? &threads : NULL);
        EXPECT(code == 0, "pthread_create gave %d", code);
    }
    struct list list = {0};
    for (size_t index = COUNT_OF(sizes); index-- > 0;) {
        fill_with(&list, index);
    }
    size_t large[] = {MIB, 64 * KIB, 4096, 1};
    void *rest = NULL;
    for (size_t i = 0; i < COUNT_OF(large); i++) { /* a page here or there, also for the sizes the threads ask for */
        for (void **block; (block = malloc(large[i] < 16 ? 16 : large[i]));) {
            *block = rest;
            rest = block;
        }
    }
    pthread_barrier_wait(&exhausted);
    pthread_barrier_wait(&tried);
    for (int i = 0; exit_at_once && i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    check_list(&list);
    pthread_t refused; /* a stack may still fit; if so, that thread must work too */
    if (exit_at_once && pthread_create(&refused, &attributes, (void *(*)(void *))(void *)sched_yield, NULL) == 0) {
        pthread_join(refused, NULL);
    }
    while (rest) {
        void *next = *(void **)rest;
        free(rest);
        rest = next;
    }
    free_list(&list, 0);
    if (!exit_at_once) {
        pthread_barrier_wait(&freed);
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
        }
    }
}

static void threads_start(void) { run_threads(0); }

static void thread_exit(void) { run_threads(1); }

/* ---- What threads keep, and what is free in them, when nothing is left ---- */

static void *fill_and_empty(void *unused) {
    static const size_t kept[] = {64, 1000, 5000, 40000};
    pthread_barrier_wait(&exhausted); /* all threads are there: they need memory, too */
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        struct block *first = NULL, *block;
        for (int count = 0; count < 2000 && (block = malloc(kept[i])) != NULL; count++) {
            block->next = first;
            first = block;
        }
        while ((block = first) != NULL) {
            first = block->next;
            free(block);
        }
    }
    pthread_barrier_wait(&freed);
    pthread_barrier_wait(&tried);
    return unused;
}

/* malloc gives NULL only when malloc_trim would not have helped, whoever has what is free; but for a tenth of a second
 * after it looked everywhere in vain. */
static void kept_by_others(void) {
    static const struct timespec a_tenth = {.tv_nsec = 110 * 1000 * 1000};
    pthread_t threads[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * KIB);
    pthread_barrier_init(&exhausted, NULL, THREADS);
    pthread_barrier_init(&freed, NULL, THREADS + 1);
    pthread_barrier_init(&tried, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], &attributes, fill_and_empty, NULL) == 0, "no thread");
    pthread_barrier_wait(&freed);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct list list = {0};
        nanosleep(&a_tenth, NULL);
        fill_with(&list, i);
        size_t bytes = list.bytes;
        malloc_trim(0);
        fill_with(&list, i);
        EXPECT(list.bytes == bytes, "%zu bytes more of size %zu after malloc_trim", list.bytes - bytes, sizes[i]);
        free_list(&list, 0);
    }
    pthread_barrier_wait(&tried);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"address_space", exhaust},         {"data", exhaust},          {"late_address_space", late_address_space},
        {"late_data", late_data},           {"threads", threads_start}, {"thread_exit", thread_exit},
        {"kept_by_others", kept_by_others},
    };
    what = argc > 2 ? argv[2] : NULL;
    if (argc > 1 && !is_watched()) {
        int resource = !strncmp(argv[1], "late", 4) ? -1 : !strcmp(argv[1], "data") ? RLIMIT_DATA : RLIMIT_AS;
        return run_watched(argv, GIB, resource, LIMIT_BYTES);
    }
    return run_case(argc, argv, cases, COUNT_OF(cases), 55);
}
