/* Conformance of malloc, calloc, realloc, reallocarray and free: sizes from nothing to SIZE_MAX, contents, errno.
 * Compiled twice: under the standard names, and under hak_* with API_HAK. */
#include "expect.h"

#include <pthread.h>

/* ---- Contents ---- */

static void fill(void *block, size_t size, unsigned seed) {
    unsigned char *bytes = block;
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)(i * 7 + seed);
    }
}

static size_t first_difference(const void *block, size_t size, unsigned seed) {
    const unsigned char *bytes = block;
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != (unsigned char)(i * 7 + seed)) {
            return i;
        }
    }
    return size;
}

#define EXPECT_FILLED(block, size, seed)                                                                               \
    EXPECT(first_difference(block, size, seed) == (size), "block %p of %zu bytes differs at %zu", (void *)(block),     \
           (size_t)(size), first_difference(block, size, seed))

static size_t first_nonzero(const void *block, size_t size) {
    const unsigned char *bytes = block;
    size_t i = 0;
    while (i < size && ((uintptr_t)(bytes + i) % 8 || size - i < 8)) {
        if (bytes[i++]) {
            return i - 1;
        }
    }
    for (; size - i >= 8; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        if (word) {
            break;
        }
    }
    while (i < size && !bytes[i]) {
        i++;
    }
    return i;
}

/* ---- free and errno ---- */

static void free_null(void) {
    errno = 1234;
    M(free)(NULL);
    EXPECT(errno == 1234, "free(NULL) changed errno");
    if (HAS_SIZED_FREE) {
        M(free_sized)(NULL, 0);
        M(free_sized)(NULL, 100);
        M(free_aligned_sized)(NULL, 64, 128);
        EXPECT(errno == 1234, "a sized free of NULL changed errno");
    }
}

/* Blocks of every kind, freed in both orders: huge ones go back to the kernel, small ones overflow every cache. */
static void free_keeps_errno(void) {
    static const size_t sizes[] = {0, 1, 16, 100, 1000, 5000, 40000, 300000, 3 * MIB, 40 * MIB};
    static void *blocks[4096];
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        size_t count = sizes[s] >= MIB ? 4 : sizes[s] >= 40000 ? 64 : COUNT_OF(blocks);
        for (int reverse = 0; reverse < 2; reverse++) {
            for (size_t i = 0; i < count; i++) {
                blocks[i] = M(malloc)(sizes[s]);
                EXPECT(blocks[i], "malloc(%zu)", sizes[s]);
            }
            errno = 1234;
            for (size_t i = 0; i < count; i++) {
                M(free)(blocks[reverse ? count - 1 - i : i]);
                EXPECT(errno == 1234, "free of %zu bytes changed errno", sizes[s]);
            }
        }
    }
}

static void sized_free(void) {
    if (!HAS_SIZED_FREE) {
        SKIP("no free_sized");
    }
    static const size_t sizes[] = {0, 1, 16, 17, 100, 1000, 1024, 5000, 32768, 40000, 300000, 3 * MIB, 40 * MIB};
    for (int round = 0; round < 200; round++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            void *block = M(malloc)(sizes[s]);
            EXPECT(block, "malloc(%zu)", sizes[s]);
            M(free_sized)(block, sizes[s]);
            M(free_sized)(M(calloc)(1, sizes[s]), sizes[s]);
            M(free_sized)(M(realloc)(M(malloc)(24), sizes[s] + 1), sizes[s] + 1);
            for (size_t alignment = 16; alignment <= 64 * KIB; alignment *= 8) {
                M(free_aligned_sized)(M(aligned_alloc)(alignment, sizes[s]), alignment, sizes[s]);
            }
        }
    }
    size_t resident = resident_bytes();
    EXPECT(resident < 512 * MIB, "sized frees leak: %zu bytes resident", resident);
}

/* ---- Nothing, and too much ---- */

static int compare_pointers(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (void *const *)a;
    uintptr_t y = (uintptr_t) * (void *const *)b;
    return (x > y) - (x < y);
}

static void zero_size(void) {
    static void *blocks[7 * 300];
    size_t count = 0;
    for (int i = 0; i < 300; i++) {
        blocks[count++] = M(malloc)(opaque(0));
        blocks[count++] = M(calloc)(opaque(0), 8);
        blocks[count++] = M(calloc)(8, opaque(0));
        blocks[count++] = M(calloc)(opaque(0), opaque(SIZE_MAX));
        blocks[count++] = M(calloc)(opaque(SIZE_MAX), opaque(0));
        blocks[count++] = M(realloc)(NULL, opaque(0));
        blocks[count++] = M(reallocarray)(NULL, opaque(0), opaque(SIZE_MAX));
    }
    qsort(blocks, count, sizeof(blocks[0]), compare_pointers);
    for (size_t i = 0; i < count; i++) {
        EXPECT(blocks[i], "a block of 0 bytes is NULL");
        EXPECT(i == 0 || blocks[i] != blocks[i - 1], "two blocks of 0 bytes at %p", blocks[i]);
    }
    for (size_t i = 0; i < count; i++) {
        M(free)(blocks[i]);
    }
}

