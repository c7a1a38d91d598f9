/* System calls that fail: the kernel refuses them from some moment on (seccomp).
 *
 *     refuse memory CALLS ERRNO     CALLS get memory: malloc serves from what it has or gives NULL and ENOMEM
 *     refuse give_back CALLS ERRNO  CALLS give memory back: it is kept and used again, errno is kept, calloc is zero
 *     refuse huge CALLS ERRNO       the same for blocks with mappings of their own
 *     refuse files CALLS ERRNO      CALLS get at files: nothing is known of limits, and that is all
 */
#include "process.h"

enum { LIVE = 200 };

static const size_t sizes[] = {1, 16, 64, 100, 1000, 1024, 5000, 20000, 40000, 300000, MIB, 3 * MIB, 40 * MIB};

static const char *calls;
static int code;

static struct {
    unsigned char *block;
    size_t size;
} live[LIVE];

static void live_check(size_t i, size_t size) {
    const unsigned char *block = live[i].block;
    for (size_t at = 0; at < size; at += at < 256 ? 1 : 997) {
        EXPECT(block[at] == (unsigned char)(at + i), "live block %zu of %zu bytes changed at %zu", i, live[i].size, at);
    }
}

static void live_make(void) {
    for (size_t i = 0; i < LIVE; i++) {
        live[i].size = sizes[i % (COUNT_OF(sizes) - 2)];
        live[i].block = malloc(live[i].size);
        EXPECT(live[i].block, "malloc(%zu) with nothing refused", live[i].size);
        for (size_t at = 0; at < live[i].size; at++) {
            live[i].block[at] = (unsigned char)(at + i);
        }
    }
}

/* ---- Calls that get memory ---- */

/* Blocks of one size until they are refused, or 16 MiB are had; then all of them are freed. Returns how many. */
static size_t take(size_t size) {
    void *list = NULL;
    size_t count = 0;
    size_t stride = size < sizeof(void *) ? sizeof(void *) : size;
    for (; count * stride < 16 * MIB; count++) {
        errno = 0;
        unsigned char *block = count % 3 == 0   ? malloc(stride)
                               : count % 3 == 1 ? calloc(1, stride)
                                                : memalign(64, stride);
        if (!block) {
            EXPECT(errno == ENOMEM, "%zu bytes: NULL", stride);
            break;
        }
        EXPECT(count % 3 != 1 || (!block[0] && !memcmp(block, block + 1, stride - 1)), "calloc(1, %zu) is not zero",
               stride);
        memset(block, 0xA5, stride);
        *(void **)(void *)block = list;
        list = block;
    }
    while (list) {
        void *next = *(void **)list;
        errno = 1234;
        free(list);
        EXPECT(errno == 1234, "free of %zu bytes changed errno", stride);
        list = next;
    }
    return count;
}

static void memory(void) {
    live_make();
    refuse_calls(calls, code);
    for (int round = 0; round < 2; round++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            size_t count = take(sizes[s]);
            if (count && sizes[s] <= 20000) {
                size_t again = take(sizes[s]);
                EXPECT(again * 2 >= count, "%zu blocks of %zu bytes, but %zu after their frees", count, sizes[s],
                       again);
            }
        }
    }
    for (size_t i = 0; i < LIVE; i++) { /* growth by copy where the kernel doesn't move pages; or not at all */
        static const size_t factors[] = {2, 5, 40};
        for (size_t f = 0; f < COUNT_OF(factors); f++) {
            size_t wanted = live[i].size * factors[f];
            if (wanted > 64 * MIB) {
                continue;
            }
            errno = 0;
            unsigned char *block = realloc(live[i].block, wanted);
            EXPECT(block || errno == ENOMEM, "realloc to %zu gave NULL", wanted);
            live[i].block = block ? block : live[i].block;
            live_check(i, live[i].size);
        }
    }
    for (size_t i = 0; i < LIVE; i++) {
        live_check(i, live[i].size);
        errno = 1234;
        live[i].block = realloc(live[i].block, (live[i].size + 1) / 2); /* what can't be moved is large enough */
        EXPECT(live[i].block && errno == 1234, "realloc from %zu down to a half", live[i].size);
        live_check(i, (live[i].size + 1) / 2);
        errno = 1234;
        free(live[i].block);
        EXPECT(errno == 1234, "free changed errno");
    }
    malloc_trim(0);
    void *block = malloc(100);
    EXPECT(block, "malloc(100) after all was freed");
    free(block);
}

