/* Conformance of the aligned entry points, and the alignment of all blocks.
 * Compiled twice: under the standard names, and under hak_* with API_HAK. */
#include "expect.h"

static const size_t sizes[] = {0, 1, 100, 5000, 70000, 3 * MIB};

/* The block may be used at both ends and frees. */
static void use_and_free(void *block, size_t size) {
    if (size) {
        ((volatile char *)block)[0] = 1;
        ((volatile char *)block)[size - 1] = 2;
    }
    M(free)(block);
}

/* ---- Bad alignments ---- */

static void aligned_alloc_bad(void) {
    static const size_t bad[] = {0, 3, 5, 6, 12, 24, 48, 100, 4097, SIZE_MAX, SIZE_MAX - 1, ((size_t)1 << 63) + 1};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            EXPECT_REFUSED(EINVAL, M(aligned_alloc)(opaque(bad[i]), sizes[s]));
        }
    }
}

/* The size need not be a multiple of the alignment. */
static void aligned_alloc_any_size(void) {
    for (size_t alignment = 1; alignment <= MIB; alignment *= 2) {
        static const size_t odd[] = {0, 1, 3, 17, 100, 1001, 4095, 4097, 65537, 300001};
        for (size_t s = 0; s < COUNT_OF(odd); s++) {
            char *block = M(aligned_alloc)(alignment, odd[s]);
            EXPECT(block && is_aligned(block, alignment), "aligned_alloc(%zu, %zu) gave %p", alignment, odd[s],
                   (void *)block);
            EXPECT(owned(block), "%p is not ours", (void *)block);
            memset(block, 0xA5, odd[s]);
            use_and_free(block, odd[s]);
        }
    }
}

/* memalign has no standard: a bad alignment is refused, or rounded up as glibc does, but never served misaligned. */
static void memalign_bad(void) {
    static const size_t bad[] = {0, 3, 5, 24, 48, 100, 4097};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        errno = 0;
        char *block = M(memalign)(opaque(bad[i]), 100);
        size_t rounded = 16;
        while (rounded < bad[i]) {
            rounded *= 2;
        }
        EXPECT(block ? is_aligned(block, rounded) : errno == EINVAL, "memalign(%zu, 100) gave %p", bad[i],
               (void *)block);
        M(free)(block);
    }
    EXPECT_REFUSED(EINVAL, M(memalign)(opaque(SIZE_MAX), 100));
    EXPECT_REFUSED(EINVAL, M(memalign)(opaque(((size_t)1 << 63) + 1), 100));
}

static void posix_memalign_bad(void) {
    static const size_t bad[] = {0, 1, 2, 4, 3, 5, 7, 12, 24, 40, 100, 4104, SIZE_MAX, ((size_t)1 << 63) + 8};
    char mark;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            void *block = &mark;
            errno = 1234;
            int code = M(posix_memalign)(&block, opaque(bad[i]), sizes[s]);
            EXPECT(code == EINVAL && block == &mark, "posix_memalign(&p, %zu, %zu) gave %d, p %p", bad[i], sizes[s],
                   code, block);
            EXPECT(errno == 1234, "posix_memalign changed errno");
        }
    }
}

static void posix_memalign_too_large(void) {
    char mark;
    for (size_t alignment = 8; alignment <= GIB; alignment *= 4) {
        const size_t large[] = {PTRDIFF_MAX,
                                (size_t)PTRDIFF_MAX + 1,
                                SIZE_MAX,
                                SIZE_MAX - 64,
                                SIZE_MAX - alignment + 1,
                                SIZE_MAX - alignment,
                                SIZE_MAX - 2 * alignment,
                                SIZE_MAX / 2 + alignment};
        for (size_t i = 0; i < COUNT_OF(large); i++) {
            void *block = &mark;
            errno = 1234;
            int code = M(posix_memalign)(&block, alignment, opaque(large[i]));
            EXPECT(code == ENOMEM && block == &mark, "posix_memalign(&p, %zu, %zu) gave %d, p %p", alignment, large[i],
                   code, block);
        }
    }
}

/* POSIX leaves errno open; hakmem's contract keeps it. */
/* Of what can't be had it tells twice, as glibc's does. */
static void posix_memalign_sets_errno(void) {
    char mark;
    void *block = &mark;
    errno = 1234;
    int code = M(posix_memalign)(&block, 64, opaque(SIZE_MAX));
    EXPECT(code == ENOMEM && errno == ENOMEM && block == &mark, "posix_memalign gave %d, errno %d", code, errno);
    errno = 1234;
    EXPECT(M(posix_memalign)(&block, opaque(24), 1) == EINVAL && errno == 1234, "errno %d of a wrong alignment", errno);
    code = M(posix_memalign)(&block, 64, 1000);
    EXPECT(code == 0 && errno == 1234, "posix_memalign gave %d and changed errno", code);
    M(free)(block);
}

/* ---- Every alignment ---- */

enum entry { MEMALIGN, ALIGNED_ALLOC, POSIX_MEMALIGN, ENTRIES };

