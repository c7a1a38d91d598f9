/* What a program could notice of its allocator beside blocks: threads, rights, scheduling, mounts (docs/guest.md).
 *
 *     guest CASE
 *
 * Most cases run a report twice, as a process of its own: on hakmem and on the C library's malloc. What it says must be the
 * same. A report that can't be made here begins with "skipped". The other cases are about programs that have threads. */
#include "../../api/expect.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "filters.h"

int capset(cap_user_header_t header, cap_user_data_t data); /* libc's, which has no header for it */

#ifdef __GLIBC__
#include <sys/single_threaded.h>
#endif

/* What is waited for comes at once on a quiet machine. SOON_MS and REPORT_S are for what never comes. */
enum { BLOCK_BYTES = 1000, REPORT_BYTES = 4096, SOON_MS = 300000, LEAVE_MS = 2000, REPORT_S = 300, NOBODY = 65534 };

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* ---- A program's work -------------------------------------------------------------------------------------------- */

static void *keep_mib(size_t mib) {
    size_t count = mib * MIB / BLOCK_BYTES;
    char **blocks = malloc(count * sizeof *blocks);
    EXPECT(blocks != NULL, "no memory");
    for (size_t i = 0; i < count; i++) {
        EXPECT((blocks[i] = malloc(BLOCK_BYTES)) != NULL, "no memory");
        memset(blocks[i], 1, BLOCK_BYTES);
    }
    return blocks;
}

/* As programs do that sort, or answer requests: hakmem has a thread when it is done, unless it may have none. */
static void work_in_bursts(void) {
    for (int i = 0; i < 5; i++) {
        char **blocks = keep_mib(20);
        for (size_t k = 0; k < 20 * MIB / BLOCK_BYTES; k++) free(blocks[k]);
        free(blocks);
    }
}

/* Large, then quiet for longer than any period, then busy again. With GUEST_BURSTS in bursts, too. */
static void work(size_t mib) {
    keep_mib(mib);
    if (getenv("GUEST_BURSTS") != NULL) work_in_bursts();
    sleep_ms(1200);
    for (size_t i = 0; i < 3000; i++) free(malloc(20 + i * 8));
}

static void *work_in_thread(void *unused) {
    free(keep_mib(20));
    return unused;
}

/* ---- A second thread --------------------------------------------------------------------------------------------- */

static pthread_barrier_t meet;

static void *work_and_meet(void *unused) {
    work_in_thread(NULL);
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    return unused;
}

static pthread_t begin_thread(void *(*run)(void *)) {
    pthread_t thread;
    free(malloc(1)); /* the first thread has a heap, too */
    pthread_barrier_init(&meet, NULL, 2);
    EXPECT(pthread_create(&thread, NULL, run, NULL) == 0, "no thread");
    pthread_barrier_wait(&meet);
    return thread;
}

static void end_thread(pthread_t thread) {
    pthread_barrier_wait(&meet);
    pthread_join(thread, NULL);
}

/* ---- Tasks as /proc shows them ----------------------------------------------------------------------------------- */

static void read_text(const char *path, char *text, size_t bytes) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, bytes - 1);
    if (file >= 0) close(file);
    text[length < 0 ? 0 : length] = '\0';
}

/* Calls `visit` for each task; returns how many there are. */
static int for_each_task(void (*visit)(int task, void *context), void *context) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    EXPECT(tasks != NULL, "no /proc");
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        count++;
        if (visit != NULL) visit(atoi(entry->d_name), context);
    }
    closedir(tasks);
    return count;
}

static long resident_kib(void) {
    char text[4096];
    read_text("/proc/self/status", text, sizeof text);
    const char *line = strstr(text, "\nVmRSS:");
    return line == NULL ? -1 : atol(line + 7);
}

/* Without a malloc, which could start one. */
static int count_tasks(void) {
    struct stat tasks;
    return stat("/proc/self/task", &tasks) == 0 ? (int)tasks.st_nlink - 2 : -1;
}

static bool is_own(int task) {
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", task);
    read_text(path, name, sizeof name);
    return strncmp(name, "hakmem", 6) == 0;
}

