/* The pages of a process on hakmem: how many it holds, when they go back, what rights they have. */
#include "process.h"

#include <malloc.h>
#include <stdbool.h>
#include <pthread.h>
#include <sys/mman.h>

/* ---- Huge requests ---- */

/* 1 TiB to 2^56 bytes: refused, or usable at both ends without touching the rest. */
static void tebibytes(void) {
    for (int shift = 40; shift <= 56; shift++) {
        for (int entry = 0; entry < 4; entry++) {
            size_t size = opaque((size_t)1 << shift);
            size_t resident = resident_bytes();
            errno = 0;
            volatile char *block = entry == 0   ? malloc(size)
                                   : entry == 1 ? calloc(1, size)
                                   : entry == 2 ? memalign(4096, size)
                                                : calloc(size / 8, 8);
            EXPECT(block || errno == ENOMEM, "2^%d bytes: NULL", shift);
            if (block) {
                EXPECT(entry % 2 == 0 || (!block[0] && !block[size / 2] && !block[size - 1]), "calloc of 2^%d is dirty",
                       shift);
                block[0] = 1;
                block[size / 2] = 2;
                block[size - 1] = 3;
                EXPECT(malloc_usable_size((void *)block) >= size, "usable size of 2^%d bytes", shift);
                free((void *)block);
            }
            size_t now = resident_bytes();
            EXPECT(now < resident + 64 * MIB, "2^%d bytes: %zu MiB more resident", shift, (now - resident) / MIB);
        }
        void *old = malloc(1000);
        memset(old, 'x', 1000);
        errno = 0;
        char *grown = realloc(old, opaque((size_t)1 << shift));
        EXPECT(grown || errno == ENOMEM, "realloc to 2^%d bytes", shift);
        grown = grown ? grown : old;
        EXPECT(grown[0] == 'x' && grown[999] == 'x', "realloc to 2^%d bytes lost contents", shift);
        free(grown);
    }
    void *block = malloc(100);
    EXPECT(block, "malloc(100)");
    free(block);
}

/* ---- Zeros that are hardly touched ---- */

/* Arrays of zeros of which an element is set, again and again. */
static void zeros(void) {
    static const size_t sizes[] = {MIB, 8 * MIB, 30 * MIB};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t count = 240 * MIB / sizes[i], before = resident_bytes();
        for (int round = 0; round < 4; round++) {
            static char *arrays[240];
            for (size_t j = 0; j < count; j++) {
                arrays[j] = calloc(1, opaque(sizes[i]));
                EXPECT(arrays[j] != NULL, "calloc(1, %zu)", sizes[i]);
                EXPECT(arrays[j][sizes[i] / 2] == 0, "calloc(1, %zu) is dirty", sizes[i]);
                arrays[j][sizes[i] / 2] = 1;
            }
            size_t now = resident_bytes();
            EXPECT(now < before + 48 * MIB, "arrays of %zu bytes: %zu MiB resident", sizes[i], (now - before) / MIB);
            for (size_t j = 0; j < count; j++) free(arrays[j]);
        }
    }
}

/* ---- mlockall ---- */

static void *use_some(void *unused) {
    (void)unused;
    for (size_t size = 16; size <= MIB; size *= 4) {
        void *blocks[8];
        for (size_t i = 0; i < COUNT_OF(blocks); i++) {
            blocks[i] = malloc(size);
            EXPECT(blocks[i], "malloc(%zu)", size);
            memset(blocks[i], 1, size);
        }
        for (size_t i = 0; i < COUNT_OF(blocks); i++) {
            free(blocks[i]);
        }
    }
    return NULL;
}