/* ---- Calls that give memory back ---- */

static void churn(size_t size, size_t total) {
    static void *blocks[65536];
    size_t count = total / size;
    count = count < COUNT_OF(blocks) ? count : COUNT_OF(blocks);
    for (size_t i = 0; i < count; i++) {
        unsigned char *block = i % 2 ? calloc(1, size) : malloc(size);
        EXPECT(block, "no block of %zu bytes", size);
        EXPECT(i % 2 == 0 || (!block[0] && !memcmp(block, block + 1, size - 1)), "calloc(1, %zu) is not zero", size);
        memset(block, 0xA5, size);
        blocks[i] = block;
    }
    for (size_t i = 0; i < count; i++) {
        if (size >= MIB) { /* a tail that cannot be given back */
            unsigned char *less = realloc(blocks[i], size / 3);
            EXPECT(less && less[0] == 0xA5 && less[size / 3 - 1] == 0xA5, "realloc from %zu to %zu", size, size / 3);
            blocks[i] = less;
        }
        errno = 1234;
        free(blocks[i]);
        EXPECT(errno == 1234, "free of %zu bytes changed errno", size);
    }
    malloc_trim(0);
}

static void expect_bounded(size_t mapped_before) {
    size_t resident = resident_bytes();
    size_t mapped = statm_bytes("/proc/self/statm", 0);
    EXPECT(resident < 512 * MIB, "%zu MiB resident", resident / MIB);
    EXPECT(mapped < mapped_before + 2 * GIB, "address space grew by %zu MiB", (mapped - mapped_before) / MIB);
}

static void give_back(void) {
    live_make();
    size_t mapped = statm_bytes("/proc/self/statm", 0);
    refuse_calls(calls, code);
    for (int round = 0; round < 20; round++) {
        for (size_t s = 1; s + 1 < COUNT_OF(sizes); s++) {
            churn(sizes[s], sizes[s] < MIB ? 2 * MIB : 32 * MIB);
        }
    }
    expect_bounded(mapped);
    for (size_t i = 0; i < LIVE; i++) {
        live_check(i, live[i].size);
        free(live[i].block);
    }
}

static void huge(void) {
    live_make();
    size_t mapped = statm_bytes("/proc/self/statm", 0);
    refuse_calls(calls, code);
    for (int round = 0; round < 20; round++) {
        churn(40 * MIB, 80 * MIB);
    }
    expect_bounded(mapped);
    for (size_t i = 0; i < LIVE; i++) {
        live_check(i, live[i].size);
    }
}

/* ---- Calls that get at files ---- */

static void files(void) {
    refuse_calls(calls, code);
    errno = 1234;
    live_make();
    EXPECT(errno == 1234, "malloc changed errno");
    for (size_t s = 1; s < COUNT_OF(sizes); s++) {
        churn(sizes[s], 64 * MIB);
    }
    for (size_t i = 0; i < LIVE; i++) {
        live_check(i, live[i].size);
        free(live[i].block);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"memory", memory}, {"give_back", give_back}, {"huge", huge}, {"files", files}};
    if (argc == 4) {
        calls = argv[2];
        code = errno_by_name(argv[3]);
        if (!is_watched()) {
            return run_watched(argv, 2 * GIB, -1, 0);
        }
    }
    return run_case(calls ? argc : 1, argv, cases, COUNT_OF(cases), 50);
}