static void find_own(int task, void *found) {
    if (is_own(task)) *(int *)found = task;
}

/* One of hakmem's own threads, 0 for none. */
static int own_task(void) {
    int task = 0;
    for_each_task(find_own, &task);
    return task;
}

static void find_service(int task, void *found) {
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", task);
    read_text(path, name, sizeof name);
    if (strncmp(name, "hakmem-ctl", 10) == 0) *(int *)found = task;
}

static void wait_for_service(void) {
    int task = 0;
    for (int i = 0; i < SOON_MS / 10 && task == 0; i++) {
        for_each_task(find_service, &task);
        sleep_ms(10);
    }
    EXPECT(task != 0, "no service");
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

static void tell(const char *what, int result) {
    printf("%s: %s\n", what, result == 0 ? "done" : strerror(errno));
    fflush(stdout);
}

static void need_root(void) {
    if (geteuid() == 0) return;
    puts("skipped: not root");
    exit(0);
}

static void report_tasks(void) {
    int most = 0;
    for (int i = 0; i < 16; i++) {
        keep_mib(16);
        if (count_tasks() > most) most = count_tasks();
    }
    work(1);
    printf("at most %d, then %d\n", most, count_tasks());
}

static void report_tasks_of_child(void) {
    work(100);
    pid_t child = fork();
    if (child == 0) report_tasks();
    else waitpid(child, NULL, 0);
}

static void report_single(void) {
    work(100);
#ifdef __GLIBC__
    printf("single-threaded: %d\n", __libc_single_threaded);
#endif
}

/* A program may take a key for one that it has made, because it is static and so 0. */
static void report_keys(void) {
    static pthread_key_t key;
    free(malloc(1));
    printf("not made: %s, %s\n", pthread_getspecific(key) == NULL ? "no value" : "a value",
           strerror(pthread_setspecific(key, NULL)));
    EXPECT(pthread_key_create(&key, NULL) == 0, "no key");
    printf("first: %u\n", key);
}

static void report_namespaces(void) {
    work(100);
    int mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    tell("setns", setns(mounts, CLONE_NEWNS));
    tell("unshare", unshare(CLONE_NEWUSER));
}

/* Threads that were there and are joined; the kernel may count one for a moment yet. */
static void report_namespaces_after_threads(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) EXPECT(pthread_create(&threads[i], NULL, work_in_thread, NULL) == 0, "no thread");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SOON_MS / 20 && count_tasks() > 1; i++) sleep_ms(20);
    tell("unshare", unshare(CLONE_NEWUSER));
}

static int set_capabilities(uint64_t mask) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {
        {.effective = (uint32_t)mask, .permitted = (uint32_t)mask},
        {.effective = (uint32_t)(mask >> 32), .permitted = (uint32_t)(mask >> 32)}};
    return (int)syscall(SYS_capset, &header, data);
}

/* As setpriv, dnsmasq and others do it. */
static void report_rights(void) {
    need_root();
    work(100);
    tell("keep", prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
    tell("user", setresuid(NOBODY, NOBODY, NOBODY));
    tell("capabilities", set_capabilities((uint64_t)1 << CAP_SETGID | (uint64_t)1 << CAP_NET_BIND_SERVICE));
    tell("group", setresgid(NOBODY, NOBODY, NOBODY));
    tell("no capabilities", set_capabilities(0));
}

static void print_rights(int task, void *unused) {
    static const char *const names[] = {"\nUid:", "\nCapPrm:", "\nCapEff:", "\nNoNewPrivs:"};
    char path[64], text[8192];
    (void)unused;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", task);
    read_text(path, text, sizeof text);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *line = strstr(text, names[i]);
        if (line != NULL) printf("%.*s\n", (int)strcspn(line + 1, "\n"), line + 1);
    }
}

static void report_rights_of_tasks(void) {
    need_root();
    work(100);
    tell("user", setresuid(NOBODY, NOBODY, NOBODY));
    for_each_task(print_rights, NULL);
}

