/* jemalloc's functions with flags: what they promise, with the values of its own header.
 * Compiled twice: under their own names, and under hak_* with API_HAK. */
#include "expect.h"

#define LG_ALIGN(log2) ((int)(log2))
#define TCACHE(number) (((number) + 2) << 8)
#define ARENA(number) ((int)(((unsigned)(number) + 1) << 20))
enum { ZERO = 0x40, TCACHE_NONE = TCACHE(-1) };

#ifdef API_HAK
_Static_assert(HAK_MALLOCX_ZERO == ZERO && HAK_MALLOCX_TCACHE_NONE == TCACHE_NONE, "the values are jemalloc's");
#endif

static const size_t sizes[] = {1, 16, 17, 100, 1024, 1100, 5000, 32768, 32769, 40000, 300000, 3 * MIB, 40 * MIB};
static const int ways[] = {0, TCACHE_NONE, ARENA(3), ARENA(0) | TCACHE_NONE, ARENA(17) | TCACHE(5), TCACHE(1)};

static void *made(size_t size, int flags) {
    char *block = M(mallocx)(size, flags);
    EXPECT(block && owned(block), "mallocx(%zu, %#x) gave %p", size, (unsigned)flags, (void *)block);
    EXPECT(is_aligned(block, (size_t)1 << (flags & 63)), "mallocx(%zu, %#x) gave %p", size, (unsigned)flags,
           (void *)block);
    size_t usable = M(sallocx)(block, flags);
    EXPECT(usable == M(malloc_usable_size)(block) && usable >= size && usable >= M(nallocx)(size, flags),
           "mallocx(%zu, %#x): sallocx %zu, nallocx %zu", size, (unsigned)flags, usable, M(nallocx)(size, flags));
    for (size_t i = 0; flags & ZERO && i < usable; i += i < 64 * KIB || i + 64 * KIB >= usable ? 1 : 509) {
        EXPECT(!block[i], "byte %zu of %zu is not zero", i, usable);
    }
    memset(block, 0xA5, usable);
    return block;
}

static void blocks(void) {
    for (int round = 0; round < 4; round++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            for (size_t w = 0; w < COUNT_OF(ways); w++) {
                size_t size = sizes[s];
                M(dallocx)(made(size, ways[w]), ways[w]);
                M(sdallocx)(made(size, ways[w]), size, ways[w]);
                M(free)(made(size, ways[w]));
                void *block = M(malloc)(size);
                M(sdallocx)(block, M(sallocx)(block, 0), ways[w]);
                block = made(size, ways[w]);
                EXPECT(M(xallocx)(block, size, 100 * size, ways[w]) == M(sallocx)(block, 0), "xallocx of %zu", size);
                M(dallocx)(block, ways[(w + 1) % COUNT_OF(ways)]);
            }
        }
    }
    M(dallocx)(NULL, 0);
    M(sdallocx)(NULL, 8, TCACHE_NONE);
    M(dallocx)(NULL, TCACHE_NONE);
}

/* Blocks that were dirty come back as zeros where that is asked for, up to the last usable byte. */
static void zeros(void) {
    for (int round = 0; round < 2; round++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            for (size_t w = 0; w < COUNT_OF(ways); w++) {
                M(dallocx)(made(sizes[s], ways[w]), ways[w]);
                M(dallocx)(made(sizes[s], ways[w] | ZERO), ways[w]);
                M(dallocx)(made(sizes[s], ways[w] | ZERO | LG_ALIGN(8)), ways[w]);
            }
        }
    }
}

/* A kept mapping is larger than what is asked for, or becomes so; what it had is not seen. */
static void zeros_of_mappings(void) {
    uint64_t state = 1;
    for (int round = 0; round < 60; round++) {
        int flags = ways[round % 2] | ZERO; /* or past the cache */
        size_t size = 33 * MIB + random_size(&state, 1, 5 * MIB);
        void *block = made(size, flags);
        size_t had = M(sallocx)(block, 0);
        unsigned char *resized = M(rallocx)(block, size + 100000, flags);
        EXPECT(resized, "rallocx to %zu", size + 100000);
        size_t has = M(sallocx)(resized, 0);
        for (size_t at = had; at < has; at++) {
            EXPECT(!resized[at], "byte %zu of %zu is not zero", at, has);
        }
        memset(resized, 0xA5, has);
        M(dallocx)(resized, flags);
    }
}