static void *keep_old(void *old) {
    EXPECT_FILLED(old, 100, 3);
    return NULL;
}

static void too_large(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t sizes[256];
    size_t count = 0;
    sizes[count++] = PTRDIFF_MAX;
    sizes[count++] = (size_t)PTRDIFF_MAX + 1;
    sizes[count++] = (size_t)PTRDIFF_MAX + page;
    static const size_t distances[] = {0, 1, 7, 8, 15, 16, 17, 24, 31, 32, 63, 64, 127, 128, 255, 256, 1000};
    for (size_t i = 0; i < COUNT_OF(distances); i++) {
        sizes[count++] = SIZE_MAX - distances[i];
        sizes[count++] = (size_t)PTRDIFF_MAX - distances[i];
    }
    for (size_t shift = 12; shift < 63; shift++) { /* what rounding up to any unit would wrap */
        sizes[count++] = SIZE_MAX - ((size_t)1 << shift) + 1;
        sizes[count++] = SIZE_MAX - ((size_t)1 << shift) - 1;
    }
    void *old = M(malloc)(100);
    fill(old, 100, 3);
    for (size_t i = 0; i < count; i++) {
        size_t size = opaque(sizes[i]);
        EXPECT_REFUSED(ENOMEM, M(malloc)(size));
        EXPECT_REFUSED(ENOMEM, M(calloc)(1, size));
        EXPECT_REFUSED(ENOMEM, M(calloc)(size, 1));
        EXPECT_REFUSED(ENOMEM, M(realloc)(NULL, size));
        EXPECT_REFUSED(ENOMEM, M(realloc)(old, size));
        EXPECT_REFUSED(ENOMEM, M(reallocarray)(NULL, 1, size));
        EXPECT_REFUSED(ENOMEM, M(reallocarray)(old, size, 1));
        EXPECT_REFUSED(ENOMEM, M(aligned_alloc)(16, size));
        EXPECT_REFUSED(ENOMEM, M(aligned_alloc)(64, size));
        EXPECT_REFUSED(ENOMEM, M(aligned_alloc)(4096, size));
        EXPECT_REFUSED(ENOMEM, M(memalign)(32, size));
        EXPECT_REFUSED(ENOMEM, M(memalign)(2 * MIB, size));
        EXPECT_REFUSED(ENOMEM, M(valloc)(size));
        EXPECT_REFUSED(ENOMEM, M(pvalloc)(size));
        void *untouched = old;
        int code = M(posix_memalign)(&untouched, 64, size);
        EXPECT(code == ENOMEM && untouched == old, "posix_memalign of %zu bytes gave %d", size, code);
        keep_old(old);
    }
    M(free)(old);
}

static void overflow(void) {
    static const size_t half = (size_t)1 << 32;
    static const size_t products[][2] = {
        {half, half},                /* 0 */
        {half + 1, half},            /* 2^32 */
        {half + 1, half - 1},        /* 2^64 - 1 */
        {half * 2, half / 2 + 1},    /* 2^33 */
        {SIZE_MAX, SIZE_MAX},        /* 1 */
        {SIZE_MAX, 2},               /* 2^64 - 2 */
        {SIZE_MAX / 2 + 1, 2},       /* 0 */
        {SIZE_MAX / 16 + 1, 16},     /* 0 */
        {SIZE_MAX / 24 + 1, 24},     /* small */
        {SIZE_MAX / 1000 + 1, 1000}, /* small */
        {SIZE_MAX / 4096 + 2, 4096}, /* 4096 */
        {(size_t)PTRDIFF_MAX / 16 + 1, 16},
        {(size_t)PTRDIFF_MAX, 2},
    };
    void *old = M(malloc)(100);
    fill(old, 100, 3);
    for (size_t i = 0; i < COUNT_OF(products); i++) {
        for (int swapped = 0; swapped < 2; swapped++) {
            size_t n = opaque(products[i][swapped]);
            size_t size = opaque(products[i][!swapped]);
            EXPECT_REFUSED(ENOMEM, M(calloc)(n, size));
            EXPECT_REFUSED(ENOMEM, M(reallocarray)(NULL, n, size));
            EXPECT_REFUSED(ENOMEM, M(reallocarray)(old, n, size));
            keep_old(old);
        }
    }
    M(free)(old);
}

/* ---- calloc ---- */

/* Every class up to 64 KiB by its neighbourhood, and some larger. */
static size_t next_size(size_t size) {
    if (size < 1024) {
        return size + 1;
    }
    if (size < 64 * KIB) {
        return size + size / 61;
    }
    return size + size / 3;
}