static void report_promises(void) {
    work(100);
    if (geteuid() == 0) tell("no capabilities", set_capabilities(0));
    tell("no new rights", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    for_each_task(print_rights, NULL);
}

static void print_scheduling(int task, void *unused) {
    cpu_set_t processors;
    (void)unused;
    CPU_ZERO(&processors);
    sched_getaffinity(task, sizeof processors, &processors);
    printf("policy %d, nice %d, %d processors\n", (int)syscall(SYS_sched_getscheduler, task),
           getpriority(PRIO_PROCESS, (id_t)task), CPU_COUNT(&processors));
}

static void bind_to_one(void) {
    cpu_set_t processors, one;
    EXPECT(sched_getaffinity(0, sizeof processors, &processors) == 0, "no processors");
    int first = 0;
    while (!CPU_ISSET(first, &processors)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    EXPECT(sched_setaffinity(0, sizeof one, &one) == 0, "can't bind");
}

static bool be_real_time(void) {
    struct sched_param parameters = {.sched_priority = 10};
    return syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &parameters) == 0;
}

/* What is set early is on all tasks of the process. */
static void report_scheduling(void) {
    bind_to_one();
    bool is_real_time = be_real_time();
    printf("real-time: %d\n", is_real_time);
    if (!is_real_time) setpriority(PRIO_PROCESS, 0, 5);
    work(100);
    for_each_task(print_scheduling, NULL);
}

static void report_raw_exit(void) {
    work(100);
    puts("ends");
    fflush(stdout);
    syscall(SYS_exit, 3);
}

/* The program has threads: hakmem's own are there, and answer. */
static void report_unmount_proc(void) {
    need_root();
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("proc", "/proc", "proc", 0, NULL) != 0) {
        puts("skipped: no mounts");
        return;
    }
    pthread_t thread = begin_thread(work_and_meet);
    if (find_owns() != NULL) wait_for_service();
    tell("umount", umount("/proc"));
    end_thread(thread);
}

static void *just_end(void *unused) { return unused; }

/* A user who may have two tasks: the program's own second one needs the place. */
static void report_process_limit(void) {
    pthread_t thread;
    need_root();
    EXPECT(setrlimit(RLIMIT_NPROC, &(struct rlimit){2, 2}) == 0, "no limit");
    EXPECT(setresuid(54321, 54321, 54321) == 0, "not another user");
    work(100);
    errno = pthread_create(&thread, NULL, just_end, NULL);
    tell("thread", errno);
}

/* ---- On hakmem and on the C library's malloc --------------------------------------------------------------------- */

static void run_report(const char *name, bool is_preloaded, char report[REPORT_BYTES]) {
    int ends[2], status;
    EXPECT(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    EXPECT(child >= 0, "no process");
    if (child == 0) {
        if (!is_preloaded) unsetenv("LD_PRELOAD");
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "guest", name, is_preloaded ? "hakmem" : "libc", NULL);
        _exit(EXIT_USE);
    }
    close(ends[1]);
    size_t length = 0;
    ssize_t got = 1;
    for (uint64_t end_ns = now_ns() + REPORT_S * UINT64_C(1000000000); got > 0 && length < REPORT_BYTES - 1;) {
        struct pollfd one = {.fd = ends[0], .events = POLLIN};
        if (poll(&one, 1, 100) == 0 && now_ns() > end_ns) break;
        if (one.revents != 0) got = read(ends[0], report + length, REPORT_BYTES - 1 - length);
        if (one.revents != 0 && got > 0) length += (size_t)got;
    }
    close(ends[0]);
    if (got > 0) kill(child, SIGKILL); /* it goes on for ever */
    EXPECT(waitpid(child, &status, 0) == child, "no child");
    snprintf(report + length, REPORT_BYTES - length, "ended with %#x\n", (unsigned)status);
}

static const char *compared;

static void compare(void) {
    static char own[REPORT_BYTES], libcs[REPORT_BYTES];
    run_report(compared, false, libcs);
    if (strstr(libcs, "skipped") == libcs) SKIP("%.*s", (int)strcspn(libcs, "\n"), libcs);
    run_report(compared, true, own);
    EXPECT(strcmp(own, libcs) == 0, "on hakmem:\n%son libc:\n%s", own, libcs);
}

