/* System calls that fail now and then, in a process that goes on: the first one, the second, every third, all; of each
 * kind that the allocator makes, and of all kinds. Three threads make, resize, check and free blocks of all sizes, and
 * give memory back; meanwhile calls are refused. A request that fails says ENOMEM and changes nothing; no block is
 * lost or damaged; and when the kernel takes part again, all of them can be freed, none is left over, and their memory
 * goes back.
 *
 *     faults churn CALLS ERRNO     CALLS as in "mmap,mremap", or "all"
 *     faults no_thread             no thread can be started: memory goes back without the background thread
 */
#include "supervise.h"

#include "hakmem/hakmem.h"

#include <dirent.h>
#include <pthread.h>

#define WATCHED_CALLS "mmap,munmap,mremap,mprotect,madvise,clone,clone3"

enum { WORKERS = 3, SLOTS = 64, STEPS = 100, DENSE_BLOCKS = 700, EXIT_NOTHING_REFUSED = 42 };

static const char *calls;
static int code;

/* ---- Checked blocks ---- */

struct slot {
    unsigned char *block;
    size_t size;
    unsigned char tag;
};

struct worker {
    struct slot slots[SLOTS];
    uint64_t random;
    size_t failed; /* requests */
};

static struct worker workers[WORKERS];

/* Both ends of a block, and here and there between. */
static size_t next_checked(size_t i, size_t size) { return i < 128 || i + 128 >= size ? i + 1 : i + 30011; }

static void fill(const struct slot *slot) {
    for (size_t i = 0; i < slot->size; i = next_checked(i, slot->size)) {
        slot->block[i] = (unsigned char)(slot->tag + i);
    }
}

/* The first `size` bytes of what fill wrote. */
static void check(const unsigned char *block, size_t size, const struct slot *filled) {
    for (size_t i = 0; i < size; i = next_checked(i, filled->size)) {
        EXPECT(block[i] == (unsigned char)(filled->tag + i), "block of %zu bytes changed at %zu", filled->size, i);
    }
}

static size_t pick_size(uint64_t *random) {
    return random_size(random, 1, random_next(random) % 50 ? 4 * MIB : 40 * MIB);
}

static void make(struct worker *worker, struct slot *slot) {
    uint64_t how = random_next(&worker->random) % 8;
    size_t size = pick_size(&worker->random);
    errno = 0;
    unsigned char *block = how == 0   ? calloc(1, size)
                           : how == 1 ? memalign((size_t)64 << size % 8, size)
                                      : malloc(size);
    *slot = (struct slot){block, size, (unsigned char)random_next(&worker->random)};
    if (!block) {
        EXPECT(errno == ENOMEM, "%zu bytes: NULL", size);
        worker->failed++;
        return;
    }
    for (size_t i = 0; how == 0 && i < size; i = next_checked(i, size)) {
        EXPECT(block[i] == 0, "calloc(1, %zu) is not zero at %zu", size, i);
    }
    fill(slot);
}

static void resize(struct worker *worker, struct slot *slot) {
    size_t size = random_next(&worker->random) % 2 && slot->size < 20 * MIB ? slot->size + slot->size / 2 + 1
                                                                            : pick_size(&worker->random);
    errno = 0;
    unsigned char *block = realloc(slot->block, size);
    if (!block) {
        EXPECT(errno == ENOMEM, "realloc from %zu to %zu gave NULL", slot->size, size);
        check(slot->block, slot->size, slot);
        worker->failed++;
        return;
    }
    check(block, size < slot->size ? size : slot->size, slot);
    slot->block = block;
    slot->size = size;
    fill(slot);
}

static void drop(struct slot *slot) {
    check(slot->block, slot->size, slot);
    errno = 1234;
    free(slot->block);
    EXPECT(errno == 1234, "free of %zu bytes changed errno", slot->size);
    slot->block = NULL;
}

/* A heap that grows densely, and then is nothing but holes. */
static void grow_and_free(struct worker *worker) {
    void *blocks[DENSE_BLOCKS];
    for (size_t i = 0; i < DENSE_BLOCKS; i++) {
        errno = 0;
        blocks[i] = malloc(32 * KIB);
        EXPECT(blocks[i] || errno == ENOMEM, "32 KiB: NULL");
        if (blocks[i]) {
            memset(blocks[i], 1, 32 * KIB);
        } else {
            worker->failed++;
        }
    }
    for (size_t i = 0; i < DENSE_BLOCKS; i++) {
        free(blocks[i]);
    }
    malloc_trim(0);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (size_t i = 0; i < STEPS; i++) {
        struct slot *slot = &worker->slots[random_next(&worker->random) % SLOTS];
        if (!slot->block) {
            make(worker, slot);
        } else if (random_next(&worker->random) % 3) {
            drop(slot);
        } else {
            resize(worker, slot);
        }
        if (i % 32 == 25) {
            malloc_trim(0);
        }
    }
    if (worker == &workers[0]) {
        grow_and_free(worker);
    }
    return NULL;
}

/* ---- Rounds ---- */

static struct hak_statistics statistics(void) {
    static int (*fill_in)(struct hak_statistics *, size_t);
    struct hak_statistics stats = {0};
    if (!fill_in) {
        *(void **)&fill_in = dlsym(RTLD_DEFAULT, "hak_stats");
    }
    EXPECT(fill_in && fill_in(&stats, sizeof stats) == 0, "hak_stats");
    return stats;
}

