/* The addresses that hakmem takes: as many as it uses. Each case compares with the C library's own heap, which the program itself
 * runs on: it starts a copy of itself with hakmem preloaded, and one without.
 *
 *     address_space virt|limit_as|limit_data|again|shrunk|child|one|grown|parts|refused|too_much|anonymous|random|random_without_aslr|same_by_seed LIBRARY [BYTES]
 *
 * The blocks of limit_as, limit_data, again and shrunk have so many BYTES. A copy is `address_space CASE "" BYTES`. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/personality.h>

#include "process.h"

enum { BLOCKS = 10 << 20, TOLERANCE_PERCENT = 5, MORE_MIB = 1024 };

static const char *library, *name_of_case, *bytes_of_case = "65536";

/* ---- What a copy does: prints numbers ------------------------------------------------------------------------------- */

static void copy_virt(void) {
    free(malloc(1));
    say("%lu\n", (unsigned long)status_kib("VmSize"));
}

/* What a debugger's core has of a heap of 10 MiB: all that is mapped without a file, whether or not it was ever touched. */
static void copy_anonymous(void) {
    for (size_t at = 0; at < BLOCKS; at += 1000) memset(malloc(1000), 1, 1000);
    char line[512];
    uint64_t bytes = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long start, end, inode;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &inode) == 3 && inode == 0 &&
            strstr(line, "[stack]") == NULL && strstr(line, "[v") == NULL)
            bytes += end - start;
    }
    if (file != NULL) fclose(file);
    say("%lu\n", (unsigned long)(bytes >> 10));
}

static void *allocate(void *unused) { return (void)unused, malloc(100); }

/* The limit comes when the program runs. Then threads begin, libraries are loaded, memory is mapped; and malloc gives what the limit leaves,
 * and no more. Prints how much, in MiB. */
static void copy_limit(__rlimit_resource_t resource) {
    enum { LIMIT_MIB = 512 };
    size_t block_bytes = strtoul(bytes_of_case, NULL, 10);
    void *kept = malloc(1000);
    struct rlimit limit = {(rlim_t)LIMIT_MIB << 20, (rlim_t)LIMIT_MIB << 20};
    if (kept == NULL || setrlimit(resource, &limit) != 0) SKIP("setrlimit: errno %d", errno);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, allocate, NULL) == 0, "case %s", name_of_case);
    void *block;
    pthread_join(thread, &block);
    EXPECT(block != NULL, "case %s", name_of_case);
    EXPECT(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED, "case %s",
           name_of_case);
    EXPECT(dlopen("libm.so.6", RTLD_NOW) != NULL, "case %s", name_of_case);
    uint64_t count = 0;
    for (char *more; (more = malloc(block_bytes)) != NULL && count * block_bytes < (uint64_t)4 * LIMIT_MIB << 20;
         count++)
        more[0] = more[block_bytes - 1] = 1;
    say("%lu\n", (unsigned long)(count * block_bytes >> 20));
}

/* What is there the fifth time that all of it is freed and asked for again. */
static void copy_again(void) {
    enum { LIMIT_MIB = MORE_MIB, TIMES = 5 };
    static void *blocks[(LIMIT_MIB << 20) / 4096];
    size_t block_bytes = strtoul(bytes_of_case, NULL, 10), count = 0;
    struct rlimit limit = {(rlim_t)LIMIT_MIB << 20, (rlim_t)LIMIT_MIB << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0) SKIP("setrlimit: errno %d", errno);
    for (int i = 0; i < TIMES; i++) {
        for (; count > 0; count--) free(blocks[count - 1]);
        while (count < COUNT_OF(blocks) && (blocks[count] = malloc(block_bytes)) != NULL) count++;
    }
    say("%lu\n", (unsigned long)(count * block_bytes >> 20));
}

/* How many MiB there are for others when all blocks become shorter where they are. */
static void copy_shrunk(void) {
    enum { LIMIT_MIB = 512, SHORT_BYTES = 36000, OTHER_BYTES = 16384 };
    static void *blocks[(LIMIT_MIB << 20) / 4096];
    size_t block_bytes = strtoul(bytes_of_case, NULL, 10), count = 0, others = 0;
    struct rlimit limit = {(rlim_t)LIMIT_MIB << 20, (rlim_t)LIMIT_MIB << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0) SKIP("setrlimit: errno %d", errno);
    while (count < COUNT_OF(blocks) && (blocks[count] = malloc(block_bytes)) != NULL) count++;
    for (size_t i = 0; i < count; i++) EXPECT(realloc(blocks[i], SHORT_BYTES) == blocks[i], "block %zu moved", i);
    while (malloc(OTHER_BYTES) != NULL) others++;
    say("%lu\n", (unsigned long)(others * OTHER_BYTES >> 20));
}