static void *allocate(enum entry entry, size_t alignment, size_t size) {
    void *block = NULL;
    switch (entry) {
    case MEMALIGN: return M(memalign)(alignment, size);
    case ALIGNED_ALLOC: return M(aligned_alloc)(alignment, size);
    default: {
        int code = M(posix_memalign)(&block, alignment, size);
        EXPECT(code == 0 || (code == ENOMEM && !block), "posix_memalign gave %d, block %p", code, block);
        errno = code;
        return block;
    }
    }
}

/* Three blocks alive at once, of each entry point and size. What cannot be served is NULL and ENOMEM. */
static void alignments(size_t first, size_t last, int must_serve) {
    for (size_t alignment = first; alignment && alignment <= last; alignment *= 2) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            for (enum entry entry = MEMALIGN; entry < ENTRIES; entry++) {
                char *blocks[3];
                for (int i = 0; i < 3; i++) {
                    errno = 0;
                    blocks[i] = allocate(entry, alignment, sizes[s]);
                    EXPECT(blocks[i] || (!must_serve && errno == ENOMEM), "entry %d, alignment %zu, %zu bytes: NULL",
                           entry, alignment, sizes[s]);
                    EXPECT(is_aligned(blocks[i], alignment), "entry %d, alignment %zu, %zu bytes: %p", entry, alignment,
                           sizes[s], (void *)blocks[i]);
                    EXPECT(!i || !blocks[i] || blocks[i] != blocks[i - 1], "%p twice", (void *)blocks[i]);
                    if (blocks[i]) {
                        size_t usable = M(malloc_usable_size)(blocks[i]);
                        EXPECT(usable >= sizes[s] && owned(blocks[i]), "usable size %zu of %zu", usable, sizes[s]);
                        memset(blocks[i], 'a' + i, sizes[s]);
                    }
                }
                for (int i = 0; i < 3; i++) {
                    for (size_t at = 0; blocks[i] && at < sizes[s]; at += at < 64 ? 1 : 509) {
                        EXPECT(blocks[i][at] == 'a' + i, "alignment %zu: blocks overlap at %p", alignment,
                               (void *)(blocks[i] + at));
                    }
                }
                for (int i = 0; i < 3; i++) {
                    M(free)(blocks[i]);
                }
            }
        }
    }
    size_t resident = resident_bytes();
    EXPECT(resident < GIB, "%zu bytes resident", resident);
}

static void align_small(void) { alignments(8, 64 * KIB, 1); }

static void align_large(void) { alignments(128 * KIB, 64 * MIB, 1); }

/* Served or NULL: address space is the kernel's to give. */
static void align_huge(void) { alignments(128 * MIB, (size_t)1 << 40, 0); }

static void align_impossible(void) {
    for (size_t alignment = (size_t)1 << 47; alignment; alignment *= 2) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            for (enum entry entry = MEMALIGN; entry < ENTRIES; entry++) {
                EXPECT_REFUSED(ENOMEM, allocate(entry, opaque(alignment), sizes[s]));
            }
        }
    }
}

/* Size and alignment whose sum wraps, or comes near it. */
static void align_wraps(void) {
    for (size_t alignment = 16; alignment; alignment *= 2) {
        const size_t large[] = {SIZE_MAX - alignment + 1,
                                SIZE_MAX - alignment,
                                SIZE_MAX - alignment - 16,
                                SIZE_MAX - alignment / 2,
                                SIZE_MAX - 15,
                                SIZE_MAX,
                                0 - 2 * alignment,
                                (size_t)PTRDIFF_MAX - alignment / 2};
        for (size_t i = 0; i < COUNT_OF(large); i++) {
            if (large[i] < (size_t)1 << 56) {
                continue;
            }
            for (enum entry entry = MEMALIGN; entry < ENTRIES; entry++) {
                EXPECT_REFUSED(ENOMEM, allocate(entry, opaque(alignment), opaque(large[i])));
            }
        }
    }
}

/* Contents survive realloc, whatever the alignment was; free, sized or not, takes every aligned block. */
static void realloc_aligned(void) {
    for (size_t alignment = 16; alignment <= 4 * MIB; alignment *= 4) {
        for (size_t s = 1; s < COUNT_OF(sizes); s++) {
            for (size_t to = 1; to < COUNT_OF(sizes); to++) {
                size_t kept = sizes[s] < sizes[to] ? sizes[s] : sizes[to];
                unsigned char *block = M(memalign)(alignment, sizes[s]);
                EXPECT(block, "memalign(%zu, %zu)", alignment, sizes[s]);
                for (size_t i = 0; i < kept; i++) {
                    block[i] = (unsigned char)(i * 13);
                }
                block = M(realloc)(block, sizes[to]);
                EXPECT(block, "realloc to %zu", sizes[to]);
                for (size_t i = 0; i < kept; i++) {
                    EXPECT(block[i] == (unsigned char)(i * 13), "realloc of an aligned block lost byte %zu", i);
                }
                use_and_free(block, sizes[to]);
                if (HAS_SIZED_FREE) {
                    M(free_aligned_sized)(M(aligned_alloc)(alignment, sizes[s]), alignment, sizes[s]);
                }
            }
        }
    }
}

