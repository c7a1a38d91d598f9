/* hakmem's threads begin and end beside the program's: no descriptor of the program's is used for it, and no system call that a
 * sandbox may kill for.
 *
 *     guest_ending CASE */
#include "../../api/expect.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "filters.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { BLOCKS = 20000, BLOCK_BYTES = 1000, SOON_MS = 300000, PROCESSES = 40, NUMBERS = 40 };

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static const char *tasks_path = "/proc/self/task";

/* Without a descriptor. */
static int count_tasks(void) {
    struct stat tasks;
    return stat(tasks_path, &tasks) == 0 ? (int)tasks.st_nlink - 2 : -1;
}

static bool are_tasks(int wanted) {
    for (int i = 0; i < SOON_MS / 5 && count_tasks() != wanted; i++) sleep_ms(5);
    return count_tasks() == wanted;
}

/* hakmem's two threads are there, and have done what they do at their beginning: the last of it is the second one's name. */
static bool are_settled(void) {
    bool is_named = false;
    for (int i = 0; i < SOON_MS / 5 && !is_named; i++) {
        struct dirent *entry;
        DIR *tasks = opendir("/proc/self/task");
        EXPECT(tasks != NULL, "no /proc");
        while ((entry = readdir(tasks)) != NULL) {
            char path[300], name[16] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
            FILE *file = fopen(path, "re");
            if (file == NULL) continue;
            is_named |= fgets(name, sizeof name, file) != NULL && strcmp(name, "hakmem-ctl\n") == 0;
            fclose(file);
        }
        closedir(tasks);
        sleep_ms(5);
    }
    sleep_ms(50); /* until it waits */
    return is_named;
}

static bool is_filtered(void) { return prctl(PR_GET_SECCOMP) > 0; }

/* ---- A program with threads -------------------------------------------------------------------------------------- */

static void use_memory(void) {
    static _Thread_local void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) EXPECT((blocks[i] = malloc(BLOCK_BYTES)) != NULL, "no memory");
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

static pthread_barrier_t has_grown, may_end;

static void *grow_and_wait(void *unused) {
    use_memory();
    pthread_barrier_wait(&has_grown);
    pthread_barrier_wait(&may_end);
    return unused;
}

/* Two threads with heaps. */
static pthread_t begin_thread(void) {
    pthread_t thread;
    pthread_barrier_init(&has_grown, NULL, 2);
    pthread_barrier_init(&may_end, NULL, 2);
    EXPECT(pthread_create(&thread, NULL, grow_and_wait, NULL) == 0, "no thread");
    pthread_barrier_wait(&has_grown);
    use_memory();
    return thread;
}

static void *just_exit(void *unused) {
    (void)unused;
    pthread_exit(NULL);
}

/* The first pthread_exit() of a process opens a library. */
static void prepare_exit(void) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, just_exit, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static _Atomic bool is_ending; /* all that have heaps end */

/* All above the standard ones are closed: is there another, which somebody else has opened? */
static void expect_none(void) {
    EXPECT(syscall(SYS_close_range, 3, ~0U, 0) == 0, "no close_range");
    for (int i = 0; i < 2000; i++) EXPECT(fcntl(3, F_GETFD) < 0, "a descriptor comes from nowhere");
}

/* Numbers are taken over and over: does somebody else close one? */
static void expect_all(void) {
    for (int round = 0; round < 20; round++) {
        for (int i = 3; i < NUMBERS; i++) EXPECT(dup2(STDIN_FILENO, i) == i, "no descriptor");
        for (int i = 3; i < NUMBERS; i++) EXPECT(fcntl(i, F_GETFD) >= 0, "descriptor %d is gone", i);
        EXPECT(syscall(SYS_close_range, 3, ~0U, 0) == 0, "no close_range");
    }
}

/* It asks for no memory, and so has no heap: the program's other threads end as if it weren't there. */
static void *watch_descriptors(void *unused) {
    (void)unused;
    while (!atomic_load(&is_ending) || count_tasks() > 2) { /* the first one is there as long as the process */
        expect_none();
        expect_all();
    }
    _exit(0);
}

