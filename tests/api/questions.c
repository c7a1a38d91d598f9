/* What a program may ask its allocator through the standard interface: mallopt, malloc_trim, malloc_stats, malloc_info,
 * mallinfo, mallinfo2. The answers must be about the heap that serves the program. */
#include "expect.h"
#include "in_stack.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ---- mallopt ---- */

/* Every parameter that glibc documents is accepted, and the heap works whatever was asked. */
static void tuning(void) {
    static const int known[][2] = {
        {M_MXFAST, 64},      {M_TRIM_THRESHOLD, 1 << 20},
        {M_TOP_PAD, 4096},   {M_MMAP_THRESHOLD, 1 << 20},
        {M_MMAP_MAX, 10},    {M_MMAP_MAX, 0},
        {M_CHECK_ACTION, 3}, {M_PERTURB, 0x5A},
        {M_PERTURB, 0},      {M_ARENA_TEST, 4},
        {M_ARENA_MAX, 1},    {M_TRIM_THRESHOLD, -1},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        int code = mallopt(known[i][0], known[i][1]);
        EXPECT(code == 1, "mallopt(%d, %d) gave %d", known[i][0], known[i][1], code);
        for (size_t size = 1; size < 8 * MIB; size *= 3) {
            char *block = malloc(size);
            char *zeros = calloc(1, size);
            EXPECT(block && zeros, "malloc(%zu) after mallopt(%d, %d)", size, known[i][0], known[i][1]);
            EXPECT(!zeros[0] && !zeros[size - 1], "calloc(1, %zu) after mallopt(%d, %d)", size, known[i][0],
                   known[i][1]);
            memset(block, 1, size);
            memset(zeros, 1, size);
            free(block);
            free(zeros);
        }
    }
    static const int unknown[] = {-100, -9, 0, 2, 3, 4, 77};
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        int code = mallopt(unknown[i], 1);
        EXPECT(code == 1, "mallopt(%d, 1) gave %d", unknown[i], code); /* as glibc's */
    }
}

static pthread_barrier_t begun, ended;

static void *have_memory(void *unused) {
    free(malloc(100));
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&ended);
    return unused;
}

/* What a threshold of -1 keeps goes back again when the program takes that back. With two threads: one alone keeps what
 * it has shown to use again. */
static void tuning_taken_back(void) {
    enum { BYTES = 200 * MIB };
    pthread_t thread;
    pthread_barrier_init(&begun, NULL, 2);
    pthread_barrier_init(&ended, NULL, 2);
    EXPECT(pthread_create(&thread, NULL, have_memory, NULL) == 0, "no thread");
    pthread_barrier_wait(&begun);
    EXPECT(mallopt(M_TRIM_THRESHOLD, -1) == 1 && mallopt(M_MMAP_MAX, 0) == 1, "mallopt");
    size_t before = resident_bytes();
    free(memset(malloc(BYTES), 1, BYTES));
    size_t kept = resident_bytes();
    EXPECT(kept > before + BYTES / 2, "%zu MiB resident, %zu before", kept / MIB, before / MIB);
    malloc_trim(0);
    EXPECT(mallopt(M_TRIM_THRESHOLD, 1 << 16) == 1 && mallopt(M_MMAP_MAX, 1 << 16) == 1, "mallopt");
    free(memset(malloc(BYTES), 1, BYTES));
    size_t freed = resident_bytes();
    EXPECT(freed < before + BYTES / 4, "%zu MiB resident, %zu before", freed / MIB, before / MIB);
    pthread_barrier_wait(&ended);
    pthread_join(thread, NULL);
}

/* libc's own threshold means nothing else than no threshold at all: memory that is used again stays. */
static void usual_threshold(void) {
    enum { ROUNDS = 100, BLOCKS = 4000, BYTES = 1000, MOST_FAULTS = ROUNDS / 4 * BLOCKS * BYTES / 4096 };
    static void *blocks[BLOCKS];
    struct rusage before, after;
    EXPECT(mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1 && mallopt(M_TRIM_THRESHOLD, 128 << 10) == 1, "mallopt");
    getrusage(RUSAGE_SELF, &before);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
        for (int i = BLOCKS; i-- > 0;) free(blocks[i]);
    }
    getrusage(RUSAGE_SELF, &after);
    long faults = after.ru_minflt - before.ru_minflt;
    EXPECT(faults < MOST_FAULTS, "%ld page faults, expected less than %d", faults, MOST_FAULTS);
}

/* ---- A heap to ask about ---- */

enum { BLOCKS = 40000 };

struct heap {
    void *blocks[BLOCKS];
    size_t count;
    size_t bytes;
};

/* Records live outside the heap they describe. */
static struct heap *heap_make(void) {
    void *memory = mmap(NULL, sizeof(struct heap), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED, "no memory for the records");
    return memory;
}

