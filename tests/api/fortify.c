/* A program that uses the slack of its blocks as systemd does, compiled with -D_FORTIFY_SOURCE=3: the compiler knows
 * each block's size, so the block is first "grown" to its usable size through a function it cannot see into. glibc's
 * checks abort the program when a size told by malloc_usable_size cannot be had. */
#include "expect.h"

#if !defined(_FORTIFY_SOURCE) || _FORTIFY_SOURCE < 2
#error "to be compiled with optimisation and _FORTIFY_SOURCE"
#endif

__attribute__((noinline, alloc_size(2), returns_nonnull)) static void *expand_to_usable(void *block, size_t size) {
    (void)size;
    return opaque_pointer(block);
}

static void *usable(void *block, size_t *size) {
    *size = malloc_usable_size(block);
    return expand_to_usable(block, *size);
}

static void expand(void) {
    for (size_t asked = 1; asked < 5 * MIB; asked += asked / 9 + 1) {
        size_t size;
        char *block = usable(malloc(asked), &size);
        EXPECT(size >= asked, "usable size %zu of %zu", size, asked);
        memset(block, 1, size);
        snprintf(block, size, "%s", "short");
        char *more = realloc(block, size * 2);
        EXPECT(more && !strncmp(more, "short", size - 1), "realloc of %zu bytes lost the text", size);
        block = usable(more, &size);
        memset(block, 2, size);
        free(block);

        block = usable(calloc(3, asked), &size);
        memset(block, 3, size);
        free(block);

        block = usable(aligned_alloc(64, asked), &size);
        memset(block, 4, size);
        free(block);
    }
}

/* An array that grows into whatever the block has, like GREEDY_REALLOC. */
static void greedy(void) {
    uint64_t *numbers = NULL;
    size_t capacity = 0;
    for (size_t count = 0; count < 300000; count++) {
        if (count >= capacity) {
            uint64_t *more = reallocarray(numbers, count * 2 + 1, sizeof(*numbers));
            EXPECT(more, "reallocarray to %zu numbers", count * 2 + 1);
            size_t size;
            numbers = usable(more, &size);
            capacity = size / sizeof(*numbers);
            EXPECT(capacity > count, "capacity %zu for %zu numbers", capacity, count);
            memset(numbers + count, 0xFF, (capacity - count) * sizeof(*numbers));
        }
        numbers[count] = count;
    }
    for (size_t i = 0; i < 300000; i++) {
        EXPECT(numbers[i] == i, "number %zu is %llu", i, (unsigned long long)numbers[i]);
    }
    free(numbers);
}

#ifdef API_LINKED
/* All that hak_alloc_at_least tells of may be used at once. */
static void at_least(void) {
    for (size_t asked = 1; asked < 5 * MIB; asked += asked / 9 + 1) {
        size_t size = 0;
        char *block = hak_alloc_at_least(asked, &size);
        EXPECT(block && size >= asked, "%zu bytes of %zu", size, asked);
        memset(block, 1, size);
        snprintf(block, size, "%s", "short");
        hak_free_sized(block, size);
    }
}
#endif

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"expand", expand},
        {"greedy", greedy},
#ifdef API_LINKED
        {"at_least", at_least},
#endif
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 20);
}