/* In threads; those that can't be started have their work done here. Returns how many requests failed. */
static size_t work_together(void) {
    pthread_t threads[WORKERS];
    int started[WORKERS];
    size_t failed = 0;
    for (size_t i = 0; i < WORKERS; i++) {
        workers[i].failed = 0;
        started[i] = i > 0 && pthread_create(&threads[i], NULL, work, &workers[i]) == 0;
    }
    for (size_t i = 0; i < WORKERS; i++) {
        if (!started[i]) {
            work(&workers[i]);
        }
    }
    for (size_t i = 0; i < WORKERS; i++) {
        if (started[i]) {
            pthread_join(threads[i], NULL);
        }
        failed += workers[i].failed;
    }
    return failed;
}

static void free_all(void) {
    for (size_t i = 0; i < WORKERS; i++) {
        for (size_t j = 0; j < SLOTS; j++) {
            if (workers[i].slots[j].block) {
                drop(&workers[i].slots[j]);
            }
        }
    }
}

/* Blocks and memory that are left when all was freed. */
struct rest {
    uint64_t live_blocks;
    size_t resident_bytes;
};

static struct rest look(void) {
    malloc_trim(0);
    return (struct rest){statistics().live_blocks, resident_bytes()};
}

/* Calls of the list fail: number `first` and every `step`th after it, up to `last`. Returns how many did. */
static size_t run_round(uint64_t refused_calls, size_t first, size_t last, size_t step) {
    struct rest before = look();
    supervised_refuse(refused_calls, first, last, step, code);
    size_t failed = work_together();
    size_t refused = supervised_refused();
    supervised_refuse_nothing();
    EXPECT(refused || !failed, "%zu requests failed, with no call refused", failed);
    EXPECT(work_together() == 0, "requests fail, after %zu calls from number %zu on were refused", refused, first);
    free_all();
    struct rest after = look();
    /* The C library keeps what belongs to the stacks of threads that have ended; hakmem its records. */
    EXPECT(after.live_blocks <= before.live_blocks + 2 * WORKERS, "%lu live blocks instead of %lu (%zu, %zu)",
           (unsigned long)after.live_blocks, (unsigned long)before.live_blocks, first, step);
    EXPECT(after.resident_bytes < before.resident_bytes + 8 * MIB, "%zu KiB more resident (%zu, %zu)",
           (after.resident_bytes - before.resident_bytes) / KIB, first, step);
    return refused;
}

/* The same in a child, whose heap has everything before it. */
static size_t run_in_child(uint64_t refused_calls, size_t first, size_t last, size_t step) {
    pid_t child = fork();
    EXPECT(child >= 0, "fork");
    if (child == 0) {
        _exit(run_round(refused_calls, first, last, step) ? 0 : EXIT_NOTHING_REFUSED);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child, "waitpid");
    int passed = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == EXIT_NOTHING_REFUSED);
    EXPECT(passed, "number %zu to %zu, every %zuth: wait status %#x", first, last, step, (unsigned)status);
    return WEXITSTATUS(status) == 0;
}

static void churn(void) {
    uint64_t refused_calls = calls_by_names(strcmp(calls, "all") ? calls : WATCHED_CALLS);
    for (size_t i = 0; i < WORKERS; i++) {
        workers[i].random = i;
    }
    size_t disturbed = 0;
    for (size_t first = 1; first <= 512; first *= 2) {
        disturbed += run_in_child(refused_calls, first, first, 1);
    }
    for (size_t step = 1; step <= 4; step++) {
        disturbed += run_in_child(refused_calls, step, SIZE_MAX, step);
    }
    say("%zu rounds with refusals\n", disturbed);
    EXPECT(disturbed > 1, "%s was hardly called", calls);
}

/* ---- No thread ---- */

static size_t count_threads(void) {
    size_t count = 0;
    DIR *tasks = opendir("/proc/self/task");
    EXPECT(tasks, "/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        count += task->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

static void fill_and_empty(void) {
    static char *blocks[100000];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = malloc(1000);
        EXPECT(blocks[i], "malloc(1000)");
        memset(blocks[i], 1, 1000);
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        free(blocks[i]);
    }
}

static void no_thread(void) {
    size_t before = resident_bytes();
    supervised_refuse(calls_by_names("clone,clone3"), 1, SIZE_MAX, 1, EAGAIN);
    for (int i = 0; i < 3; i++) {
        fill_and_empty();
    }
    EXPECT(supervised_refused() >= 1, "no thread was wanted");
    EXPECT(supervised_refused() <= 8, "%zu attempts to start a thread", supervised_refused());
    EXPECT(count_threads() == 1, "there is a thread");
    while (resident_bytes() > before + 30 * MIB) { /* the case's bound of time is that of this */
        void *block = malloc(100 * KIB);
        free(block);
    }
    supervised_refuse_nothing();
    while (count_threads() == 1) { /* it tries again one day */
        fill_and_empty();
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"churn", churn}, {"no_thread", no_thread}};
    if (argc != 2 && argc != 4) {
        return run_case(1, argv, cases, COUNT_OF(cases), 1);
    }
    if (!is_supervised()) {
        return run_supervised(argv, WATCHED_CALLS, 2 * GIB);
    }
    calls = argc == 4 ? argv[2] : "";
    code = argc == 4 ? errno_by_name(argv[3]) : 0;
    return run_case(argc, argv, cases, COUNT_OF(cases), 110);
}
