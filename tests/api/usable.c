/* malloc_usable_size tells bytes that are the caller's: every one is written, next to neighbours that must not change.
 * Compiled twice: under the standard names, and under hak_* with API_HAK. */
#include "expect.h"

enum { NEIGHBOURS = 4 };

static void check_size(size_t size) {
    unsigned char *blocks[NEIGHBOURS];
    size_t usable[NEIGHBOURS];
    for (int i = 0; i < NEIGHBOURS; i++) {
        blocks[i] = M(malloc)(size);
        EXPECT(blocks[i], "malloc(%zu)", size);
        usable[i] = M(malloc_usable_size)(blocks[i]);
        EXPECT(usable[i] >= size && usable[i] < 2 * size + 64 * KIB, "usable size %zu of %zu", usable[i], size);
        memset(blocks[i], 'a' + i, usable[i]);
    }
    for (int i = 0; i < NEIGHBOURS; i++) {
        EXPECT(usable[i] == M(malloc_usable_size)(blocks[i]), "usable size of %p changed from %zu", (void *)blocks[i],
               usable[i]);
        EXPECT(blocks[i][0] == 'a' + i && !memcmp(blocks[i], blocks[i] + 1, usable[i] ? usable[i] - 1 : 0),
               "block %d of %zu bytes was overwritten", i, size);
    }
    for (int i = 0; i < NEIGHBOURS; i++) {
        M(free)(blocks[(i * 3) % NEIGHBOURS]);
    }
}

static void small(void) {
    EXPECT(M(malloc_usable_size)(NULL) == 0, "usable size of NULL");
    for (size_t size = 1; size <= 40000; size += size < 4096 ? 1 : 13) {
        check_size(size);
    }
}

static void large(void) {
    for (size_t size = 40000; size < 40 * MIB; size += size / 7) {
        check_size(size);
    }
}

/* realloc to any size up to the usable one keeps what is there. */
static void realloc_within(void) {
    for (size_t size = 1; size < 8 * MIB; size += size / 11 + 1) {
        unsigned char *block = M(malloc)(size);
        EXPECT(block, "malloc(%zu)", size);
        size_t usable = M(malloc_usable_size)(block);
        for (size_t i = 0; i < usable; i++) {
            block[i] = (unsigned char)(i * 5);
        }
        block = M(realloc)(block, usable);
        EXPECT(block && M(malloc_usable_size)(block) >= usable, "realloc to the usable size %zu", usable);
        for (size_t i = 0; i < usable; i++) {
            EXPECT(block[i] == (unsigned char)(i * 5), "realloc to the usable size %zu lost byte %zu", usable, i);
        }
        size_t less = size + (usable - size) / 2;
        block = M(realloc)(block, less);
        EXPECT(block && M(malloc_usable_size)(block) >= less, "realloc to %zu", less);
        for (size_t i = 0; i < less; i++) {
            EXPECT(block[i] == (unsigned char)(i * 5), "realloc to %zu lost byte %zu", less, i);
        }
        memset(block, 0xFF, M(malloc_usable_size)(block));
        M(free)(block);
    }
}

/* The same for aligned blocks, whose start may lie inside something larger. */
static void aligned(void) {
    for (size_t alignment = 16; alignment <= 4 * MIB; alignment *= 2) {
        for (size_t size = 1; size < 3 * MIB; size += size * 3 + 1) {
            unsigned char *blocks[NEIGHBOURS];
            for (int i = 0; i < NEIGHBOURS; i++) {
                blocks[i] = M(memalign)(i & 1 ? 16 : alignment, size);
                EXPECT(blocks[i], "memalign(%zu, %zu)", alignment, size);
                size_t usable = M(malloc_usable_size)(blocks[i]);
                EXPECT(usable >= size, "usable size %zu of %zu", usable, size);
                memset(blocks[i], 'a' + i, usable);
            }
            for (int i = 0; i < NEIGHBOURS; i++) {
                size_t usable = M(malloc_usable_size)(blocks[i]);
                EXPECT(blocks[i][0] == 'a' + i && !memcmp(blocks[i], blocks[i] + 1, usable - 1),
                       "block %d of %zu bytes at alignment %zu was overwritten", i, size, alignment);
                M(free)(blocks[i]);
            }
        }
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"small", small},
        {"large", large},
        {"realloc_within", realloc_within},
        {"aligned", aligned},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 50);
}