/* hakmem's threads begin, and end with the last thread that has a heap. */
static _Noreturn void begin_and_end_watched(void) {
    pthread_t watcher;
    prepare_exit();
    EXPECT(pthread_create(&watcher, NULL, watch_descriptors, NULL) == 0, "no thread");
    pthread_detach(begin_thread());
    EXPECT(are_tasks(5), "%d tasks: hakmem's two are not there", count_tasks());
    pthread_barrier_wait(&may_end);
    atomic_store(&is_ending, true);
    pthread_exit(NULL);
}

static void descriptors(void) {
    if (is_filtered()) SKIP("system calls are filtered");
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        pid_t child = fork();
        EXPECT(child >= 0, "no process");
        if (child == 0) {
            alarm(400);
            begin_and_end_watched();
        }
        EXPECT(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", (unsigned)status);
    }
}

/* The same where they end because one thread with a heap is left. */
static void descriptors_alone(void) {
    pthread_t watcher;
    if (is_filtered()) SKIP("system calls are filtered");
    EXPECT(pthread_create(&watcher, NULL, watch_descriptors, NULL) == 0, "no thread");
    for (int i = 0; i < 3; i++) {
        pthread_t thread = begin_thread();
        EXPECT(are_tasks(5), "%d tasks: hakmem's two are not there", count_tasks());
        pthread_barrier_wait(&may_end);
        pthread_join(thread, NULL);
        EXPECT(are_tasks(2), "%d tasks", count_tasks());
    }
}

/* ---- Sandboxes ------------------------------------------------------------------------------------------------------ */

/* What malloc and threads need to go on and to end, and what this program needs to look and to sleep. */
static const int to_end[] = {
    SYS_mmap,       SYS_munmap,         SYS_mremap, SYS_madvise,         SYS_mprotect,     SYS_brk,
    SYS_futex,      SYS_rt_sigprocmask, SYS_exit,   SYS_exit_group,      SYS_read,         SYS_write,
    SYS_newfstatat, SYS_nanosleep,      SYS_statx,  SYS_clock_nanosleep, SYS_rt_sigreturn, SYS_restart_syscall,
};

static void enter(void) {
    static const struct filter_list list = {"to_end", to_end, NULL, COUNT_OF(to_end), 0};
    EXPECT(filter_enter(&list, SECCOMP_RET_KILL_PROCESS, true), "no filter");
}

/* In all threads, hakmem's too; then the program has one thread again. */
static void filtered_alone(void) {
    if (is_filtered()) SKIP("system calls are filtered");
    pthread_t thread = begin_thread();
    EXPECT(are_settled() && are_tasks(4), "%d tasks: hakmem's two are not there", count_tasks());
    enter();
    pthread_barrier_wait(&may_end);
    pthread_join(thread, NULL);
    EXPECT(are_tasks(1), "%d tasks", count_tasks());
    use_memory();
}

static pthread_t first_thread;

/* The first thread is there as long as the process, although it has ended. */
static void at_end(void) {
    EXPECT(are_tasks(pthread_equal(pthread_self(), first_thread) ? 1 : 2), "%d tasks: hakmem's go on", count_tasks());
    EXPECT(write(STDOUT_FILENO, "", 0) == 0, "exit handlers can't write");
    _exit(0);
}

/* In all threads, then the last one ends. */
static void filtered_last(void) {
    if (is_filtered()) SKIP("system calls are filtered");
    first_thread = pthread_self();
    atexit(at_end);
    prepare_exit();
    pthread_detach(begin_thread());
    EXPECT(are_settled() && are_tasks(4), "%d tasks: hakmem's two are not there", count_tasks());
    enter();
    pthread_barrier_wait(&may_end);
    pthread_exit(NULL);
}

/* What hakmem's threads call where nobody forbids it. */
static const int unusual[] = {SYS_prctl,       SYS_sched_getaffinity,  SYS_sched_setaffinity,
                              SYS_getpriority, SYS_sched_getscheduler, SYS_sched_setscheduler,
                              SYS_setpriority, SYS_close_range,        SYS_pipe2};

/* Any of them meets `action`; but prctl, if `may_ask`, when it asks whether there is a filter. */
static void forbid(bool may_ask, uint32_t action) {
    static struct sock_filter filter[64];
    size_t at = 0;
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no promise");
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = may_ask ? 1 : 0; i < COUNT_OF(unusual); i++) at = filter_add(filter, at, unusual[i], action);
    filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_GET_SECCOMP, 1, 0);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)at, .filter = filter};
    EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0, "no filter");
}