/* ---- Programs that have threads ---------------------------------------------------------------------------------- */

/* hakmem's threads end although the one that is left makes no call. unit.front.background counts the seconds. */
static void expect_alone(void) {
    for (int i = 0; i < SOON_MS / 20 && count_tasks() > 1; i++) sleep_ms(20);
    EXPECT(count_tasks() == 1, "%d tasks", count_tasks());
}

static void leaves_alone(void) {
    for (int i = 0; i < 2; i++) {
        pthread_t thread = begin_thread(work_and_meet);
        wait_for_service();
        end_thread(thread);
        expect_alone();
    }
    EXPECT(unshare(CLONE_NEWUSER) == 0 || errno != EINVAL, "not alone");
}

/* The same while the background thread sleeps. */
static void leaves_asleep(void) {
    pthread_t thread = begin_thread(work_and_meet);
    wait_for_service();
    sleep_ms(8000);
    end_thread(thread);
    expect_alone();
}

static void *rest_and_meet(void *unused) {
    free(malloc(1));
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    return unused;
}

static void *try_namespace(void *yes) { return unshare(CLONE_NEWNET) == 0 ? yes : NULL; }

static void *work_bound(void *unused) {
    bind_to_one();
    setpriority(PRIO_PROCESS, 0, 7); /* of this thread */
    if (!be_real_time()) say("no real time here\n");
    return work_and_meet(unused);
}

static int nice_of(pid_t task) { return getpriority(PRIO_PROCESS, (id_t)task); }

static void expect_like_main(int task, void *unused) {
    cpu_set_t mains, own;
    (void)unused;
    if (!is_own(task)) return;
    sched_getaffinity(getpid(), sizeof mains, &mains);
    for (int i = 0; i < SOON_MS / 10; i++) { /* it sets itself */
        sched_getaffinity(task, sizeof own, &own);
        if (CPU_EQUAL(&mains, &own) && nice_of(task) == nice_of(getpid())) break;
        sleep_ms(10);
    }
    EXPECT(syscall(SYS_sched_getscheduler, task) == SCHED_OTHER, "policy %ld", syscall(SYS_sched_getscheduler, task));
    EXPECT(CPU_EQUAL(&mains, &own), "other processors than main's");
    if (geteuid() == 0) EXPECT(nice_of(task) == nice_of(getpid()), "another priority than main's");
}

static void workers_scheduling(void) {
    pthread_t thread = begin_thread(work_bound);
    wait_for_service();
    for_each_task(expect_like_main, NULL);
    end_thread(thread);
}

/* What a worker has changed of its own thread only is not hakmem's: the worker starts its thread, which ends at once, and
 * the worker ends. The second thread goes on meanwhile. */
static pthread_t begin_with_worker(void *(*worker)(void *)) {
    pthread_t second, first;
    free(malloc(1));
    pthread_barrier_init(&meet, NULL, 2);
    EXPECT(pthread_create(&second, NULL, rest_and_meet, NULL) == 0, "no thread");
    pthread_barrier_wait(&meet);
    EXPECT(pthread_create(&first, NULL, worker, NULL) == 0, "no thread");
    pthread_join(first, NULL);
    for (int i = 0; i < SOON_MS / 10 && count_tasks() > 2; i++) sleep_ms(10);
    EXPECT(count_tasks() == 2, "%d tasks: hakmem's goes on as the worker was", count_tasks());
    return second;
}

static void *work_as_nobody(void *unused) {
    EXPECT(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0, "not another user");
    return work_in_thread(unused);
}

/* libc gives all threads another user, and aborts if one of them may not. */
static void worker_uid(void) {
    if (geteuid() != 0) SKIP("not root");
    if (prctl(PR_GET_SECCOMP) > 0) SKIP("system calls are filtered");
    pthread_t thread = begin_with_worker(work_as_nobody);
    EXPECT(setresuid(NOBODY - 1, NOBODY - 1, NOBODY - 1) == 0, "errno %d", errno);
    end_thread(thread);
}