static void set_limit(int resource, size_t mib) {
    struct rlimit limit = {(rlim_t)mib << 20, RLIM_INFINITY};
    if (setrlimit(resource, &limit) != 0) SKIP("setrlimit: errno %d", errno);
}

/* How many MiB of blocks a forked child gets, as daemons are, that has often filled the room with shorter ones. */
static void copy_child(void) {
    enum { LIMIT_MIB = 300, ROUNDS = 12, SHORT_BYTES = 36000 };
    static void *blocks[(LIMIT_MIB << 20) / SHORT_BYTES];
    set_limit(RLIMIT_AS, LIMIT_MIB);
    free(malloc(1));
    pid_t child = fork();
    if (child != 0) {
        int status = -1;
        waitpid(child, &status, 0);
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE);
    }
    size_t block_bytes = strtoul(bytes_of_case, NULL, 10), count = 0;
    for (int i = 0; i < ROUNDS; i++) {
        while (count < COUNT_OF(blocks) && (blocks[count] = malloc(SHORT_BYTES)) != NULL) count++;
        for (; count > 0; count--) free(blocks[count - 1]);
    }
    while (count < COUNT_OF(blocks) && (blocks[count] = malloc(block_bytes)) != NULL) count++;
    say("%lu\n", (unsigned long)(count * block_bytes >> 20));
}

/* Fills so many MiB with small blocks, and frees them. */
static void fill_and_free(size_t mib) {
    enum { BLOCK_BYTES = 1000 };
    size_t count = (mib << 20) / BLOCK_BYTES;
    void **blocks = calloc(count, sizeof *blocks);
    EXPECT(blocks != NULL, "calloc");
    for (size_t i = 0; i < count; i++) EXPECT((blocks[i] = malloc(BLOCK_BYTES)) != NULL, "block %zu", i);
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    free(blocks);
}

/* What was free is nobody's after malloc_trim: the KiB that are mapped more than at the start. Under strict overcommit they count
 * for the whole machine. */
static void copy_trimmed(void) {
    free(malloc(1));
    uint64_t start_kib = status_kib("VmSize");
    fill_and_free(200);
    malloc_trim(0);
    uint64_t kib = status_kib("VmSize");
    fill_and_free(200);
    say("%lu\n", (unsigned long)(kib > start_kib ? kib - start_kib : 0));
}

/* What lies free as small blocks serves one that is larger than all of them together; and one that grows: 1 if so. */
static void copy_one(void) {
    set_limit(RLIMIT_DATA, 512);
    fill_and_free(200);
    say("%d\n", malloc((size_t)350 << 20) != NULL);
}

static void copy_grown(void) {
    set_limit(RLIMIT_DATA, 512);
    void *block = malloc((size_t)128 << 20);
    EXPECT(block != NULL, "malloc");
    fill_and_free(330);
    errno = 1234;
    block = realloc(block, (size_t)450 << 20);
    say("%d\n", block != NULL && errno == 1234);
}

/* A block of two mappings, near a limit: how many of its bytes realloc has lost. */
static void copy_parts(void) {
    enum { BLOCK_BYTES = 1 << 20, MORE_BYTES = 1400000, STEP_KIB = 100, LAST_KIB = 1500 };
    size_t lost = 0;
    for (size_t left_kib = STEP_KIB; left_kib <= LAST_KIB; left_kib += STEP_KIB) {
        set_limit(RLIMIT_DATA, 1 << 20);
        unsigned char *block = malloc(BLOCK_BYTES), *next = malloc(BLOCK_BYTES);
        EXPECT(block != NULL && next != NULL, "malloc");
        memset(block, 7, BLOCK_BYTES);
        memset(next, 8, BLOCK_BYTES);
        uintptr_t unit = 1 << 16, start = ((uintptr_t)block + BLOCK_BYTES / 2) & ~(unit - 1);
        madvise((void *)start, ((uintptr_t)block + BLOCK_BYTES - start) & ~(unit - 1), MADV_DONTDUMP);
        struct rlimit limit = {(rlim_t)(status_kib("VmData") + left_kib) << 10, RLIM_INFINITY};
        setrlimit(RLIMIT_DATA, &limit);
        unsigned char *grown = realloc(block, MORE_BYTES);
        if (grown != NULL) block = grown;
        for (size_t i = 0; i < BLOCK_BYTES; i++) lost += block[i] != 7;
    }
    say("%lu\n", (unsigned long)lost);
}

