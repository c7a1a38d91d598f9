/* fork while other threads resize, free and make large blocks: what the child has, made before and after the fork,
 * keeps its contents while the child gives back all memory that is free, and can be freed.
 *
 *     shrink     runs get shorter; by the half, and more
 *     resize     runs and mappings get longer and shorter, and move
 *     purge      the same, while the parent gives memory back
 */
#include <malloc.h>

#include "churn.h"

enum { CHILD_SECONDS = 30, BLOCKS = 200, BLOCK_BYTES = 64 << 10, KIB = 1 << 10, MIB = 1 << 20 };

static atomic_bool stop;

static void touch(char *block, size_t size) {
    expect(block != NULL, "no memory");
    for (size_t at = 0; at < size; at += 256 * KIB) block[at] = 1;
    block[size - 1] = 1;
}

static void *shrink(void *argument) {
    for (unsigned i = (unsigned)(uintptr_t)argument; !atomic_load(&stop); i++) {
        size_t size = MIB - 8 * KIB; /* two pages are left in the last unit */
        char *block = malloc(size);
        touch(block, size);
        size = (size_t)(100 + i * 7 % 30) * 1000;
        block = realloc(block, size);
        touch(block, size);
        free(block);
    }
    return NULL;
}

static void *resize(void *argument) {
    for (unsigned i = (unsigned)(uintptr_t)argument; !atomic_load(&stop); i++) {
        static const size_t sizes[] = {600 * KIB, 90 * KIB, 3 * MIB, 700 * KIB, 40 * MIB, 36 * MIB, 64 * MIB, 50 * KIB};
        char *block = NULL;
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            block = realloc(block, sizes[k] + i % 64 * 4096);
            touch(block, sizes[k]);
        }
        free(block);
    }
    return NULL;
}

static void *give_back(void *argument) {
    while (!atomic_load(&stop)) {
        malloc_trim(0);
        case_sleep_us(500);
    }
    return argument;
}

static void fill(unsigned char **blocks, size_t count, unsigned char tag) {
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        expect(blocks[i] != NULL, "no memory");
        memset(blocks[i], tag, BLOCK_BYTES);
    }
}

static void check(unsigned char **blocks, size_t count, unsigned char tag) {
    static unsigned char whole[BLOCK_BYTES];
    memset(whole, tag, BLOCK_BYTES);
    for (size_t i = 0; i < count; i++)
        expect(memcmp(blocks[i], whole, BLOCK_BYTES) == 0, "block %zu (%p) lost its contents", i, (void *)blocks[i]);
}

static void child_uses_blocks(unsigned char **parents) {
    static unsigned char *blocks[BLOCKS];
    fill(blocks, BLOCKS, 0xA5);
    malloc_trim(0);
    check(blocks, BLOCKS, 0xA5);
    check(parents, BLOCKS / 10, 0x5A);
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[i]);
    for (size_t i = 0; i < BLOCKS / 10; i++) free(parents[i]);
    malloc_trim(0);
}

static void fork_beside(void *(*work)(void *), void *(*other)(void *)) {
    static unsigned char *parents[BLOCKS / 10];
    pthread_t threads[2];
    fill(parents, BLOCKS / 10, 0x5A);
    expect(pthread_create(&threads[0], NULL, work, (void *)1) == 0, "no thread");
    expect(pthread_create(&threads[1], NULL, other, (void *)2) == 0, "no thread");
    for (unsigned i = 0; i < 120; i++) {
        case_sleep_us(100 + i * 7919 % 1000);
        pid_t child = fork();
        if (child == 0) {
            case_bound_time(CHILD_SECONDS);
            child_uses_blocks(parents);
            _exit(0);
        }
        case_expect_success(child, CHILD_SECONDS + 1);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    check(parents, BLOCKS / 10, 0x5A);
}

static void run_shrink(void) { fork_beside(shrink, shrink); }
static void run_resize(void) { fork_beside(resize, shrink); }
static void run_purge(void) { fork_beside(resize, give_back); }

static const struct hak_case cases[] = {
    {.name = "shrink", .run = run_shrink, .seconds = 120, .memory_mib = 1024},
    {.name = "resize", .run = run_resize, .seconds = 120, .memory_mib = 1024},
    {.name = "purge", .run = run_purge, .seconds = 120, .memory_mib = 1024},
};

CASE_MAIN(cases)