static size_t blocks_of(size_t size) { return size <= 4 * KIB ? 48 : size <= 64 * KIB ? 16 : size <= 2 * MIB ? 3 : 2; }

static void *dirty[64];

static void allocate_dirty(size_t size) {
    for (size_t i = 0; i < blocks_of(size); i++) {
        dirty[i] = M(malloc)(size);
        EXPECT(dirty[i], "malloc(%zu)", size);
        memset(dirty[i], 0xA5, M(malloc_usable_size)(dirty[i]) ? M(malloc_usable_size)(dirty[i]) : size);
    }
}

static void free_dirty(size_t size, int reverse) {
    size_t count = blocks_of(size);
    for (size_t i = 0; i < count; i++) {
        M(free)(dirty[reverse ? count - 1 - i : i]);
    }
}

/* More blocks than were dirtied, asked for in various shapes; all of them zero. They are left dirty. */
static void expect_zeroed(size_t size) {
    static void *blocks[COUNT_OF(dirty) + 2];
    size_t count = blocks_of(size) + 2;
    for (size_t i = 0; i < count; i++) {
        blocks[i] = i % 3 == 0 ? M(calloc)(1, size) : i % 3 == 1 ? M(calloc)(size, 1) : M(calloc)((size + 3) / 4, 4);
        EXPECT(blocks[i], "calloc of %zu bytes", size);
        size_t zeros = first_nonzero(blocks[i], size);
        EXPECT(zeros == size, "calloc of %zu bytes: byte %zu is %d", size, zeros, ((unsigned char *)blocks[i])[zeros]);
        memset(blocks[i], 0x5A, size);
    }
    for (size_t i = 0; i < count; i++) {
        M(free)(blocks[i]);
    }
}

static void calloc_after_dirty(void) {
    for (int round = 0; round < 4; round++) {
        for (size_t size = 1; size <= 40 * MIB; size = next_size(size)) {
            allocate_dirty(size);
            free_dirty(size, round & 1);
            expect_zeroed(size);
        }
    }
}

/* Dirty blocks of one size, then zeroed ones of another: slabs that change their class. */
static void calloc_after_other_class(void) {
    static const size_t sizes[] = {16, 48, 200, 1024, 3000, 20000, 65536, 200000, 700000, 3 * MIB, 12 * MIB};
    static void *held[16384];
    for (size_t from = 0; from < COUNT_OF(sizes); from++) {
        for (size_t to = 0; to < COUNT_OF(sizes); to++) {
            size_t count = 4 * MIB / sizes[from] + 1;
            count = count < COUNT_OF(held) ? count : COUNT_OF(held);
            for (size_t i = 0; i < count; i++) {
                held[i] = M(malloc)(sizes[from]);
                EXPECT(held[i], "malloc(%zu)", sizes[from]);
                memset(held[i], 0xA5, sizes[from]);
            }
            for (size_t i = 0; i < count; i++) {
                M(free)(held[i]);
            }
            expect_zeroed(sizes[to]);
        }
    }
}

static void *free_elsewhere(void *size) {
    free_dirty(*(size_t *)size, 0);
    return NULL;
}

static void calloc_after_remote_dirty(void) {
    static const size_t sizes[] = {1, 16, 64, 100, 500, 1024, 2000, 5000, 16384, 32768, 65536, 300000, 3 * MIB};
    for (int round = 0; round < 4; round++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            size_t size = sizes[s];
            allocate_dirty(size);
            pthread_t thread;
            int code = pthread_create(&thread, NULL, free_elsewhere, &size);
            EXPECT(code == 0, "pthread_create gave %d", code);
            pthread_join(thread, NULL);
            expect_zeroed(size);
        }
    }
}

/* A block that calloc gave and realloc grew or shrank is dirty for the next calloc all the same. */
static void calloc_after_realloc(void) {
    for (size_t size = 1; size <= 4 * MIB; size += size / 5 + 1) {
        char *block = M(calloc)(1, size);
        block = M(realloc)(block, size * 3);
        EXPECT(block, "realloc to %zu", size * 3);
        memset(block, 0xA5, size * 3);
        block = M(realloc)(block, size);
        EXPECT(block, "realloc to %zu", size);
        M(free)(block);
        expect_zeroed(size);
        expect_zeroed(size * 3);
    }
}

/* ---- realloc ---- */

