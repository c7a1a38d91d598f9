/* A program whose last acts are bursts of memory, to free it, and to sleep: what of it is still resident then.
 *
 *     burst KIND MIB THREADS TIMES KEPT SECONDS [PLACE]
 *
 * KIND of blocks: small, medium (2 to 33 KiB), runs (33 KiB to 2 MiB), mappings (33 to 48 MiB), mixed. THREADS share
 * the MIB; each fills what it has allocated and frees it in a random order, so many TIMES, and sleeps, too: 0 is the
 * main thread alone. The last time one of KEPT blocks is never freed; 0: all are freed. Prints "freed" when it begins
 * to sleep; then, each SECONDS, `resident KIB limit KIB`: what is resident, and what would be if each page without a
 * byte in use had gone back. PLACE: `child`, in a forked child; `cloned`, the last time in a child that the system call
 * has made, without handlers of fork; `copied`, in a child that has written to all blocks of its parent, and frees
 * them; `stopped`, which is stopped once all is freed until somebody continues it; `locked`, all memory of the process
 * is locked. */
#include "../../api/expect.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { MOST_THREADS = 8, LOOKS = 12 };

static const struct kind {
    const char *name;
    size_t least, most; /* bytes */
} kinds[] = {{"small", 16, 2000},
             {"medium", 2000, 33 << 10},
             {"runs", 33 << 10, 2 << 20},
             {"mappings", 33 << 20, 48 << 20},
             {"mixed", 0, 0}};

static struct {
    const struct kind *kind;
    size_t bytes; /* of each thread */
    size_t times, kept;
} burst;

static const char *place = "";
static size_t page_bytes;
static size_t pages_kept[MOST_THREADS + 1]; /* of each thread */
static pthread_barrier_t freed;

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static size_t pick_size(uint64_t *random) {
    const struct kind *kind = burst.kind;
    if (kind->least == 0) {
        uint64_t draw = next_random(random) % 10000;
        kind = draw == 0 && burst.bytes >= (size_t)100 << 20 ? &kinds[3] : draw < 20 ? &kinds[2] : &kinds[0];
    }
    return kind->least + next_random(random) % (kind->most - kind->least);
}

struct block {
    char *start;
    size_t bytes;
};

static int by_address(const void *a, const void *b) {
    const struct block *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* How many pages the blocks lie in, which are in the order of addresses. */
static size_t count_pages(const struct block *blocks, size_t count) {
    size_t pages = 0;
    uintptr_t next = 0; /* the first page not counted yet */
    for (size_t i = 0; i < count; i++) {
        uintptr_t first = (uintptr_t)blocks[i].start / page_bytes,
                  last = ((uintptr_t)blocks[i].start + blocks[i].bytes - 1) / page_bytes;
        if (first < next) first = next;
        if (last >= first) pages += last - first + 1;
        if (last + 1 > next) next = last + 1;
    }
    return pages;
}

/* The rest is a child's; the parent ends as it does. Before, the child has written to what the parent had. */
static void go_on_in_child(struct block *blocks, size_t count) {
    pid_t parent = getpid(),
          child = strcmp(place, "cloned") == 0 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    EXPECT(child >= 0, "fork");
    if (child != 0) {
        int status = 0;
        EXPECT(waitpid(child, &status, 0) == child, "waitpid");
        _exit(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    }
    EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent, "the parent has ended");
    for (size_t i = 0; i < count; i++) memset(blocks[i].start, 101, blocks[i].bytes);
}

static void run_once(size_t thread, size_t keep) {
    size_t limit = burst.bytes / 16 + 1, count = 0, have = 0;
    uint64_t random = 88172645463325252u + thread;
    struct block *blocks =
        mmap(NULL, limit * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(blocks != MAP_FAILED, "mmap");
    for (; have < burst.bytes && count < limit; count++) {
        size_t bytes = pick_size(&random);
        if (bytes > burst.bytes - have && count != 0 && burst.kind->least > 4096) break;
        blocks[count] = (struct block){malloc(bytes), bytes};
        EXPECT(blocks[count].start != NULL, "malloc(%zu)", bytes);
        memset(blocks[count].start, 1 + (int)(count % 100), bytes);
        have += bytes;
    }
    if (strcmp(place, "copied") == 0 && keep == burst.kept) go_on_in_child(blocks, count);
    for (size_t i = count; i > 1; i--) {
        size_t j = next_random(&random) % i;
        struct block other = blocks[j];
        blocks[j] = blocks[i - 1];
        blocks[i - 1] = other;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (keep != 0 && i % keep == 0) blocks[kept++] = blocks[i];
        else free(blocks[i].start);
    }
    qsort(blocks, kept, sizeof *blocks, by_address);
    pages_kept[thread] = count_pages(blocks, kept);
    munmap(blocks, limit * sizeof *blocks);
}

static void *run(void *argument) {
    static const struct timespec pause = {.tv_nsec = 50000000};
    size_t thread = (size_t)(uintptr_t)argument;
    for (size_t time = 1; time < burst.times; time++) {
        run_once(thread, 0);
        nanosleep(&pause, NULL);
    }
    if (strcmp(place, "cloned") == 0) go_on_in_child(NULL, 0);
    run_once(thread, burst.kept);
    if (thread != 0) {
        pthread_barrier_wait(&freed);
        pthread_barrier_wait(&freed); /* for ever */
    }
    return NULL;
}

int main(int argc, char **argv) {
    EXPECT(argc == 7 || argc == 8, "burst KIND MIB THREADS TIMES KEPT SECONDS [PLACE]");
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (strcmp(argv[1], kinds[i].name) == 0) burst.kind = &kinds[i];
    size_t threads = strtoul(argv[3], NULL, 10);
    EXPECT(burst.kind != NULL && threads <= MOST_THREADS, "a kind, and at most %d threads", MOST_THREADS);
    burst.bytes = (strtoul(argv[2], NULL, 10) << 20) / (threads + (threads == 0));
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    burst.times = strtoul(argv[4], NULL, 10);
    burst.kept = strtoul(argv[5], NULL, 10);
    if (argc == 8) place = argv[7];
    EXPECT(strcmp(place, "copied") != 0 || burst.kept != 0, "copied: some are kept");
    if (strcmp(place, "locked") == 0 && mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
        say("refused\n");
        return 0;
    }
    size_t before = status_kib("VmRSS"); /* a child has not looked at each file's pages yet */
    if (strcmp(place, "child") == 0) go_on_in_child(NULL, 0);
    if (threads == 0) run(NULL);
    pthread_barrier_init(&freed, NULL, (unsigned)threads + 1);
    for (size_t i = 1; i <= threads; i++) {
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, run, (void *)(uintptr_t)i) == 0, "pthread_create");
    }
    if (threads != 0) pthread_barrier_wait(&freed);
    say("freed\n");
    if (strcmp(place, "stopped") == 0) raise(SIGSTOP);
    struct timespec rest = {.tv_sec = (time_t)strtol(argv[6], NULL, 10)};
    size_t limit = before;
    for (size_t i = 0; i <= threads; i++) limit += pages_kept[i] * page_bytes / KIB;
    for (int looks = 0; looks < LOOKS; looks++) {
        nanosleep(&rest, NULL);
        say("resident %zu limit %zu\n", status_kib("VmRSS"), limit);
    }
    return 0;
}
