/* Tests what BenchFast does, and that it does no more: preload libbenchfast.so. Its instructions are fast_path.py's. */
#include "bench.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>

#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

/* More than the pages of pointers that a thread keeps to itself have room for. Blocks that the C library freed while
 * it started may
 * come first: they are few. */
enum { BLOCK_COUNT = 5000, USED_COUNT = 16, PATTERN = 0xa5 };

static uint8_t *blocks[BLOCK_COUNT];

static _Noreturn void fail(int line, const char *condition) {
    fprintf(stderr, "fast_test.c:%d: not so: %s\n", line, condition);
    exit(EXIT_FAILURE);
}

/* Not a pointer that the compiler knows to be freed. */
static volatile uint8_t *address_of(size_t index) { return blocks[index]; }

static void allocate_all(size_t bytes) {
    for (size_t i = 0; i < BLOCK_COUNT; i++) {
        blocks[i] = bench_allocate(bytes);
    }
}

static void free_all(void) {
    for (size_t i = 0; i < BLOCK_COUNT; i++) {
        free(blocks[i]);
    }
}

/* A new block is the next one of its class, whatever the class before. */
static void test_bump(size_t bytes) {
    allocate_all(bytes);
    size_t class_bytes = malloc_usable_size(blocks[0]);
    EXPECT(class_bytes >= bytes);
    EXPECT(class_bytes <= (bytes <= 1024 ? (bytes + 15) / 16 * 16 : bytes + bytes / 4));
    for (size_t i = USED_COUNT; i < BLOCK_COUNT; i++) {
        EXPECT(blocks[i] == blocks[i - 1] + class_bytes);
        EXPECT(malloc_usable_size(blocks[i]) == class_bytes);
    }
}

/* Blocks come back in the reverse order of their frees, as they were left. */
static void test_reuse(size_t bytes) {
    for (size_t i = 0; i < BLOCK_COUNT; i++) {
        memset(blocks[i], PATTERN, bytes);
    }
    free_all();
    for (size_t i = 0; i < BLOCK_COUNT; i++) {
        for (size_t offset = 0; offset < bytes; offset++) {
            EXPECT(address_of(i)[offset] == PATTERN);
        }
    }
    for (size_t i = BLOCK_COUNT; i-- > 0;) {
        volatile uint8_t *block = bench_allocate(bytes);
        EXPECT(block == address_of(i));
        EXPECT(block[0] == PATTERN && block[bytes - 1] == PATTERN);
    }
    for (size_t i = 0; i < 3 * BLOCK_COUNT; i++) { /* across the ends of pages of pointers */
        size_t index = i % BLOCK_COUNT;
        free(blocks[index]);
        EXPECT(bench_allocate(bytes) == address_of(index));
    }
    free_all();
}

static void test_untouched(void) {
    enum { BYTES = 1 << 22 };
    uint64_t before = bench_resident_bytes();
    allocate_all(BYTES);
    EXPECT(bench_resident_bytes() - before < BYTES / 4);
    free_all();
    EXPECT(bench_resident_bytes() - before < BYTES / 4);
}

static void test_alignment(void) {
    for (size_t bytes = 16; bytes <= 1 << 20; bytes *= 2) {
        EXPECT((uintptr_t)bench_allocate(bytes) % bytes == 0);
        EXPECT((uintptr_t)bench_allocate(bytes + 1) % 16 == 0);
        void *block = NULL;
        EXPECT(posix_memalign(&block, bytes, 100) == 0 && block && (uintptr_t)block % bytes == 0);
        EXPECT((uintptr_t)aligned_alloc(bytes, 3 * bytes) % bytes == 0);
        EXPECT((uintptr_t)memalign(bytes, 1) % bytes == 0);
    }
}

static void test_the_others(void) {
    uint8_t *block = bench_allocate(1000);
    memset(block, PATTERN, 1000);
    free(block);
    block = calloc(100, 10);
    for (size_t i = 0; i < 1000; i++) {
        EXPECT(block[i] == 0);
    }
    memset(block, PATTERN, 1000);
    uint8_t *same = realloc(block, 1001);
    EXPECT(same == block);
    uint8_t *moved = realloc(same, 100000);
    EXPECT(moved && moved != block);
    for (size_t i = 0; i < 1000; i++) {
        EXPECT(moved[i] == PATTERN);
    }
    for (int i = 0; i < 10000; i++) {
        free(NULL);
    }
    EXPECT(malloc(0) != NULL);
    volatile size_t most = PTRDIFF_MAX;
    EXPECT(malloc(most) == NULL);
    EXPECT(malloc_usable_size(NULL) == 0);
}

static void *free_all_of_them(void *unused) {
    free_all();
    return unused;
}

/* What another thread frees serves this one and the next: there are never many more blocks than at a time. */
static void test_threads(void) {
    enum { BYTES = 560, ROUNDS = 100 };
    uintptr_t lowest = UINTPTR_MAX;
    uintptr_t highest = 0;
    for (int round = 0; round < ROUNDS; round++) {
        allocate_all(BYTES);
        for (size_t i = 0; i < BLOCK_COUNT; i++) {
            uintptr_t address = (uintptr_t)blocks[i];
            lowest = address < lowest ? address : lowest;
            highest = address > highest ? address : highest;
        }
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, free_all_of_them, NULL) == 0);
        pthread_join(thread, NULL);
    }
    EXPECT(highest - lowest < 2 * BLOCK_COUNT * BYTES);
}

int main(void) {
    EXPECT(strstr(bench_allocator(), "libbenchfast") != NULL);
    static const size_t sizes[] = {1,    24,   64,   100,  257,  500, 768,
                                   1008, 1025, 1281, 2000, 3000, 6000}; /* a class each */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        test_bump(sizes[i]);
        test_reuse(sizes[i]);
    }
    test_threads();
    test_untouched();
    test_alignment();
    test_the_others();
    puts("BenchFast does what it should, and no more");
    return 0;
}
