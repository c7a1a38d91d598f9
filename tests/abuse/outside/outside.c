/* A process that is asked from outside. It looks at itself the way others do: by /proc.
 *
 *     outside CASE */
#include "../../api/expect.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_WRITE = 11, ANSWER_READ = 12, SOON_MS = 300000 };

/* ---- Threads and descriptors as /proc shows them ---------------------------------------------------------------------- */

static bool read_text(const char *path, char *text, size_t bytes) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? -1 : read(descriptor, text, bytes - 1);
    if (descriptor >= 0) close(descriptor);
    text[length < 0 ? 0 : length] = '\0';
    return length >= 0;
}

/* The thread of this name; 0 for none. */
static int thread_named(const char *name) {
    char path[64], text[32];
    int found = 0;
    DIR *tasks = opendir("/proc/self/task");
    EXPECT(tasks != NULL, "no /proc");
    for (struct dirent *entry; found == 0 && (entry = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", entry->d_name);
        if (entry->d_name[0] == '.' || !read_text(path, text, sizeof text)) continue;
        text[strcspn(text, "\n")] = '\0';
        if (strcmp(text, name) == 0) found = atoi(entry->d_name);
    }
    closedir(tasks);
    return found;
}

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static int wait_for_service(void) {
    int thread = 0;
    for (int i = 0; i < SOON_MS / 10 && (thread = thread_named("hakmem-ctl")) == 0; i++) sleep_ms(10);
    EXPECT(thread != 0, "no service");
    return thread;
}

/* As a number of bits: this program has few. */
static uint64_t open_descriptors(void) {
    uint64_t open = 0;
    for (int i = 0; i < 64; i++) open |= (uint64_t)(fcntl(i, F_GETFD) >= 0) << i;
    return open;
}

static int open_end(int thread, int number, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/fd/%d", thread, number);
    int descriptor = open(path, flags | O_NONBLOCK | O_CLOEXEC);
    EXPECT(descriptor >= 0, "can't open %s: %s", path, strerror(errno));
    return descriptor;
}

/* ---- Asking ------------------------------------------------------------------------------------------------------------- */

/* How many filters the thread's system calls are under. */
static unsigned long filters_of(int thread) {
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
    EXPECT(read_text(path, text, sizeof text), "no status of %d", thread);
    const char *line = strstr(text, "\nSeccomp_filters:");
    return line == NULL ? 0 : strtoul(line + strlen("\nSeccomp_filters:"), NULL, 10);
}

/* `mark` is a word by which the answer is known. */
static void send_request(int thread, const char *mark, const char *request) {
    char line[256];
    int length = snprintf(line, sizeof line, "%s %lu %s\n", mark, filters_of(thread), request);
    int descriptor = open_end(thread, REQUEST_WRITE, O_WRONLY);
    EXPECT(write(descriptor, line, (size_t)length) == length, "no room for %s", request);
    close(descriptor);
}

/* Everything up to the end of the answer that begins with `mark`. */
static void read_answer(int thread, const char *mark, char *text, size_t bytes) {
    int descriptor = open_end(thread, ANSWER_READ, O_RDONLY);
    size_t length = 0;
    const char *begun;
    for (text[0] = '\0'; (begun = strstr(text, mark)) == NULL || strstr(begun, "\nend\n") == NULL;) {
        struct pollfd one = {.fd = descriptor, .events = POLLIN};
        EXPECT(poll(&one, 1, SOON_MS) == 1, "no answer, but %s", text);
        if (length > bytes / 2) length = 0;
        ssize_t got = read(descriptor, text + length, bytes - 1 - length);
        EXPECT(got > 0, "no answer: %zd", got);
        length += (size_t)got;
        text[length] = '\0';
    }
    close(descriptor);
}

static void expect_answer(int thread) {
    static char text[1 << 17];
    send_request(thread, "good", "stats text");
    read_answer(thread, "good ok\n", text, sizeof text);
    EXPECT(strstr(text, "live_blocks") != NULL, "answer %s", text);
}

/* ---- A program large enough for a service --------------------------------------------------------------------------- */

enum { BLOCKS = 20000, BLOCK_BYTES = 1000 };

static void *use_memory(void *unused) {
    void **blocks = malloc(BLOCKS * sizeof *blocks);
    for (int i = 0; i < BLOCKS; i++) EXPECT((blocks[i] = malloc(BLOCK_BYTES)) != NULL, "no memory");
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    free(blocks);
    return unused;
}

/* Two threads with heaps, of which the other goes on. */
static void *idle(void *ready) {
    use_memory(NULL);
    pthread_barrier_wait(ready);
    for (;;) pause();
    return NULL;
}

static void grow(void) {
    static pthread_barrier_t ready;
    pthread_t thread;
    pthread_barrier_init(&ready, NULL, 2);
    EXPECT(pthread_create(&thread, NULL, idle, &ready) == 0, "no thread");
    pthread_barrier_wait(&ready);
    use_memory(NULL);
}

/* ---- Cases: what the program notices ---------------------------------------------------------------------------------- */

/* Pipes end, numbers are free, and closing all there is does the service no harm. */
static void descriptors(void) {
    int ends[2];
    EXPECT(pipe(ends) == 0, "no pipe");
    uint64_t before = open_descriptors();
    grow();
    int service = wait_for_service();
    expect_answer(service);
    EXPECT(open_descriptors() == before, "descriptors are %lx, were %lx", (unsigned long)open_descriptors(),
           (unsigned long)before);
    close(ends[1]);
    struct pollfd end = {.fd = ends[0], .events = POLLIN};
    EXPECT(poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0, "somebody has the other end of the pipe open");
    for (int i = 3; i < 1000; i++) close(i);
    expect_answer(service);
    int lowest = open("/dev/null", O_RDONLY);
    EXPECT(lowest == 3, "the lowest descriptor is %d", lowest);
}

static void in_child(void) {
    EXPECT(thread_named("hakmem-ctl") == 0 && thread_named("hakmem") == 0, "threads in the child");
    grow();
    expect_answer(wait_for_service());
}

static void child(void) {
    grow();
    expect_answer(wait_for_service());
    pid_t process = fork();
    if (process == 0) {
        in_child();
        _exit(0);
    }
    int status;
    EXPECT(waitpid(process, &status, 0) == process && status == 0, "the child ended with %x", (unsigned)status);
    expect_answer(wait_for_service());
}

/* The last thread of the program ends: libc's exit handlers run, with the program's descriptors. */
static void at_end(void) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    EXPECT(fcntl(STDOUT_FILENO, F_GETFD) >= 0, "exit handlers can't write");
    EXPECT(!sigismember(&mask, SIGUSR1), "exit handlers get no signals");
    for (int i = 0; i < SOON_MS / 10 && thread_named("hakmem-ctl") != 0; i++)
        sleep_ms(10); /* joined, but not gone yet */
    EXPECT(thread_named("hakmem-ctl") == 0, "the service goes on");
    _exit(0);
}