/* The calling thread, or each one, is refused this call. */
static bool refuse(int call, unsigned flags) {
    struct sock_filter filter[8] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    size_t length = filter_add(filter, 1, call, SECCOMP_RET_ERRNO | EPERM);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)length, .filter = filter};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0;
}

static void *work_filtered(void *unused) {
    EXPECT(refuse(SYS_ptrace, 0), "no filter");
    return work_in_thread(unused);
}

/* A filter for all threads is refused where one of them has another. */
static void worker_filter(void) {
    if (prctl(PR_GET_SECCOMP) > 0) SKIP("system calls are filtered");
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no promise");
    pthread_t thread = begin_with_worker(work_filtered);
    EXPECT(refuse(SYS_kexec_load, SECCOMP_FILTER_FLAG_TSYNC), "no filter for all");
    end_thread(thread);
}

static void *work_elsewhere(void *unused) {
    EXPECT(unshare(CLONE_NEWNET) == 0, "no namespace");
    return work_in_thread(unused);
}

static void worker_namespace(void) {
    if (geteuid() != 0) SKIP("not root");
    if (prctl(PR_GET_SECCOMP) > 0) SKIP("system calls are filtered");
    pthread_t first;
    EXPECT(pthread_create(&first, NULL, try_namespace, &meet) == 0, "no thread");
    void *result = NULL;
    pthread_join(first, &result);
    if (result == NULL) SKIP("no namespaces");
    end_thread(begin_with_worker(work_elsewhere));
}

/* A thread with a current folder of its own may do with it what one with a shared one may not. */
static void *work_in_own_folder(void *unused) {
    EXPECT(unshare(CLONE_FS) == 0, "no folder of its own");
    return work_in_thread(unused);
}

static void worker_folder(void) {
    if (prctl(PR_GET_SECCOMP) > 0) SKIP("system calls are filtered");
    if (syscall(SYS_kcmp, getpid(), getpid(), 0, 0, 0) != 0) SKIP("a kernel without kcmp");
    end_thread(begin_with_worker(work_in_own_folder));
}

/* Who asks for the thread has it, with one thread, too, and keeps it. */
/* A program with one thread: hakmem's comes with the bursts, and goes when they are over. */
static void bursts(void) {
    long before = resident_kib();
    work_in_bursts();
    EXPECT(count_tasks() == 2, "%d tasks", count_tasks());
    expect_alone();
    EXPECT(resident_kib() < before + before / 10 + 1024, "%ld KiB, before %ld", resident_kib(), before);
    for (size_t i = 0; i < 3000; i++) free(malloc(20 + i % 500));
    EXPECT(count_tasks() == 1, "%d tasks after the rest", count_tasks());
    work_in_bursts();
    EXPECT(count_tasks() == 2, "%d tasks in the next burst", count_tasks());
}

static void expect_resident(long before_kib, long most_mib, const char *when, long number) {
    long now_kib = resident_kib();
    EXPECT(now_kib < before_kib + before_kib / 10 + most_mib * 1024, "%ld KiB %s %ld, before %ld", now_kib, when,
           number, before_kib);
}

/* After a fork, in the parent and in the child. */
static void bursts_after_a_fork(void) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        work_in_bursts();
        _exit(count_tasks() != 2);
    }
    waitpid(child, &status, 0);
    EXPECT(status == 0, "no thread in the child");
    work_in_bursts();
    EXPECT(count_tasks() == 2, "%d tasks", count_tasks());
}