/* Of what a block got when it was made smaller, too, and larger again. */
static void zeros_after_a_shrink(void) {
    M(free)(made(24576, 0));
    unsigned char *block = M(mallocx)(40000, ZERO);
    block = M(rallocx)(block, 20000, ZERO);
    block = opaque_pointer(M(rallocx)(block, 24000, ZERO)); /* all that sallocx tells of is looked at */
    for (size_t at = 0; at < M(sallocx)(block, 0); at++) {
        EXPECT(!block[at], "byte %zu is not zero", at);
    }
    M(dallocx)(block, 0);
}

/* What fits stays where it is, whatever the flags. */
static void stays(void) {
    static const int all[] = {0, TCACHE_NONE, LG_ALIGN(6), LG_ALIGN(12) | TCACHE_NONE, ZERO | TCACHE_NONE};
    static const size_t those[] = {4096, 20000, 300000, 3 * MIB, 40 * MIB};
    for (size_t f = 0; f < COUNT_OF(all); f++) {
        for (size_t s = 0; s < COUNT_OF(those); s++) {
            void *block = made(those[s], all[f]);
            EXPECT(M(rallocx)(block, those[s], all[f]) == block, "rallocx of %zu to the same (%#x)", those[s],
                   (unsigned)all[f]);
            EXPECT(M(rallocx)(block, those[s] - those[s] / 8, all[f]) == block, "rallocx of %zu to less (%#x)",
                   those[s], (unsigned)all[f]);
            M(dallocx)(block, all[f]);
        }
    }
}

/* Free by the right size what rallocx has left or moved: by the one that was asked for, or by the one that nallocx tells. Of
 * neighbours, so that some have an alignment by chance. */
static void sized_after_resizing(void) {
    static const size_t those[] = {16, 24, 40, 56, 100, 1000, 9000, 32700, 32768, 32769, 33000, 40000, 70000};
    static const int all[] = {
        0, TCACHE_NONE, LG_ALIGN(5), LG_ALIGN(6) | TCACHE_NONE, LG_ALIGN(12), LG_ALIGN(15), LG_ALIGN(16), LG_ALIGN(17)};
    enum { NEIGHBOURS = 16 };
    for (size_t s = 0; s < COUNT_OF(those); s++) {
        for (size_t f = 0; f < COUNT_OF(all) * COUNT_OF(all); f++) {
            int before = all[f % COUNT_OF(all)], after = all[f / COUNT_OF(all)];
            for (size_t less = 0; less < those[s]; less = less * 3 + 1) {
                void *neighbours[NEIGHBOURS];
                for (size_t i = 0; i < NEIGHBOURS; i++) neighbours[i] = made(those[s], before);
                for (size_t i = 0; i < NEIGHBOURS; i++) {
                    void *resized = M(rallocx)(neighbours[i], those[s] - less, after);
                    size_t told = M(nallocx)(those[s] - less, after);
                    EXPECT(M(sallocx)(resized, after) >= told, "%zu of %zu", those[s] - less, those[s]);
                    M(sdallocx)(resized, i % 2 == 0 ? those[s] - less : told, after & ~TCACHE_NONE);
                }
            }
        }
    }
}

static void alignments(void) {
    for (size_t s = 0; s < COUNT_OF(sizes) - 1; s++) {
        for (int log2 = 0; log2 <= 22; log2++) {
            for (size_t w = 0; w < COUNT_OF(ways); w++) {
                int flags = LG_ALIGN(log2) | ways[w];
                M(dallocx)(made(sizes[s], flags), flags);
                M(sdallocx)(made(sizes[s], flags), sizes[s], flags);
                M(free)(made(sizes[s], flags));
            }
        }
    }
}