static void *wait_and_end(void *ready) {
    use_memory(NULL);
    pthread_barrier_wait(ready);
    wait_for_service();
    return NULL;
}

/* Both have heaps when they wait: or the service would end with the first, and the other, which asks for no more memory,
 * would never see one. */
static void end_by_threads(void) {
    static pthread_barrier_t ready;
    pthread_t thread;
    atexit(at_end);
    pthread_barrier_init(&ready, NULL, 2);
    EXPECT(pthread_create(&thread, NULL, wait_and_end, &ready) == 0, "no thread");
    pthread_detach(thread);
    pthread_barrier_wait(&ready);
    wait_for_service();
    pthread_exit(NULL);
}

static void last_thread(void) {
    use_memory(NULL);
    end_by_threads();
}

/* Run again with the service from the start. */
static void last_thread_small(void) {
    if (getenv("HAKMEM_CTL") == NULL) {
        setenv("HAKMEM_CTL", "1", 1);
        execl("/proc/self/exe", "outside", "last_thread_small", NULL);
    }
    end_by_threads();
}

static void never(void) {
    if (getenv("HAKMEM_CTL") == NULL) {
        setenv("HAKMEM_CTL", "0", 1);
        execl("/proc/self/exe", "outside", "never", NULL);
    }
    grow();
    for (int i = 0; i < 100; i++) {
        sleep_ms(10);
        EXPECT(thread_named("hakmem-ctl") == 0, "there is a service");
    }
    for (int i = 0; i < SOON_MS / 10 && thread_named("hakmem") == 0; i++) sleep_ms(10); /* it names itself */
    EXPECT(thread_named("hakmem") != 0, "no background thread");
}