static atomic_bool has_begun, is_over;
static void *ask_for_too_much(void *unused) {
    while (!atomic_load(&has_begun)) usleep(1000);
    while (!atomic_load(&is_over)) free(malloc((size_t)30 << 20));
    return unused;
}

/* Threads are refused again and again what the limit does not leave. Prints by how many MiB the process grows. */
static void copy_refused(void) {
    enum { LEFT_MIB = 25, THREADS = 4, LIVE_MIB = 100, SECONDS = 2 };
    pthread_t threads[THREADS];
    for (int i = 0; i < LIVE_MIB; i++) EXPECT(malloc(1 << 20) != NULL, "malloc");
    for (int i = 0; i < THREADS; i++) EXPECT(pthread_create(&threads[i], NULL, ask_for_too_much, NULL) == 0, "thread");
    uint64_t before_kib = status_kib("VmSize");
    rlim_t bytes = (before_kib << 10) + ((rlim_t)LEFT_MIB << 20);
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) SKIP("setrlimit: errno %d", errno);
    atomic_store(&has_begun, true);
    sleep(SECONDS);
    uint64_t after_kib = status_kib("VmSize");
    atomic_store(&is_over, true);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    say("%lu\n", (unsigned long)(after_kib > before_kib ? (after_kib - before_kib) >> 10 : 0));
}

/* What the machine can't have by far is refused at once, in one piece: 1 if so. */
static void copy_too_much(void) {
    size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) * 4;
    void *mapping = malloc(bytes), *zero = calloc(1, bytes), *aligned = aligned_alloc(1 << 21, bytes);
    say("%d\n", mapping == NULL && zero == NULL && aligned == NULL && realloc(malloc(100), bytes) == NULL);
}

static void copy_where(void) { say("%lu\n", (unsigned long)((uintptr_t)malloc(1) >> 21)); }

/* ---- Copies ------------------------------------------------------------------------------------------------------------ */