/* All memory that becomes writable is populated: an allocator that commits by the gigabyte fills the machine. */
static void locked(int flags) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &all);
    size_t before = resident_bytes();
    if (mlockall(flags)) {
        SKIP("mlockall: errno %d", errno);
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * KIB);
    use_some(NULL);
    for (int round = 0; round < 3; round++) {
        pthread_t threads[4];
        for (size_t i = 0; i < COUNT_OF(threads); i++) {
            int code = pthread_create(&threads[i], &attributes, use_some, NULL);
            EXPECT(code == 0, "pthread_create gave %d", code);
        }
        for (size_t i = 0; i < COUNT_OF(threads); i++) {
            pthread_join(threads[i], NULL);
        }
    }
    static void *blocks[20000];
    uint64_t state = 3;
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        size_t size = random_size(&state, 16, i % 100 ? 2 * KIB : 128 * KIB);
        blocks[i] = malloc(size);
        EXPECT(blocks[i], "malloc(%zu)", size);
        memset(blocks[i], 1, size);
    }
    size_t after = resident_bytes();
    EXPECT(after < before + 400 * MIB, "%zu MiB more resident", (after - before) / MIB);
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        free(blocks[i]);
    }
    malloc_trim(0);
    for (size_t size = 16; size <= 4 * MIB; size *= 2) { /* pages that were given back are zero in spite of the lock */
        unsigned char *zeros = calloc(1, size);
        EXPECT(zeros && !zeros[0] && !memcmp(zeros, zeros + 1, size - 1), "calloc(1, %zu) is not zero", size);
        memset(zeros, 0xA5, size);
        free(zeros);
        malloc_trim(0);
    }
}

static void locked_now_and_later(void) { locked(MCL_CURRENT | MCL_FUTURE); }

static void locked_later(void) { locked(MCL_FUTURE); }

static bool is_locked(const void *address) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    bool is_there = false, found = false;
    unsigned long start, end;
    char line[512];
    EXPECT(maps, "no smaps");
    while (!found && fgets(line, sizeof(line), maps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
            is_there = start <= (uintptr_t)address && (uintptr_t)address < end;
        }
        found = is_there && strncmp(line, "VmFlags:", 8) == 0;
    }
    fclose(maps);
    return found && strstr(line, " lo") != NULL;
}

/* What realloc has moved a block away from is locked still, for the next one. */
static void locked_moved(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &all);
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) {
        SKIP("mlockall: errno %d", errno);
    }
    char *block = memset(memalign(2 * MIB, 8 * MIB), 1, 8 * MIB), *wall = memalign(2 * MIB, 8 * MIB);
    char *grown = realloc(block, 20 * MIB);
    EXPECT(grown && grown[8 * MIB - 1] == 1, "realloc");
    EXPECT(is_locked(grown), "what was moved isn't locked");
    char *next = memalign(2 * MIB, 8 * MIB);
    EXPECT(is_locked(next), "the next block isn't locked");
    free(next);
    free(wall);
    free(grown);
}

static size_t locked_kib(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    size_t kib = 0;
    EXPECT(status, "no status");
    while (fgets(line, sizeof line, status)) {
        sscanf(line, "VmLck: %zu kB", &kib);
    }
    fclose(status);
    return kib;
}

enum { LOCKED_BLOCKS = 6 };

/* A block grows where others, beside it, are locked as it is: realloc moves it, and leaves them what they are. What is
 * unlocked counts as locked no more. */
static void realloc_beside_locked(bool all) {
    char *blocks[LOCKED_BLOCKS];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = memset(malloc(MIB), 1, MIB);
        if (!all && mlock(blocks[i], MIB)) {
            SKIP("mlock: errno %d", errno);
        }
    }
    if (all && mlockall(MCL_CURRENT)) {
        SKIP("mlockall: errno %d", errno);
    }
    for (size_t i = 1; i < COUNT_OF(blocks); i += 2) {
        blocks[i] = realloc(blocks[i], 3 * MIB / 2);
        EXPECT(blocks[i] && blocks[i][MIB - 1] == 1, "realloc");
        for (size_t j = 0; j < COUNT_OF(blocks); j += 2) {
            EXPECT(is_locked(blocks[j]) && is_locked(blocks[j] + MIB - 1), "block %zu is locked no more", j);
        }
    }
    munlockall();
    EXPECT(locked_kib() == 0, "%zu KiB are locked", locked_kib());
}