/* A program that forks in a burst has one thread when it does, and so has its child. Either may make no call any more. */
static void bursts_and_forks(void) {
    int status = -1;
    long before_kib = resident_kib();
    work_in_bursts();
    EXPECT(count_tasks() == 2, "%d tasks", count_tasks());
    pid_t child = fork();
    int tasks = count_tasks();
    expect_resident(before_kib, 17, "after the fork", child);
    if (child == 0) {
        work_in_bursts();
        _exit(tasks == 1 && count_tasks() == 2 ? 0 : 1);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", (unsigned)status);
    EXPECT(tasks == 1, "%d tasks after the fork", tasks);
    work_in_bursts(); /* it may fork in each: it has no thread in each */
    EXPECT(count_tasks() == 1, "%d tasks in the next burst", count_tasks());
}

/* Each of these calls finds the program alone, whether the kernel grants it or not. */
static long call_number; /* of `calls` below */

static void one_call(void) {
    struct __user_cap_header_struct header = {.version = 1}; /* too old: nothing is changed */
    switch (call_number) {
    case 0: prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0); break;
    case 1: prctl(PR_SET_SECUREBITS, prctl(PR_GET_SECUREBITS, 0, 0, 0, 0), 0, 0, 0); break;
    case 2: prctl(PR_CAPBSET_DROP, 9999, 0, 0, 0); break;
    case 3: prctl(PR_CAP_AMBIENT, 9999, 0, 0, 0); break;
    case 4: prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0); break;
    case 5: syscall(SYS_prctl, PR_SET_KEEPCAPS, 0, 0, 0, 0); break;
    case 6: syscall(SYS_unshare, 0); break;
    case 7: syscall(SYS_setns, -1, 0); break;
    case 8: syscall(SYS_capset, &header, NULL); break;
    case 9: EXPECT(unshare(0) == 0, "unshare of nothing"); break;
    case 10: EXPECT(setns(-1, 0) == -1 && errno == EBADF, "setns of nothing: errno %d", errno); break;
    case 11: syscall(SYS_setresuid, -1, -1, -1); break;
    case 12: syscall(SYS_setgroups, -1, NULL); break;
    case 13: EXPECT(capset(&header, NULL) == -1, "capset of nothing"); break;
    default: call_number = -1;
    }
}

static void bursts_and_calls(void) {
    enum { LAST = 2 }; /* status of a child that found no call of its number */
    int status = 0;
    for (; status == 0; call_number++) { /* each in a child, which has made none before */
        pid_t child = fork();
        EXPECT(child >= 0, "fork");
        if (child == 0) {
            long before_kib = resident_kib();
            work_in_bursts();
            EXPECT(prctl(PR_GET_KEEPCAPS, 0, 0, 0, 0) == 0 && syscall(SYS_getpid) == getpid(), "not what was asked");
            EXPECT(count_tasks() == 2, "%d tasks before call %ld", count_tasks(), call_number);
            long number = call_number;
            one_call();
            if (call_number < 0) _exit(LAST);
            EXPECT(count_tasks() == 1, "%d tasks after call %ld", count_tasks(), number);
            expect_resident(before_kib, 17, "after call", number);
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child, "waitpid");
    }
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == LAST && call_number > 14, "call %ld: status %#x",
           call_number - 1, (unsigned)status);
}

/* In a child that libc doesn't know of, a promise is remembered for its own children. */
static void bursts_after_a_raw_fork(void) {
    int status = -1;
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(1);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            work_in_bursts();
            _exit(count_tasks() == 1 ? 0 : 1);
        }
        waitpid(grandchild, &status, 0);
        _exit(status != 0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", (unsigned)status);
}

/* Where it may have filters by then, it has none, and less stays. */
static void bursts_without(void) {
    enum { MOST_MIB = 16 };
    long before = resident_kib();
    work_in_bursts();
    EXPECT(count_tasks() == 2, "%d tasks before the promise", count_tasks());
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no promise");
    EXPECT(count_tasks() == 1, "%d tasks after the promise", count_tasks());
    work_in_bursts();
    EXPECT(count_tasks() == 1, "%d tasks", count_tasks());
    EXPECT(resident_kib() < before + before / 10 + (MOST_MIB + 1) * 1024, "%ld KiB, before %ld", resident_kib(),
           before);
}

static void asked(void) {
    if (getenv("HAKMEM_BACKGROUND") == NULL) {
        setenv("HAKMEM_BACKGROUND", "1", 1);
        execl("/proc/self/exe", "guest", "asked", NULL);
    }
    work(20);
    for (int i = 0; i < SOON_MS / 10 && own_task() == 0; i++) sleep_ms(10); /* it names itself */
    EXPECT(own_task() != 0, "no thread");
    sleep_ms(LEAVE_MS + 1000);
    EXPECT(own_task() != 0, "it has ended");
}