/* What hakmem's threads find wrong is said where the program looks for it: while one answers, or the other drains. */
static void expect_misuse_said(const char *request) {
    int ends[2], status;
    char text[4096] = "";
    EXPECT(pipe(ends) == 0, "no pipe");
    pid_t process = fork();
    if (process == 0) {
        dup2(ends[1], STDERR_FILENO);
        grow();
        int service = wait_for_service();
        void *twice = malloc(64), *other = malloc(64), *last = malloc(64);
        free(twice);
        free(other);
        free(twice);
        free(last); /* the topmost one stays */
        if (request != NULL) send_request(service, "bad", request);
        sleep_ms(SOON_MS);
        _exit(0);
    }
    close(ends[1]);
    EXPECT(waitpid(process, &status, 0) == process && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT,
           "the child ended with %x", (unsigned)status);
    EXPECT(read(ends[0], text, sizeof text - 1) > 0 && strstr(text, "double free of a block of 64 bytes") != NULL,
           "it said %s", text);
}

static void says_misuse(void) { expect_misuse_said("purge"); }
static void says_misuse_unasked(void) { expect_misuse_said(NULL); }

/* ---- Cases: what others do to it -------------------------------------------------------------------------------------- */

static void garbage(void) {
    static char noise[1 << 16];
    uint64_t seed = 7;
    grow();
    int service = wait_for_service(), descriptor = open_end(service, REQUEST_WRITE, O_WRONLY);
    fcntl(descriptor, F_SETFL, 0); /* waits for room */
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)random_next(&seed);
        if (round % 2 == 0)
            for (size_t i = 0; i < sizeof noise; i++)
                if (noise[i] == '\n') noise[i] = 'x'; /* one long line */
        EXPECT(write(descriptor, noise, sizeof noise) == (ssize_t)sizeof noise, "not written");
    }
    EXPECT(write(descriptor, "\n\n \n", 4) == 4, "not written");
    expect_answer(service);
}

/* Answers that nobody reads fill the pipe; after a while they are dropped. */
static void nobody_reads(void) {
    grow();
    int service = wait_for_service();
    for (int i = 0; i < 30; i++) send_request(service, "lost", "metrics");
    sleep_ms(100);
    use_memory(NULL);
    sleep_ms(6000);
    expect_answer(service);
}

/* The program locks itself in: from then on any call but a few kills it. The service is asked, stopped, and let go on. */
static void lock_in(void) {
#define PERMIT(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        PERMIT(read),
        PERMIT(write),
        PERMIT(futex),
        PERMIT(clock_nanosleep),
        PERMIT(nanosleep),
        PERMIT(restart_syscall),
        PERMIT(rt_sigreturn),
        PERMIT(getrusage), /* the controller */
        PERMIT(madvise),   /* the background thread */
        PERMIT(membarrier),
        PERMIT(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "can't promise");
    EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0, "no filter: %s",
           strerror(errno));
}

static void sandbox(void) {
    int service = wait_for_service();
    expect_answer(service);
    int descriptor = open_end(service, REQUEST_WRITE, O_WRONLY);
    char line[64];
    int length = snprintf(line, sizeof line, "in %lu stats\n", filters_of(service) + 1); /* as will be seen then */
    pid_t process = fork();
    if (process == 0) {
        pid_t parent = getppid();
        for (int i = 0; i < 5; i++) {
            sleep_ms(100);
            kill(parent, SIGSTOP);
            sleep_ms(50);
            kill(parent, SIGCONT);
        }
        _exit(0);
    }
    lock_in();
    sleep_ms(300); /* stopped and let go on meanwhile, in the middle of its wait */
    EXPECT(write(descriptor, line, (size_t)length) == length, "not written");
    sleep_ms(700);
    syscall(SYS_exit_group, 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"descriptors", descriptors},
        {"child", child},
        {"last_thread", last_thread},
        {"garbage", garbage},
        {"never", never},
        {"last_thread_small", last_thread_small},
        {"says_misuse", says_misuse},
        {"sandbox", sandbox},
        {"nobody_reads", nobody_reads},
        {"says_misuse_unasked", says_misuse_unasked},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 50);
}