/* The number that a copy prints. */
static uint64_t ask_copy(const char *name, bool with_hakmem) {
    int ends[2];
    if (pipe(ends) != 0) SKIP("no pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        if (with_hakmem) setenv("LD_PRELOAD", library, 1);
        else unsetenv("LD_PRELOAD");
        alarm(300);
        execl("/proc/self/exe", "address_space", name, "", bytes_of_case, (char *)NULL);
        _exit(EXIT_USE);
    }
    close(ends[1]);
    char text[512] = "";
    size_t length = 0;
    for (ssize_t got; length < sizeof text - 1 && (got = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    close(ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED) SKIP("%s", text);
    if (status != 0) say("%s of %s: %s", name, with_hakmem ? "hakmem" : "the C library", text);
    EXPECT(status == 0, "case %s", name_of_case);
    return strtoull(text, NULL, 10);
}

static void virt(void) {
    uint64_t plain_kib = ask_copy("virt", false), kib = ask_copy("virt", true);
    say("%lu KiB, without hakmem %lu\n", (unsigned long)kib, (unsigned long)plain_kib);
    EXPECT(kib <= plain_kib + (16 << 10), "case %s", name_of_case);
}

static void anonymous(void) {
    uint64_t kib = ask_copy("anonymous", true);
    say("%lu KiB\n", (unsigned long)kib);
    EXPECT(kib >= BLOCKS >> 10, "case %s", name_of_case);
    EXPECT(kib <= (BLOCKS >> 10) + (8 << 10), "case %s", name_of_case);
}

static void trimmed(void) {
    uint64_t kib = ask_copy("trimmed", true);
    EXPECT(kib <= 8 << 10, "%lu KiB", (unsigned long)kib);
}

static void limited(const char *name) {
    uint64_t plain_mib = ask_copy(name, false), mib = ask_copy(name, true);
    say("%lu MiB, without hakmem %lu\n", (unsigned long)mib, (unsigned long)plain_mib);
    /* Large objects are whole pages. */
    uint64_t bytes = strtoul(bytes_of_case, NULL, 10), page = (uint64_t)sysconf(_SC_PAGESIZE),
             pages_bytes = (bytes + page - 1) / page * page;
    EXPECT(mib * pages_bytes / bytes * 100 >= plain_mib * (100 - TOLERANCE_PERCENT), "case %s", name_of_case);
    EXPECT(mib <= (strcmp(name, "again") != 0 ? 512 : MORE_MIB), "case %s", name_of_case);
}

/* Threads that are refused use up no more than a few tables. */
static void refused(void) {
    uint64_t mib = ask_copy("refused", true);
    say("%lu MiB more\n", (unsigned long)mib);
    EXPECT(mib <= 4, "case %s", name_of_case);
}

static void too_much(void) {
    uint64_t plain = ask_copy("too_much", false);
    if (plain == 0) SKIP("this kernel refuses nothing");
    EXPECT(ask_copy("too_much", true) == plain, "case %s", name_of_case);
}

/* Two million places at the least are twenty bits: of 32 processes no two have the same one, and they lie in both halves of what
 * all of them span, which is wide. */
static void is_random(void) {
    enum { PROCESSES = 32 };
    uint64_t places[PROCESSES], least = UINT64_MAX, most = 0;
    for (int i = 0; i < PROCESSES; i++) {
        places[i] = ask_copy("where", true);
        for (int j = 0; j < i; j++) EXPECT(places[i] != places[j], "case %s", name_of_case);
        if (places[i] < least) least = places[i];
        if (places[i] > most) most = places[i];
    }
    EXPECT(most - least > (uint64_t)1 << 20, "case %s", name_of_case);
    int lower = 0;
    for (int i = 0; i < PROCESSES; i++) lower += places[i] - least < (most - least) / 2;
    EXPECT(lower > 2 && lower < PROCESSES - 2, "case %s", name_of_case);
}

static uint64_t where_with_seed(const char *seed) {
    setenv("HAKMEM_SEED", seed, 1);
    return ask_copy("where", true);
}

/* HAKMEM_SEED says where the heap lies, and another number says another place. */
static void is_same_by_seed(void) {
    uint64_t first = where_with_seed("1");
    EXPECT(where_with_seed("1") == first, "the same seed");
    EXPECT(where_with_seed("2") != first, "another seed");
    EXPECT(where_with_seed("0") != where_with_seed("0"), "no seed");
}

int main(int argc, char **argv) {
    name_of_case = argc > 1 ? argv[1] : "";
    if (argc < 3 || argc > 4) {
        say("usage: %s CASE LIBRARY [BYTES]\n", argv[0]);
        return EXIT_USE;
    }
    library = argv[2];
    if (argc == 4) bytes_of_case = argv[3];
    if (library[0] == '\0') {
        EXPECT(getenv("LD_PRELOAD") == NULL || dlsym(RTLD_DEFAULT, "hak_owns") != NULL, "not on hakmem");
        if (!strcmp(argv[1], "virt")) copy_virt();
        else if (!strcmp(argv[1], "anonymous")) copy_anonymous();
        else if (!strcmp(argv[1], "limit_as")) copy_limit(RLIMIT_AS);
        else if (!strcmp(argv[1], "limit_data")) copy_limit(RLIMIT_DATA);
        else if (!strcmp(argv[1], "again")) copy_again();
        else if (!strcmp(argv[1], "shrunk")) copy_shrunk();
        else if (!strcmp(argv[1], "child")) copy_child();
        else if (!strcmp(argv[1], "one")) copy_one();
        else if (!strcmp(argv[1], "grown")) copy_grown();
        else if (!strcmp(argv[1], "parts")) copy_parts();
        else if (!strcmp(argv[1], "refused")) copy_refused();
        else if (!strcmp(argv[1], "too_much")) copy_too_much();
        else if (!strcmp(argv[1], "where")) copy_where();
        else if (!strcmp(argv[1], "trimmed")) copy_trimmed();
        else return EXIT_USE;
        return 0;
    }
    if (!strcmp(argv[1], "virt")) virt();
    else if (!strcmp(argv[1], "anonymous")) anonymous();
    else if (!strcmp(argv[1], "trimmed")) trimmed();
    else if (!strcmp(argv[1], "limit_as") || !strcmp(argv[1], "limit_data") || !strcmp(argv[1], "again") ||
             !strcmp(argv[1], "shrunk") || !strcmp(argv[1], "child"))
        limited(argv[1]);
    else if (!strcmp(argv[1], "one") || !strcmp(argv[1], "grown") || !strcmp(argv[1], "parts"))
        EXPECT(ask_copy(argv[1], true) == ask_copy(argv[1], false), "case %s", name_of_case);
    else if (!strcmp(argv[1], "refused")) refused();
    else if (!strcmp(argv[1], "too_much")) too_much();
    else if (!strcmp(argv[1], "random")) is_random();
    else if (!strcmp(argv[1], "random_without_aslr")) {
        if (personality(ADDR_NO_RANDOMIZE) == -1) SKIP("no personality: errno %d", errno);
        is_random();
    } else if (!strcmp(argv[1], "same_by_seed")) is_same_by_seed();
    else return EXIT_USE;
    return 0;
}