/* ---- The processor's counter -------------------------------------------------------------------------------------- */

/* A program that forbids the processor's counter is ended by whoever reads it. */
static void report_counter(void) {
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV) != 0) {
        say("skipped: no counter to forbid\n");
        return;
    }
    for (size_t mib = 1; mib <= 64; mib *= 4) free(keep_mib(mib));
    char *block = malloc(100);
    for (size_t bytes = 100; bytes <= 256 * MIB; bytes *= 2)
        EXPECT((block = realloc(block, bytes)) != NULL, "no memory");
    free(block);
    for (size_t i = 0; i < 1000; i++) {
        EXPECT((block = calloc(1, i << 14 | 1)) != NULL, "no memory");
        block[i << 13] = 1;
        free(block);
    }
    malloc_trim(0);
    say("alive\n");
}

/* ---- Filters that kill, in programs that work no more ---------------------------------------------------------------- */

static void tell_child(const char *what, pid_t child) {
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child, "no child");
    printf("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Has used memory, and asks for a little more, of many sizes, again and again. */
static void work_on(void) {
    static void *blocks[400];
    bool has_all = true;
    for (size_t i = 0; i < 300; i++) has_all &= (blocks[i] = malloc(16 + i)) != NULL;
    for (size_t i = 0; i < 20000; i++) {
        free(blocks[i % 300]);
        has_all &= (blocks[i % 300] = malloc(16 + i * 7 % 200)) != NULL;
    }
    for (size_t i = 300; i < 400; i++) has_all &= (blocks[i] = calloc(1, 100)) != NULL;
    free(blocks[0]);
    has_all &= (blocks[0] = malloc(20000)) != NULL;
    void *larger = realloc(blocks[0], 40000);
    has_all &= larger != NULL;
    if (has_all) blocks[0] = larger;
    for (size_t i = 0; i < 400; i++) free(blocks[i]);
    if (!has_all) syscall(SYS_exit, 3);
}

static void be_strict(void) {
    for (size_t i = 0; i < 64; i++) free(malloc(i * 32 + 1));
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(2);
    work_on();
    syscall(SYS_exit, 0);
}

/* After it a process may read, write, return from a handler, and end. */
static void report_strict(void) {
    for (int in_bursts = 0; in_bursts < 2; in_bursts++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0 && in_bursts) work_in_bursts();
        if (child == 0) be_strict();
        tell_child(in_bursts ? "after bursts" : "at once", child);
    }
}

/* A block's pages are in a pipe when it is freed. Nobody may write into them. */
static void report_pipe(void) {
    enum { BYTES = 512 << 10 };
    static char back[BYTES];
    int ends[2];
    if (pipe(ends) != 0 || fcntl(ends[1], F_SETPIPE_SZ, 2 * BYTES) < 0) {
        printf("skipped: no pipe of 1 MiB\n");
        return;
    }
    char *block = aligned_alloc(4 * KIB, BYTES);
    EXPECT(block != NULL, "no memory");
    memset(block, 'a', BYTES);
    struct iovec part = {block, BYTES};
    ssize_t given = vmsplice(ends[1], &part, 1, 0), got = 0, changed = 0;
    free(block);
    for (ssize_t count; got < given && (count = read(ends[0], back + got, (size_t)(given - got))) > 0;) got += count;
    for (ssize_t i = 0; i < got; i++) changed += back[i] != 'a';
    printf("%zd of %zd bytes, %zd changed\n", got, given, changed);
}

static void fork_once(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
}
static void unshare_nothing(void) { unshare(0); }
static void keep_rights(void) { prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0); }
static void set_user(void) { syscall(SYS_setuid, getuid()); }