/* Many aligned blocks among unaligned ones, freed in another order. */
static void align_mixed(void) {
    static struct {
        unsigned char *block;
        size_t size;
    } slots[2000];
    uint64_t state = 8;
    for (int step = 0; step < 200000; step++) {
        size_t at = random_next(&state) % COUNT_OF(slots);
        unsigned char mark = (unsigned char)at;
        if (slots[at].block) {
            EXPECT(slots[at].block[0] == mark && slots[at].block[slots[at].size - 1] == mark, "%p overwritten",
                   (void *)slots[at].block);
            M(free)(slots[at].block);
            slots[at].block = NULL;
            continue;
        }
        size_t alignment = (size_t)16 << (random_next(&state) % 10);
        size_t size = random_size(&state, 1, 8000);
        slots[at].size = size;
        slots[at].block = random_next(&state) & 1 ? M(memalign)(alignment, size) : M(malloc)(size);
        EXPECT(slots[at].block, "%zu bytes at alignment %zu", size, alignment);
        slots[at].block[0] = mark;
        slots[at].block[size - 1] = mark;
    }
    for (size_t i = 0; i < COUNT_OF(slots); i++) {
        M(free)(slots[i].block);
    }
}

/* ---- Pages ---- */

static void pages(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    static const size_t asked[] = {0, 1, 100, 4095, 4096, 4097, 70000, 3 * MIB};
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        char *block = M(valloc)(asked[i]);
        char *other = M(valloc)(asked[i]);
        EXPECT(block && other && block != other && is_aligned(block, page) && is_aligned(other, page) && owned(block),
               "valloc(%zu) gave %p and %p", asked[i], (void *)block, (void *)other);
        use_and_free(block, asked[i]);
        use_and_free(other, asked[i]);

        size_t rounded = (asked[i] + page - 1) & ~(page - 1);
        block = M(pvalloc)(asked[i]);
        other = M(pvalloc)(asked[i]);
        EXPECT(block && other && block != other && is_aligned(block, page) && is_aligned(other, page) && owned(block),
               "pvalloc(%zu) gave %p and %p", asked[i], (void *)block, (void *)other);
        EXPECT(M(malloc_usable_size)(block) >= rounded, "usable size of pvalloc(%zu)", asked[i]);
        memset(block, 0xA5, rounded);
        memset(other, 0xA5, rounded);
        M(free)(block);
        M(free)(other);
    }
    for (size_t distance = 0; distance < 3 * page; distance += 511) {
        EXPECT_REFUSED(ENOMEM, M(pvalloc)(opaque(SIZE_MAX - distance)));
        EXPECT_REFUSED(ENOMEM, M(valloc)(opaque(SIZE_MAX - distance)));
    }
    EXPECT_REFUSED(ENOMEM, M(pvalloc)(opaque(PTRDIFF_MAX)));
    EXPECT_REFUSED(ENOMEM, M(valloc)(opaque(PTRDIFF_MAX)));
}

/* ---- 16 bytes, always ---- */

static void sixteen(void) {
    static void *blocks[300];
    for (size_t size = 0; size < 70000; size += size < 1100 ? 1 : 37) {
        size_t count = size <= 64 ? 300 : size <= 1024 ? 24 : 8;
        for (size_t i = 0; i < count; i++) {
            switch (i % 8) {
            case 0: blocks[i] = M(calloc)(1, size); break;
            case 1: blocks[i] = M(realloc)(NULL, size); break;
            case 2: blocks[i] = M(realloc)(M(malloc)(1), size ? size : 1); break;
            case 3: blocks[i] = M(reallocarray)(M(malloc)(70), size ? size : 1, 1); break;
            case 4: blocks[i] = M(memalign)(8, size); break;
            case 5: blocks[i] = M(aligned_alloc)(1, size); break;
            default: blocks[i] = M(malloc)(size); break;
            }
            EXPECT(blocks[i] && is_aligned(blocks[i], 16), "entry %zu, %zu bytes: %p", i % 8, size, blocks[i]);
        }
        for (size_t i = 0; i < count; i++) {
            M(free)(blocks[i]);
        }
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"aligned_alloc_bad", aligned_alloc_bad},
        {"aligned_alloc_any_size", aligned_alloc_any_size},
        {"memalign_bad", memalign_bad},
        {"posix_memalign_bad", posix_memalign_bad},
        {"posix_memalign_too_large", posix_memalign_too_large},
        {"posix_memalign_sets_errno", posix_memalign_sets_errno},
        {"align_small", align_small},
        {"align_large", align_large},
        {"align_huge", align_huge},
        {"align_impossible", align_impossible},
        {"align_wraps", align_wraps},
        {"realloc_aligned", realloc_aligned},
        {"align_mixed", align_mixed},
        {"pages", pages},
        {"sixteen", sixteen},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 50);
}