static void locked_beside(void) { realloc_beside_locked(false); }

static void locked_beside_all(void) { realloc_beside_locked(true); }

/* The recipe of real-time programs: what was used once is there when it is wanted again. */
static void never_trimmed(void) {
    EXPECT(mallopt(M_TRIM_THRESHOLD, -1) == 1 && mallopt(M_MMAP_MAX, 0) == 1, "mallopt");
    const size_t sizes[] = {16 * MIB, 48 * MIB, 150 * MIB}; /* a run, and mappings */
    for (size_t size = 0; size < COUNT_OF(sizes); size++) {
        size_t bytes = sizes[size];
        void *block = malloc(200000), *wall = malloc(200000); /* of the calls that look at the clock */
        free(memset(malloc(bytes), 1, bytes));
        free(block);
        for (int period = 0; period < 3; period++) {
            struct timespec rest = {.tv_sec = 1, .tv_nsec = 200000000};
            nanosleep(&rest, NULL);
            for (int i = 0; i < 1000; i++) {
                free(malloc(200000));
            }
        }
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        free(memset(malloc(bytes), 2, bytes));
        getrusage(RUSAGE_SELF, &after);
        EXPECT(after.ru_minflt - before.ru_minflt < 10, "%ld page faults", after.ru_minflt - before.ru_minflt);
        free(wall);
    }
}

/* ---- Giving back ---- */

enum { BLOCKS = 1 << 21 };

#define HEAP_BYTES (256 * MIB)

static void **blocks; /* outside the heap */
static size_t block_count;

static void fill_heap(size_t low, size_t high) {
    size_t bytes = 0;
    uint64_t state = 9;
    for (block_count = 0; block_count < BLOCKS && bytes < HEAP_BYTES; block_count++) {
        /* In a mix, a third of the bytes each: small, medium, large. */
        size_t most = low < high ? high : block_count % 4096 == 0 ? 4 * MIB : block_count % 64 == 0 ? 32 * KIB : KIB;
        size_t size = random_size(&state, low, most);
        char *block = malloc(size);
        EXPECT(block, "malloc(%zu)", size);
        memset(block, 1, size);
        blocks[block_count] = block;
        bytes += size;
    }
}

enum order { FORWARD, BACKWARD, SHUFFLED };

static void free_heap(enum order order) {
    uint64_t state = 10;
    for (size_t i = block_count; i-- > 1 && order != FORWARD;) {
        size_t other = order == BACKWARD ? block_count - 1 - i : random_next(&state) % (i + 1);
        if (order == BACKWARD && other >= i) {
            break;
        }
        void *swapped = blocks[i];
        blocks[i] = blocks[other];
        blocks[other] = swapped;
    }
    for (size_t i = 0; i < block_count; i++) {
        free(blocks[i]);
    }
}

