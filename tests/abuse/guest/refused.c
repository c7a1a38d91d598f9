/* Sandboxes that refuse a call, or pretend that it was made, and what stops a process from outside.
 *
 *     guest_refused CASE
 */
#include "../../api/expect.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "filters.h"

enum { BLOCK_BYTES = 1000, REST_S = 3, RESTS = 40, MOST_CPU_MS = 30, STOPS = 5 };

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* For all threads, and what they execute. */
static void enter(struct sock_filter *filter, size_t count) {
    struct sock_fprog program = {.len = (unsigned short)count, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
        SKIP("no filter: errno %d", errno);
}

/* For all threads: the call's answer is the error, 0 for success; the others are made. */
static void refuse(int call, unsigned error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    enter(filter, COUNT_OF(filter));
}

static void keep_mib(size_t mib) {
    for (size_t bytes = 0; bytes < mib * MIB; bytes += BLOCK_BYTES) {
        char *block = malloc(BLOCK_BYTES);
        EXPECT(block != NULL, "no memory");
        block[0] = 1;
    }
}

static void *rest(void *unused) {
    char *volatile block = malloc(BLOCK_BYTES);
    free(block);
    for (;;) sleep_ms(100000);
    return unused;
}

/* A heap large enough for a thread of hakmem's, and a thread of the program's beside the first. */
static void be_served(void) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, rest, NULL) == 0, "pthread_create");
    keep_mib(20);
}

static long cpu_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (long)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Nobody can sleep by it then: no thread of hakmem's tries to for ever. Work that was begun before may end first, so the
 * first rest with hardly any processor time is enough. */
static void no_waiting(unsigned error) {
    long spent = MOST_CPU_MS + 1;
    be_served();
    sleep_ms(300);
    refuse(SYS_futex, error);
    for (int i = 0; i < RESTS && spent > MOST_CPU_MS; i++) {
        long before = cpu_ms();
        sleep_ms(REST_S * 1000);
        spent = cpu_ms() - before;
    }
    EXPECT(spent <= MOST_CPU_MS, "%ld ms of the processor's time in %d s of sleep", spent, REST_S);
    keep_mib(40);
}

static void futex_denied(void) { no_waiting(EPERM); }
static void futex_unknown(void) { no_waiting(ENOSYS); }

static void expect_zeros(size_t bytes) {
    unsigned char *block = calloc(1, bytes);
    EXPECT(block != NULL && block[0] == 0 && memcmp(block, block + 1, bytes - 1) == 0, "calloc(%zu) isn't zero", bytes);
    memset(block, 1, bytes);
    free(block);
}

/* What is said to be zero is so; and no write to freed memory is found, where there was none. */
static void zeros(void) {
    char **blocks = malloc(40000 * sizeof *blocks);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < 40000; i++) blocks[i] = memset(malloc(i % 3000 + 1), 1, i % 3000 + 1);
        for (size_t i = 0; i < 40000; i++) free(blocks[i]);
        malloc_trim(0);
        for (size_t bytes = 16; bytes <= 64 * MIB; bytes *= 2) expect_zeros(bytes);
        malloc_trim(0);
        for (size_t bytes = 16; bytes <= 64 * MIB; bytes *= 2) expect_zeros(bytes);
    }
}

/* As in qemu's user mode before 7.2: memory that seems to have gone back is there, with its contents. */
static void nothing_purged(void) {
    refuse(SYS_madvise, 0);
    zeros();
}

/* This program again, from its start under the filter that is there. */
static void run_again(const char *name) {
    execl("/proc/self/exe", "guest_refused", name, NULL);
    EXPECT(false, "exec: errno %d", errno);
}

static void nothing_purged_ever(void) {
    refuse(SYS_madvise, 0);
    run_again("zeros");
}

/* As in qemu's user mode: guards that seem to be there, and are not. The numbers are those of Linux 6.13. */
static void no_guards_ever(void) {
    enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])), /* the low half */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, GUARD_INSTALL, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, GUARD_REMOVE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    enter(filter, COUNT_OF(filter));
    run_again("zeros");
}

/* What job control and debuggers do; the kernel continues a wait by a call of its own (restart_syscall), which systemd
 * lets everybody make. */
static void stopped(void) {
    pid_t child = fork();
    if (child == 0) {
        be_served();
        if (!filter_enter(filter_list_named("system_service"), SECCOMP_RET_KILL_PROCESS, true)) _exit(77);
        for (int i = 0; i < STOPS * 20; i++) {
            free(malloc(100000));
            sleep_ms(10);
        }
        _exit(0);
    }
    for (int i = 0; i < STOPS; i++) {
        sleep_ms(100);
        kill(child, SIGSTOP);
        sleep_ms(20);
        kill(child, SIGCONT);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child, "waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) SKIP("no filter");
    EXPECT(status == 0, "wait status %#x", status);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"futex_denied", futex_denied},
        {"futex_unknown", futex_unknown},
        {"nothing_purged", nothing_purged},
        {"nothing_purged_ever", nothing_purged_ever},
        {"no_guards_ever", no_guards_ever},
        {"zeros", zeros},
        {"stopped", stopped},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 100);
}