/* hakmem's thread begins, works and ends: without the other one, which would call more. */
static void begin_and_end_filtered(void) {
    pthread_t thread = begin_thread();
    EXPECT(are_tasks(3), "%d tasks: hakmem's one is not there, or another", count_tasks());
    pthread_barrier_wait(&may_end);
    pthread_join(thread, NULL);
    EXPECT(are_tasks(1), "%d tasks", count_tasks());
}

/* Under a filter from the first instruction: nothing is asked. */
static void filtered_before(void) {
    if (getenv("IS_FORBIDDEN") == NULL) {
        setenv("IS_FORBIDDEN", "1", 1);
        forbid(false, SECCOMP_RET_KILL_PROCESS);
        execl("/proc/self/exe", "guest_ending", "filtered_before", NULL);
    }
    begin_and_end_filtered();
}

/* Under a filter before there are threads: it is asked once. */
static void filtered_small(void) {
    if (is_filtered()) SKIP("system calls are filtered");
    forbid(true, SECCOMP_RET_KILL_PROCESS);
    begin_and_end_filtered();
}

/* As filtered_before, where nothing tells that there is a filter: there is no /proc but in the working directory. */
static void filtered_unknown(void) {
    tasks_path = "self/task";
    if (getenv("IS_FORBIDDEN") == NULL) {
        if (geteuid() != 0) SKIP("not root");
        if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            chdir("/proc") != 0 || mount("none", "/proc", "tmpfs", 0, NULL) != 0)
            SKIP("no mounts");
        setenv("IS_FORBIDDEN", "1", 1);
        forbid(false, SECCOMP_RET_KILL_PROCESS);
        execl("self/exe", "guest_ending", "filtered_unknown", NULL);
    }
    EXPECT(access("/proc/self", F_OK) != 0, "there is a /proc");
    begin_and_end_filtered();
}

/* Returns for how long a child of the bare system call lived, made while hakmem's threads are there, and no other. */
static int live_without_libc(void) {
    int status = -1, ms = 0;
    pthread_t thread = begin_thread();
    EXPECT(are_settled(), "hakmem's threads are not there");
    pthread_barrier_wait(&may_end);
    pthread_join(thread, NULL);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        use_memory();
        pthread_exit(NULL);
    }
    for (; waitpid(child, &status, WNOHANG) == 0; ms += 10) {
        EXPECT(ms < SOON_MS, "the child waits");
        sleep_ms(10);
    }
    EXPECT(status == 0, "status %x", (unsigned)status);
    return ms;
}

/* Such a child has no thread of hakmem's, and waits for none. One that waits always takes ten seconds; one that doesn't takes
 * as long on a busy machine only, and not each time. */
static void made_without_libc(void) {
    enum { MOST_MS = 5000, TIMES = 10 };
    for (int times = 1; live_without_libc() >= MOST_MS; times++) {
        EXPECT(times < TIMES, "each of %d children has waited", TIMES);
    }
}

#if defined(__x86_64__) || defined(__aarch64__)
static atomic_int calls_trapped;

static void refuse_call(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    atomic_fetch_add(&calls_trapped, 1);
#if defined(__x86_64__)
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
#else
    ((ucontext_t *)context)->uc_mcontext.regs[0] = (unsigned long long)-EPERM;
#endif
}

/* Under a filter that asks the program, which refuses: hakmem's thread lives, and takes the refusal for an answer. */
static void trapped(void) {
    if (is_filtered()) SKIP("system calls are filtered");
    struct sigaction action = {.sa_sigaction = refuse_call, .sa_flags = SA_SIGINFO};
    EXPECT(sigaction(SIGSYS, &action, NULL) == 0, "no handler");
    forbid(false, SECCOMP_RET_TRAP);
    begin_and_end_filtered();
    EXPECT(atomic_load(&calls_trapped) == 1, "%d calls", atomic_load(&calls_trapped));
}
#else
static void trapped(void) { SKIP("not for this processor"); }
#endif

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"descriptors", descriptors},
                                             {"descriptors_alone", descriptors_alone},
                                             {"filtered_alone", filtered_alone},
                                             {"filtered_last", filtered_last},
                                             {"filtered_before", filtered_before},
                                             {"filtered_small", filtered_small},
                                             {"filtered_unknown", filtered_unknown},
                                             {"trapped", trapped},
                                             {"made_without_libc", made_without_libc}};
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    return run_case(argc, argv, cases, COUNT_OF(cases), 90);
}