/* getpid is fatal. The program's own functions don't call it. */
static void report_no_getpid(void) {
    static void (*const calls[])(void) = {fork_once, unshare_nothing, keep_rights, set_user};
    struct sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                   BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 0, 1),
                                   BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                                   BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {COUNT_OF(filter), filter};
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child != 0) {
            tell_child("without getpid", child);
            continue;
        }
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
            _exit(2);
        calls[i]();
        _exit(0);
    }
}

#if defined(__x86_64__)
static volatile int reached;

static void begin_there(void) {
    reached = 1;
    __asm__ volatile("movl $60, %eax\n\txorl %edi, %edi\n\tsyscall");
}

/* A child that shares memory goes on from what lies on top of its own stack. */
static void report_clone_by_syscall(void) {
    enum { STACK_WORDS = 8192, TOP = STACK_WORDS - 8 };
    static void *stack[STACK_WORDS];
    stack[TOP] = (void *)(uintptr_t)begin_there;
    long child = syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, &stack[TOP], 0, 0, 0);
    tell_child("child", (pid_t)child);
    printf("reached: %d\n", reached);
    reached = 0;
    stack[TOP] = (void *)(uintptr_t)begin_there;
    struct clone_args wanted = {.flags = CLONE_VM | CLONE_VFORK,
                                .exit_signal = SIGCHLD,
                                .stack = (uintptr_t)stack,
                                .stack_size = TOP * sizeof *stack};
    child = syscall(SYS_clone3, &wanted, sizeof wanted);
    tell_child("child of clone3", (pid_t)child);
    printf("reached: %d\n", reached);
    errno = 0;
    printf("refused: %ld", syscall(SYS_clone, CLONE_SIGHAND, 0, 0, 0, 0));
    printf(", %s\n", strerror(errno));
}
#else
static void report_clone_by_syscall(void) { puts("skipped: another machine"); }
#endif

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static const struct test_case reports[] = {
    {"tasks", report_tasks},
    {"tasks_of_child", report_tasks_of_child},
    {"single", report_single},
    {"keys", report_keys},
    {"namespaces", report_namespaces},
    {"namespaces_after_threads", report_namespaces_after_threads},
    {"rights", report_rights},
    {"rights_of_tasks", report_rights_of_tasks},
    {"promises", report_promises},
    {"scheduling", report_scheduling},
    {"raw_exit", report_raw_exit},
    {"unmount_proc", report_unmount_proc},
    {"process_limit", report_process_limit},
    {"counter", report_counter},
    {"strict", report_strict},
    {"pipe", report_pipe},
    {"no_getpid", report_no_getpid},
    {"clone_by_syscall", report_clone_by_syscall},
};

static const struct test_case owns[] = {{"leaves_alone", leaves_alone},
                                        {"leaves_asleep", leaves_asleep},
                                        {"workers_scheduling", workers_scheduling},
                                        {"asked", asked},
                                        {"bursts", bursts},
                                        {"bursts_after_a_fork", bursts_after_a_fork},
                                        {"bursts_and_forks", bursts_and_forks},
                                        {"bursts_and_calls", bursts_and_calls},
                                        {"bursts_after_a_raw_fork", bursts_after_a_raw_fork},
                                        {"bursts_without", bursts_without},
                                        {"worker_uid", worker_uid},
                                        {"worker_namespace", worker_namespace},
                                        {"worker_folder", worker_folder},
                                        {"worker_filter", worker_filter}};

int main(int argc, char **argv) {
    struct test_case cases[COUNT_OF(owns) + COUNT_OF(reports)];
    memcpy(cases, owns, sizeof owns);
    for (size_t i = 0; i < COUNT_OF(reports); i++) {
        cases[COUNT_OF(owns) + i] = (struct test_case){reports[i].name, compare};
        if (argc < 2 || strcmp(argv[1], reports[i].name) != 0) continue;
        compared = reports[i].name;
        if (argc < 3) continue;
        EXPECT((find_owns() != NULL) == (strcmp(argv[2], "hakmem") == 0), "on another heap than meant");
        alarm(400);
        reports[i].run();
        return 0;
    }
    return run_case(argc, argv, cases, COUNT_OF(cases), 90);
}