/* The contents stay, the rest is zero if that is asked for, and the block is aligned, whatever it was. */
static void resizing(void) {
    static const int more[] = {0, ZERO, LG_ALIGN(6), LG_ALIGN(13) | ZERO};
    for (size_t from = 1; from < 3 * MIB; from += from * 3 + 1) {
        for (size_t to = 1; to < 4 * MIB; to += to * 3 + 1) {
            for (size_t i = 0; i < COUNT_OF(more) * COUNT_OF(ways); i++) {
                int flags = more[i % COUNT_OF(more)] | ways[i / COUNT_OF(more)];
                unsigned char *block = made(from, 0);
                size_t had = M(sallocx)(block, 0);
                unsigned char *resized = M(rallocx)(block, to, flags);
                EXPECT(resized && is_aligned(resized, (size_t)1 << (flags & 63)), "rallocx to %zu gave %p", to,
                       (void *)resized);
                size_t has = M(sallocx)(resized, 0);
                EXPECT(has >= to, "rallocx to %zu gave %zu", to, has);
                for (size_t at = 0; at < has; at++) {
                    int wanted = at < had && at < to ? 0xA5 : flags & ZERO && at >= had ? 0 : resized[at];
                    EXPECT(resized[at] == wanted, "byte %zu is %d after rallocx of %zu to %zu (%#x)", at, resized[at],
                           from, to, (unsigned)flags);
                }
                M(dallocx)(resized, 0);
            }
        }
    }
    M(dallocx)(M(rallocx)(NULL, 100, LG_ALIGN(8)), 0);
    void *least = M(rallocx)(made(1000, 0), opaque(0), 0);
    EXPECT(least, "rallocx to 0 bytes gave NULL");
    M(dallocx)(least, 0);
}

static void too_large(void) {
    static const size_t too_much[] = {SIZE_MAX, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, PTRDIFF_MAX};
    static const int all[] = {0, ZERO, TCACHE_NONE, LG_ALIGN(12), LG_ALIGN(12) | ZERO | TCACHE_NONE};
    for (size_t s = 0; s < COUNT_OF(too_much); s++) {
        for (size_t f = 0; f < COUNT_OF(all); f++) {
            EXPECT(M(nallocx)(opaque(too_much[s]), all[f]) == 0, "nallocx of %zu", too_much[s]);
            EXPECT_REFUSED(ENOMEM, M(mallocx)(opaque(too_much[s]), all[f]));
            char *block = made(100, 0);
            EXPECT_REFUSED(ENOMEM, M(rallocx)(block, opaque(too_much[s]), all[f]));
            EXPECT(block[99] == (char)0xA5, "the block of a refused rallocx changed");
            M(dallocx)(block, 0);
        }
    }
    EXPECT(M(nallocx)(1, LG_ALIGN(63)) == 0, "nallocx of alignment 2^63");
    EXPECT_REFUSED(ENOMEM, M(mallocx)(1, LG_ALIGN(63)));
}

/* nallocx is a size that costs nothing more: asked for, it is what a block has. */
static void good_sizes(void) {
    for (size_t size = 0; size < 70 * KIB; size += size < 2100 ? 1 : 61) {
        size_t good = M(nallocx)(size, 0);
        EXPECT(good >= size && good - size <= size / 7 + 4096 && M(nallocx)(good, 0) == good, "nallocx(%zu) is %zu",
               size, good);
        void *block = M(malloc)(size);
        EXPECT(M(malloc_usable_size)(block) >= good, "malloc(%zu) has less than %zu", size, good);
        M(free)(block);
        for (int log2 = 5; log2 < 17; log2++) {
            M(dallocx)(made(size, LG_ALIGN(log2)), 0);
        }
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"blocks", blocks},
        {"zeros", zeros},
        {"alignments", alignments},
        {"resizing", resizing},
        {"sized_after_resizing", sized_after_resizing},
        {"too_large", too_large},
        {"good_sizes", good_sizes},
        {"zeros_of_mappings", zeros_of_mappings},
        {"zeros_after_a_shrink", zeros_after_a_shrink},
        {"stays", stays},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 50);
}