static void realloc_null_and_zero(void) {
    for (size_t size = 0; size < 3 * MIB; size += size / 2 + 1) {
        char *block = M(realloc)(NULL, size);
        EXPECT(block && owned(block), "realloc(NULL, %zu) gave %p", size, (void *)block);
        fill(block, size, 1);
        EXPECT(M(malloc_usable_size)(block) >= size, "usable size of realloc(NULL, %zu)", size);
        block = M(realloc)(block, opaque(0));
        EXPECT(!block, "realloc(p, 0) gave %p for a block of %zu bytes", (void *)block, size);
        block = M(reallocarray)(M(malloc)(size), 8, opaque(0));
        EXPECT(!block, "reallocarray(p, 8, 0) gave %p", (void *)block);
        block = M(reallocarray)(M(malloc)(size), opaque(0), opaque(SIZE_MAX));
        EXPECT(!block, "reallocarray(p, 0, SIZE_MAX) gave %p", (void *)block);
    }
}

/* realloc(p, 0) frees: else this would hold 3 GiB. */
static void realloc_zero_frees(void) {
    for (int i = 0; i < 3000; i++) {
        void *block = M(malloc)(MIB);
        EXPECT(block, "malloc of 1 MiB, time %d", i);
        memset(block, 1, MIB);
        block = M(realloc)(block, opaque(0));
        EXPECT(!block, "realloc(p, 0) gave %p", block);
        size_t resident = resident_bytes();
        EXPECT(resident < 256 * MIB, "%zu bytes resident", resident);
    }
}

static void realloc_contents(void) {
    static const size_t sizes[] = {1,      15,     16,    17,      24,      64,      100,     500,
                                   1023,   1024,   1025,  2048,    3000,    4096,    8192,    10000,
                                   32767,  32768,  32769, 50000,   65536,   70000,   130000,  262144,
                                   300000, 524288, MIB,   MIB + 1, 3 * MIB, 9 * MIB, 20 * MIB};
    for (size_t from = 0; from < COUNT_OF(sizes); from++) {
        for (size_t to = 0; to < COUNT_OF(sizes); to++) {
            size_t kept = sizes[from] < sizes[to] ? sizes[from] : sizes[to];
            kept = kept < 256 * KIB ? kept : 256 * KIB;
            char *before = M(malloc)(64);
            char *block = M(malloc)(sizes[from]);
            char *after = M(malloc)(64);
            fill(before, 64, 5);
            fill(after, 64, 6);
            fill(block, kept, 9);
            block[sizes[from] - 1] = 77;
            char *moved = (from + to) & 1 ? M(realloc)(block, sizes[to]) : M(reallocarray)(block, sizes[to], 1);
            EXPECT(moved, "realloc from %zu to %zu", sizes[from], sizes[to]);
            EXPECT_FILLED(moved, kept - 1, 9);
            EXPECT(sizes[to] < sizes[from] || moved[sizes[from] - 1] == 77, "last byte of %zu lost", sizes[from]);
            memset(moved, 0xEE, sizes[to] < 256 * KIB ? sizes[to] : 256 * KIB);
            moved[sizes[to] - 1] = 1;
            EXPECT_FILLED(before, 64, 5);
            EXPECT_FILLED(after, 64, 6);
            M(free)(before);
            M(free)(moved);
            M(free)(after);
        }
    }
}

/* A block that grows by a little and by a half, as vectors and strings do, with other blocks between. */
static void realloc_growth(void) {
    for (int mode = 0; mode < 2; mode++) {
        size_t size = 1;
        char *block = M(malloc)(size);
        block[0] = (char)(0 * 7 + 4);
        while (size < 24 * MIB) {
            size_t more = mode ? size + size / 2 + 1 : size + 1 + (size > 4096 ? size / 16 : 0);
            char *grown = M(realloc)(block, more);
            EXPECT(grown, "realloc from %zu to %zu", size, more);
            for (size_t i = size; i < more; i++) {
                grown[i] = (char)(i * 7 + 4);
            }
            size_t checked = more < 70000 ? more : 70000;
            EXPECT_FILLED(grown, checked, 4);
            block = grown;
            size = more;
            M(free)(M(malloc)(size / 2));
        }
        EXPECT_FILLED(block, size, 4);
        while (size > 1) {
            size = size * 2 / 3;
            block = M(realloc)(block, size);
            EXPECT(block, "realloc down to %zu", size);
            EXPECT_FILLED(block, size, 4);
        }
        M(free)(block);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"free_null", free_null},
        {"free_keeps_errno", free_keeps_errno},
        {"sized_free", sized_free},
        {"zero_size", zero_size},
        {"too_large", too_large},
        {"overflow", overflow},
        {"calloc_after_dirty", calloc_after_dirty},
        {"calloc_after_other_class", calloc_after_other_class},
        {"calloc_after_remote_dirty", calloc_after_remote_dirty},
        {"calloc_after_realloc", calloc_after_realloc},
        {"realloc_null_and_zero", realloc_null_and_zero},
        {"realloc_zero_frees", realloc_zero_frees},
        {"realloc_contents", realloc_contents},
        {"realloc_growth", realloc_growth},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 120);
}