static void heap_fill(struct heap *heap, size_t low, size_t high, size_t bytes) {
    uint64_t state = 12;
    for (heap->count = 0, heap->bytes = 0; heap->count < BLOCKS && heap->bytes < bytes; heap->count++) {
        size_t size = random_size(&state, low, high);
        void *block = malloc(size);
        EXPECT(block, "malloc(%zu)", size);
        memset(block, 1, size);
        heap->blocks[heap->count] = block;
        heap->bytes += size;
    }
}

static void heap_free(struct heap *heap) {
    for (size_t i = 0; i < heap->count; i++) {
        free(heap->blocks[i]);
    }
}

/* ---- mallinfo ---- */

/* a is b within a fifth. */
static int about(size_t a, size_t b) { return a >= b - b / 5 && a <= b + b / 5; }

static void info_follows(size_t low, size_t high, size_t bytes) {
    struct heap *heap = heap_make();
    for (int round = 0; round < 2; round++) {
        struct mallinfo2 before = mallinfo2();
        heap_fill(heap, low, high, bytes);
        struct mallinfo2 full = mallinfo2();
        /* What has a mapping of its own may be counted as in use, or only as mapped. */
        size_t used = full.uordblks - before.uordblks;
        size_t with_maps = used + full.hblkhd - before.hblkhd;
        EXPECT(about(used, heap->bytes) || about(with_maps, heap->bytes),
               "%zu bytes allocated; uordblks grew by %zu, with hblkhd by %zu", heap->bytes, used, with_maps);
        EXPECT(high > 64 * KIB || about(used, heap->bytes), "%zu bytes in small blocks; uordblks grew by %zu",
               heap->bytes, used);
        EXPECT(full.arena + full.hblkhd >= full.uordblks, "arena %zu + hblkhd %zu < uordblks %zu", full.arena,
               full.hblkhd, full.uordblks);
        heap_free(heap);
        struct mallinfo2 after = mallinfo2();
        size_t left = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        EXPECT(left < heap->bytes / 5 || left > SIZE_MAX / 2, "uordblks + hblkhd is %zu more after all was freed",
               left);
    }
}

static void info_small(void) { info_follows(16, 2 * KIB, 16 * MIB); }

static void info_medium(void) { info_follows(2 * KIB, 32 * KIB, 32 * MIB); }

static void info_large(void) { info_follows(64 * KIB + 1, 16 * MIB, 96 * MIB); }

/* The old form has the same figures, as int. */
static void info_old(void) {
    struct heap *heap = heap_make();
    heap_fill(heap, 16, 2 * KIB, 4 * MIB);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo narrow = mallinfo();
#pragma GCC diagnostic pop
    struct mallinfo2 wide = mallinfo2();
    EXPECT((size_t)narrow.uordblks >= heap->bytes && about((size_t)narrow.uordblks, wide.uordblks),
           "uordblks is %d in mallinfo, %zu in mallinfo2", narrow.uordblks, wide.uordblks);
    EXPECT(about((size_t)narrow.arena + 1, wide.arena + 1), "arena is %d in mallinfo, %zu in mallinfo2", narrow.arena,
           wide.arena);
    heap_free(heap);
}

/* Who asks libc by its file name, as psutil's heap_info does, learns of libc's heap, in which there is nothing. */
static void info_of_libc(void) {
    struct heap *heap = heap_make();
    heap_fill(heap, 16, 8 * KIB, 16 * MIB);
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    struct mallinfo2 (*of_libc)(void) = libc ? (struct mallinfo2(*)(void))dlsym(libc, "mallinfo2") : NULL;
    if (!of_libc) {
        SKIP("this libc has no mallinfo2");
    }
    EXPECT(of_libc().uordblks < MIB && mallinfo2().uordblks >= 16 * MIB, "libc's heap has %zu bytes, hakmem's %zu",
           of_libc().uordblks, mallinfo2().uordblks);
    heap_free(heap);
    dlclose(libc);
}

/* ---- malloc_trim ---- */

/* 1 when it gave memory back, 0 when there was nothing to give. */
static void trim(void) {
    struct heap *heap = heap_make();
    heap_fill(heap, 16, 8 * KIB, 48 * MIB);
    void *last = malloc(100); /* nothing is to be had by cutting off the end of the heap */
    size_t full = resident_bytes();
    heap_free(heap);
    size_t freed = resident_bytes();
    int code = malloc_trim(0);
    size_t trimmed = resident_bytes();
    EXPECT(code == 1 || (code == 0 && freed < full / 4), "malloc_trim gave %d with %zu bytes resident", code, freed);
    EXPECT(trimmed < full / 4, "resident: %zu full, %zu freed, %zu trimmed", full, freed, trimmed);
    for (int i = 0; code == 1 && i < 3; i++) {
        code = malloc_trim(0);
    }
    EXPECT(code == 0, "malloc_trim gives %d when called again and again", code);
    free(last);
    EXPECT(malloc_trim(64 * MIB) >= 0, "malloc_trim with a pad");
    heap_fill(heap, 16, 8 * KIB, 4 * MIB);
    heap_free(heap);
}