static void make_records(void) {
    blocks =
        mmap(NULL, BLOCKS * sizeof(void *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    EXPECT(blocks != MAP_FAILED, "no memory for the records");
}

static void expect_given_back(size_t start, size_t full, const char *kind) {
    size_t freed = resident_bytes();
    malloc_trim(0);
    size_t trimmed = resident_bytes();
    EXPECT(full > start + HEAP_BYTES * 8 / 10 && trimmed < start + (full - start) / 4,
           "%s: resident MiB at start %zu, full %zu, freed %zu, trimmed %zu", kind, start / MIB, full / MIB,
           freed / MIB, trimmed / MIB);
}

static void purge(size_t low, size_t high, const char *kind) {
    make_records();
    for (enum order order = FORWARD; order <= SHUFFLED; order++) {
        size_t start = resident_bytes();
        fill_heap(low, high);
        size_t full = resident_bytes();
        free_heap(order);
        expect_given_back(start, full, kind);
    }
}

static void purge_small(void) { purge(128, KIB, "small"); }

static void purge_medium(void) { purge(2 * KIB, 32 * KIB, "medium"); }

static void purge_large(void) { purge(64 * KIB, 8 * MIB, "large"); }

static void purge_mixed(void) { purge(16, 16, "mixed"); }

static void *free_all(void *unused) {
    (void)unused;
    free_heap(SHUFFLED);
    return NULL;
}

static void *fill_all(void *unused) {
    (void)unused;
    fill_heap(16, 16);
    return NULL;
}

static void in_thread(void *(*run)(void *)) {
    pthread_t thread;
    int code = pthread_create(&thread, NULL, run, NULL);
    EXPECT(code == 0, "pthread_create gave %d", code);
    pthread_join(thread, NULL);
}

/* Freed by another thread than the one that allocated, with one of the two gone. */
static void purge_remote(void) {
    make_records();
    for (int round = 0; round < 4; round++) {
        size_t start = resident_bytes();
        if (round % 2) {
            fill_all(NULL);
        } else {
            in_thread(fill_all);
        }
        size_t full = resident_bytes();
        if (round / 2) {
            free_all(NULL);
        } else {
            in_thread(free_all);
        }
        expect_given_back(start, full, "remote");
    }
}

/* One block in a thousand stays: the holes between go back, what stays is intact. */
static void purge_holes(void) {
    make_records();
    size_t start = resident_bytes();
    fill_heap(512, 2 * KIB);
    size_t full = resident_bytes();
    size_t kept = 0;
    for (size_t i = 0; i < block_count; i++) {
        if (i % 1000) {
            free(blocks[i]);
        } else {
            memset(blocks[i], 'k', 512);
            blocks[kept++] = blocks[i];
        }
    }
    expect_given_back(start, full, "holes");
    for (size_t i = 0; i < kept; i++) {
        char *bytes = blocks[i];
        EXPECT(bytes[0] == 'k' && !memcmp(bytes, bytes + 1, 511), "live block %p changed", blocks[i]);
        free(bytes);
    }
}

/* A huge block goes back when it is freed; nobody has to ask. */
static void huge_at_once(void) {
    for (int round = 0; round < 2; round++) {
        size_t start = resident_bytes();
        char *block = malloc(HEAP_BYTES);
        EXPECT(block, "malloc of 256 MiB");
        memset(block, 1, HEAP_BYTES);
        size_t full = resident_bytes();
        free(block);
        size_t freed = resident_bytes();
        EXPECT(full > start + HEAP_BYTES - MIB && freed < start + HEAP_BYTES / 4,
               "resident MiB: start %zu, full %zu, freed %zu", start / MIB, full / MIB, freed / MIB);
    }
}

/* ---- Rights ---- */

static void never_executable(void) {
    use_some(NULL);
    in_thread(use_some);
    void *kept[] = {malloc(10), malloc(5000), malloc(100000), malloc(30 * MIB)};
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) {
        SKIP("no /proc/self/maps");
    }
    char line[600];
    int count = 0;
    while (fgets(line, sizeof(line), maps)) {
        char rights[8] = "";
        EXPECT(sscanf(line, "%*s %7s", rights) == 1, "a line of maps: %s", line);
        EXPECT(!(strchr(rights, 'w') && strchr(rights, 'x')), "writable and executable: %s", line);
        count++;
    }
    fclose(maps);
    EXPECT(count > 5, "%d mappings", count);
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        free(kept[i]);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"tebibytes", tebibytes},
        {"zeros", zeros},
        {"locked", locked_now_and_later},
        {"locked_later", locked_later},
        {"locked_moved", locked_moved},
        {"locked_beside", locked_beside},
        {"locked_beside_all", locked_beside_all},
        {"never_trimmed", never_trimmed},
        {"purge_small", purge_small},
        {"purge_medium", purge_medium},
        {"purge_large", purge_large},
        {"purge_mixed", purge_mixed},
        {"purge_remote", purge_remote},
        {"purge_holes", purge_holes},
        {"huge_at_once", huge_at_once},
        {"never_executable", never_executable},
    };
    if (argc > 1 && !is_watched()) {
        return run_watched(argv, 2 * GIB, -1, 0);
    }
    return run_case(argc, argv, cases, COUNT_OF(cases), 50);
}
