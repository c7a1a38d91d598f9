/* What the resource tests do to a process: run it anew under a limit and a watcher, and have the kernel refuse system
 * calls to it (seccomp). Nothing here allocates. */
#ifndef HAKMEM_TESTS_PROCESS_H
#define HAKMEM_TESTS_PROCESS_H

#include "../../api/expect.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- Watched processes ---- */

#define WATCHED_VARIABLE "HAK_TEST_WATCHED"

/* Whether this process is the watched one. */
__attribute__((unused)) static int is_watched(void) { return getenv(WATCHED_VARIABLE) != NULL; }

/* Waits for the child, which must keep its resident memory within the bound: a test that runs away is ended here, not
 * by the kernel choosing among all processes. Returns the child's exit code, 1 when it was killed. */
__attribute__((unused)) static int watch(pid_t child, size_t memory_bytes) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)child);
    size_t highest = 0;
    for (;;) {
        int status;
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) {
            if (WIFSIGNALED(status)) {
                say("ended by signal %d, at most %zu MiB resident\n", WTERMSIG(status), highest / MIB);
            }
            return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_EXPECTATION;
        }
        size_t resident = statm_bytes(path, 1);
        highest = resident > highest ? resident : highest;
        if (resident > memory_bytes) {
            say("ran away: %zu MiB resident\n", resident / MIB);
            kill(child, SIGKILL);
        }
        struct timespec pause = {.tv_nsec = 3000000};
        nanosleep(&pause, NULL);
    }
}

/* Starts this program anew with the same arguments, under the limit (none when resource is negative), and watches. */
__attribute__((unused)) static int run_watched(char **argv, size_t memory_bytes, int resource, size_t limit_bytes) {
    pid_t child = fork();
    EXPECT(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv(WATCHED_VARIABLE, "1", 1);
        struct rlimit limit = {limit_bytes, limit_bytes};
        if (resource >= 0 && setrlimit((__rlimit_resource_t)resource, &limit)) {
            SKIP("setrlimit: errno %d", errno);
        }
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    return watch(child, memory_bytes);
}

/* ---- Refused system calls ---- */

#if defined(__x86_64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "which architecture does seccomp call this?"
#endif

__attribute__((unused)) static const struct {
    const char *name;
    int number;
} refusable[] = {
    {"mmap", SYS_mmap},
    {"mremap", SYS_mremap},
    {"mprotect", SYS_mprotect},
    {"brk", SYS_brk},
    {"munmap", SYS_munmap},
    {"madvise", SYS_madvise},
    {"getrandom", SYS_getrandom},
    {"membarrier", SYS_membarrier},
    {"rseq", SYS_rseq},
    {"getcpu", SYS_getcpu},
    {"sched_getaffinity", SYS_sched_getaffinity},
    {"mbind", SYS_mbind},
    {"sysinfo", SYS_sysinfo},
    {"mincore", SYS_mincore},
    {"futex", SYS_futex},
    {"process_madvise", SYS_process_madvise},
    {"clone", SYS_clone},
    {"clone3", SYS_clone3},
    {"openat", SYS_openat},
    {"read", SYS_read},
    {"process_vm_readv", SYS_process_vm_readv},
    {"rt_tgsigqueueinfo", SYS_rt_tgsigqueueinfo},
};

__attribute__((unused)) static int errno_by_name(const char *name) {
    return !strcmp(name, "ENOMEM")   ? ENOMEM
           : !strcmp(name, "EPERM")  ? EPERM
           : !strcmp(name, "ENOSYS") ? ENOSYS
           : !strcmp(name, "EINVAL") ? EINVAL
                                     : 0;
}

/* From now on, in all threads and through exec, the calls named in the list ("mmap,brk") fail with the code. brk has no
 * error codes: it returns the break, and one that is below the wanted is a refusal. */
__attribute__((unused)) static void refuse_calls(const char *names, int code) {
    struct sock_filter filter[8 + 2 * COUNT_OF(refusable)];
    size_t length = 0;
    EXPECT(code > 0, "no errno of that name");
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCHITECTURE, 1, 0);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (const char *at = names; *at;) {
        size_t name_length = strcspn(at, ",");
        size_t i = 0;
        while (i < COUNT_OF(refusable) &&
               (strlen(refusable[i].name) != name_length || memcmp(refusable[i].name, at, name_length) != 0)) {
            i++;
        }
        EXPECT(i < COUNT_OF(refusable), "no call of the name %s", at);
        EXPECT(length + 3 <= COUNT_OF(filter), "too many names in %s", names);
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)refusable[i].number, 0, 1);
        unsigned returned = refusable[i].number == SYS_brk ? 0 : (unsigned)code;
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | returned);
        at += name_length + (at[name_length] == ',');
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)length, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
        SKIP("no seccomp here: errno %d", errno);
    }
}

#endif