/* ---- Text ---- */

/* What the call writes to the given stream descriptor, in a static buffer. */
static const char *written_by(void (*call)(void), int descriptor) {
    static char text[256 * 1024];
    int file = memfd_create("written", MFD_CLOEXEC);
    int saved = dup(descriptor);
    EXPECT(file >= 0 && saved >= 0 && dup2(file, descriptor) == descriptor, "no file to write to");
    call();
    fflush(NULL);
    dup2(saved, descriptor);
    close(saved);
    ssize_t length = pread(file, text, sizeof(text) - 1, 0);
    close(file);
    text[length > 0 ? length : 0] = 0;
    return text;
}

static void call_malloc_stats(void) { malloc_stats(); }

static void stats_text(void) {
    struct heap *heap = heap_make();
    heap_fill(heap, 1000, 8 * KIB, MIB);
    const char *text = written_by(call_malloc_stats, STDERR_FILENO);
    EXPECT(strlen(text) > 20 && strpbrk(text, "123456789"), "malloc_stats wrote \"%.60s\"", text);
    EXPECT(!*written_by(call_malloc_stats, STDOUT_FILENO), "malloc_stats wrote to stdout");
    /* The figures are of this heap: they differ with 64 MiB more in use. */
    static char before[256 * 1024];
    strcpy(before, text);
    heap_fill(heap, 1000, 8 * KIB, 64 * MIB);
    text = written_by(call_malloc_stats, STDERR_FILENO);
    EXPECT(strcmp(before, text) != 0, "malloc_stats does not see 64 MiB");
    heap_free(heap);
}

/* Ends of elements match their starts, and one element holds all. Enough of XML for what malloc_info writes. */
static int well_formed(const char *text) {
    struct {
        const char *name;
        size_t length;
    } open_elements[32];
    size_t depth = 0;
    int roots = 0;
    for (const char *at = strchr(text, '<'); at; at = strchr(at, '<')) {
        const char *end = strchr(at, '>');
        if (!end) {
            return 0;
        }
        if (at[1] == '/') {
            size_t length = (size_t)(end - at - 2);
            if (!depth || open_elements[depth - 1].length != length ||
                memcmp(open_elements[depth - 1].name, at + 2, length)) {
                return 0;
            }
            depth--;
        } else if (at[1] != '?' && at[1] != '!') {
            roots += depth == 0;
            if (end[-1] != '/') {
                if (depth == COUNT_OF(open_elements)) {
                    return 0;
                }
                open_elements[depth].name = at + 1;
                open_elements[depth++].length = strcspn(at + 1, " >");
            }
        }
        at = end;
    }
    return depth == 0 && roots == 1;
}

static void call_malloc_info(void) {
    int code = malloc_info(0, stdout);
    EXPECT(code == 0, "malloc_info gave %d", code);
}

static void info_text(void) {
    static const char start[] = "<malloc version=";
    static char before[256 * 1024];
    strcpy(before, written_by(call_malloc_info, STDOUT_FILENO));
    EXPECT(!strncmp(before, start, strlen(start)), "malloc_info wrote \"%.60s\"", before);
    EXPECT(well_formed(before), "malloc_info wrote no well-formed XML: \"%.200s\"", before);
    struct heap *heap = heap_make();
    heap_fill(heap, 1000, 8 * KIB, 64 * MIB);
    const char *text = written_by(call_malloc_info, STDOUT_FILENO);
    EXPECT(well_formed(text), "malloc_info wrote no well-formed XML: \"%.200s\"", text);
    EXPECT(strcmp(before, text) != 0, "malloc_info does not see 64 MiB");
    heap_free(heap);
    int code = malloc_info(1, stdout);
    EXPECT(code != 0, "malloc_info with an unknown option gave %d", code);
}

/* ---- Small stacks ---- */

static FILE *nowhere;

static void ask_everything(void) {
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 info = mallinfo2();
    EXPECT(info.uordblks > 0, "mallinfo2 counts nothing");
#endif
    EXPECT(malloc_info(0, nowhere) == 0, "malloc_info failed");
    malloc_stats();
    malloc_trim(0);
}

/* Coroutines have stacks of a page. */
static void small_stack(void) {
    nowhere = fopen("/dev/null", "w");
    EXPECT(nowhere != NULL, "no file");
    run_in_stack(ask_everything, 4096);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"small_stack", small_stack},
        {"tuning", tuning},
        {"tuning_taken_back", tuning_taken_back},
        {"usual_threshold", usual_threshold},
        {"info_small", info_small},
        {"info_medium", info_medium},
        {"info_large", info_large},
        {"info_old", info_old},
        {"info_of_libc", info_of_libc},
        {"trim", trim},
        {"stats_text", stats_text},
        {"info_text", info_text},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
