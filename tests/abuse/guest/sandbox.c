/* A program that goes into a sandbox, and lives: what hakmem calls after main has begun is what the C library's malloc
 * calls.
 *
 *     guest_sandbox LIST              runs itself under the list, in each of the ways below
 *     guest_sandbox LIST WAY ACTION   is one of them
 *     guest_sandbox LIST run COMMAND  runs another program under the list
 *
 * WAY is `first` (before the program's first malloc), `later` (with a heap of 32 MiB) or `threads` (with threads that
 * allocate), each of which may end with `_all` for a filter for all threads. ACTION is what meets a call that is not
 * in the list: `kill`, or `tell`, which names it and ends the process.
 *
 * Beyond the list, madvise and mprotect may have only the arguments that docs/guest.md says for the library that is
 * preloaded.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "filters.h"
#include "hakmem/hakmem.h"

enum { MIB = 1 << 20, BLOCK_BYTES = 1000, MOST_BLOCKS = 400000, THREADS = 3, SECONDS = 600, FAILED = 1, SKIPPED = 77 };

__attribute__((weak)) int hak_owns(const void *address);

static const struct filter_list *list;

static void say(const char *text) { (void)!write(2, text, strlen(text)); }

static _Noreturn void fail(const char *text) {
    say(text);
    _exit(FAILED);
}

/* ---- What the program does --------------------------------------------------------------------------------------- */

static char *blocks[MOST_BLOCKS];
static int block_count;

static void grow(size_t mib) {
    for (size_t bytes = 0; bytes < mib * MIB; bytes += BLOCK_BYTES) {
        char *block = malloc(BLOCK_BYTES);
        if (block == NULL) fail("malloc returned NULL\n");
        memset(block, 1, BLOCK_BYTES);
        blocks[block_count++] = block;
    }
}

static void free_share(int of) {
    for (int i = 0; i < block_count; i += of) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
}

static void churn(void) {
    void *some[300];
    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = 0; i < 300; i++) {
            some[i] = malloc((i * 7919 + round * 31) % 40000 + 1);
            if (some[i] != NULL) *(volatile char *)some[i] = 1;
        }
        for (unsigned i = 0; i < 300; i++) free(some[i]);
    }
}

static void use_large(void) {
    for (unsigned i = 0; i < 30; i++) {
        size_t bytes = (i % 5 + 1) * 13 * MIB;
        char *large = malloc(bytes), *larger;
        if (large == NULL) fail("no large object\n");
        for (size_t at = 0; at < bytes; at += 4096) large[at] = 1;
        larger = realloc(large, bytes * 2);
        if (larger == NULL || larger[bytes - 4096] != 1) fail("realloc\n");
        free(realloc(larger, bytes / 3));
        void *aligned = NULL;
        if (posix_memalign(&aligned, MIB, MIB) != 0) fail("posix_memalign\n");
        free(aligned);
    }
}

static void resize(void) {
    char *block = NULL;
    for (size_t bytes = 10; bytes < 20 * MIB; bytes += bytes / 3) {
        block = realloc(block, bytes);
        if (block == NULL) fail("realloc\n");
        block[bytes - 1] = 1;
    }
    free(block);
}

/* By the one call for it that is in every list. */
static void rest(unsigned ms) {
    static unsigned nobody;
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, &nobody, 0 | 128 /* wait, private */, 0, &time, NULL, 0);
}

static void give_back(void) {
    malloc_trim(0);
    if (mallinfo2().arena == 0) fail("mallinfo2\n");
}

static void work(void) {
    grow(256);
    churn();
    use_large();
    resize();
    free_share(2);
    give_back();
    rest(1500); /* long enough for a background thread to act */
    churn();
    free_share(3);
    rest(700);
    churn();
    free_share(1);
    give_back();
    malloc_stats();
    grow(8);
    if (hak_owns == NULL || !hak_owns(blocks[block_count - 1])) fail("malloc is not hakmem's\n");
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static _Atomic int are_ready, is_over;

static void *allocate(void *unused) {
    churn();
    atomic_fetch_add(&are_ready, 1);
    while (!atomic_load(&is_over)) {
        churn();
        rest(100);
    }
    return unused;
}

static void *allocate_once(void *unused) {
    churn();
    return unused;
}

static void start_threads(pthread_t *threads, void *(*run)(void *)) {
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run, NULL) != 0) fail("no thread\n");
}

static void join_threads(const pthread_t *threads) {
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

/* ---- What the page says of arguments ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t value;
} constants[] = {
    {"`MADV_DONTNEED`", MADV_DONTNEED},
    {"`MADV_DONTNEED_LOCKED`", 24},
    {"`MADV_FREE`", MADV_FREE},
    {"`MADV_HUGEPAGE`", MADV_HUGEPAGE},
    {"`MADV_NOHUGEPAGE`", MADV_NOHUGEPAGE},
    {"`MADV_COLD`", 20},
    {"`MADV_POPULATE_WRITE`", 23},
    {"`MADV_WIPEONFORK`", 18},
    {"`MADV_GUARD_INSTALL`", 102},
    {"`MADV_GUARD_REMOVE`", 103},
    {"`PROT_NONE`", PROT_NONE},
    {"`PROT_READ`", PROT_READ},
    {"`PROT_WRITE`", PROT_WRITE},
};

static bool is_to_begin; /* the program begins under the filter */

/* A row's last cell says when, if not always. */
static bool is_row_for_us(const char *when) {
    const char *preloaded = getenv("LD_PRELOAD");
    if (strspn(when, " |") == strlen(when)) return true;
    if (strstr(when, "the program begins") != NULL) return is_to_begin;
    if (strstr(when, "HAKMEM_GUARD") != NULL && getenv("HAKMEM_GUARD") != NULL) return true;
    return strstr(when, "secure build") != NULL && preloaded != NULL && strstr(preloaded, "secure") != NULL;
}

/* Of a row like `| call | values | when |`: each value is one, or with `together` all are one. */
static void add_row(char *row, struct filter_values *rule, bool together) {
    char *values = strchr(row + 1, '|'), *when = values == NULL ? NULL : strchr(values + 1, '|');
    if (when == NULL || !is_row_for_us(when)) return;
    *when = '\0';
    uint32_t all = 0;
    for (size_t i = 0; i < COUNT_OF(constants); i++) {
        if (strstr(values, constants[i].name) == NULL) continue;
        all |= constants[i].value;
        if (!together) rule->values[rule->count++] = constants[i].value;
    }
    if (together) rule->values[rule->count++] = all;
}

static void read_page(void) {
    static char page[1 << 17];
    int file = open(GUEST_PAGE, O_RDONLY);
    if (file < 0 || read(file, page, sizeof page - 1) <= 0) fail("no page\n");
    close(file);
    for (char *line = strtok(page, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "| `madvise` |", 13) == 0) add_row(line, &filter_advice, false);
        if (strncmp(line, "| `mprotect` |", 14) == 0) add_row(line, &filter_protection, true);
    }
    if (filter_advice.count == 0 || filter_protection.count == 0) fail("the page says nothing\n");
}

/* ---- One way ----------------------------------------------------------------------------------------------------- */

static void tell(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    char text[64];
    int length = snprintf(text, sizeof text, "    system call %d\n", info->si_syscall);
    (void)!write(2, text, (size_t)length);
    _exit(FAILED);
}

static void enter(const char *way, const char *action) {
    bool is_told = strcmp(action, "tell") == 0, all_threads = strstr(way, "_all") != NULL;
    struct sigaction on_call = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &on_call, NULL);
    if (!filter_enter(list, is_told ? SECCOMP_RET_TRAP : SECCOMP_RET_KILL_PROCESS, all_threads)) _exit(SKIPPED);
}

static _Noreturn void run(const char *way, const char *action) {
    pthread_t threads[THREADS], later[THREADS];
    bool has_threads = strncmp(way, "threads", 7) == 0, is_later = strncmp(way, "later", 5) == 0;
    bool may_start = filter_allows(list, SYS_clone3), may_end = filter_allows(list, SYS_exit);
    if (has_threads) start_threads(threads, allocate);
    while (has_threads && atomic_load(&are_ready) < THREADS) rest(1);
    if (has_threads || is_later) grow(32);
    enter(way, action);
    work();
    if (may_start) {
        start_threads(later, allocate_once);
        join_threads(later);
    }
    if (has_threads && may_end) {
        atomic_store(&is_over, 1);
        join_threads(threads);
    }
    churn();
    _exit(0);
}

/* ---- All ways ---------------------------------------------------------------------------------------------------- */

static int run_anew(char **arguments) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        execv("/proc/self/exe", arguments);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) fail("no child\n");
    return status;
}

int main(int argc, char **argv) {
    static const char *const ways[] = {"first", "first_all", "later", "later_all", "threads", "threads_all"};
    list = argc > 1 ? filter_list_named(argv[1]) : NULL;
    if (list == NULL || argc == 3) fail("usage: guest_sandbox LIST [WAY ACTION | run COMMAND...]\n");
    if (argc > 3 && strcmp(argv[2], "run") == 0) {
        is_to_begin = true;
        read_page();
        filter_protection.count = 0; /* ld.so's own calls are none of hakmem's */
        if (!filter_enter(list, SECCOMP_RET_KILL_PROCESS, false)) return SKIPPED;
        execvp(argv[3], argv + 3);
        fail("not executed\n");
    }
    read_page();
    if (argc > 3) run(argv[2], argv[3]);

    int failed = 0;
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        char *kill[] = {argv[0], argv[1], (char *)(uintptr_t)ways[i], (char *)(uintptr_t) "kill", NULL};
        char *told[] = {argv[0], argv[1], (char *)(uintptr_t)ways[i], (char *)(uintptr_t) "tell", NULL};
        int status = run_anew(kill);
        if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) return SKIPPED;
        printf("%s, %s: %s\n", argv[1], ways[i], status == 0 ? "lives" : "DIES");
        fflush(stdout);
        if (status != 0) run_anew(told);
        failed += status != 0;
    }
    return failed != 0;
}
