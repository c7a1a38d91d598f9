/* Sandboxes that programs put themselves or others into: lists of system calls of which any other is fatal (or, for
 * diagnosis, is told). Written as the kernel takes them, so that no library is needed. */
#ifndef HAK_TEST_FILTERS_H
#define HAK_TEST_FILTERS_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Headers older than the kernels that know it. */
#ifndef SECCOMP_RET_KILL_PROCESS
#define SECCOMP_RET_KILL_PROCESS 0x80000000U
#endif

static const int system_service[] = {
#include "system_service.h"
};

/* What OpenSSH's server lets its half call that talks to strangers; files are refused, not fatal. */
static const int openssh[] = {
    SYS_brk,      SYS_clock_gettime,  SYS_close,     SYS_exit,         SYS_exit_group,      SYS_futex,   SYS_geteuid,
    SYS_getpgid,  SYS_getpid,         SYS_getrandom, SYS_gettimeofday, SYS_getuid,          SYS_madvise, SYS_mmap,
    SYS_mprotect, SYS_mremap,         SYS_munmap,    SYS_nanosleep,    SYS_clock_nanosleep, SYS_ppoll,   SYS_pselect6,
    SYS_read,     SYS_rt_sigprocmask, SYS_shutdown,  SYS_write,        SYS_rt_sigreturn,
};
static const int openssh_refused[] = {SYS_openat, SYS_fstat, SYS_newfstatat};

/* What glibc's malloc calls, a futex, and what a program needs to say a word and end. */
static const int least[] = {
    SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise,    SYS_mprotect,
    SYS_brk,  SYS_futex,  SYS_write,  SYS_exit_group, SYS_rt_sigreturn,
};

struct filter_list {
    const char *name;
    const int *allowed, *refused;
    size_t allowed_count, refused_count;
};

#ifndef COUNT_OF
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#endif

static const struct filter_list filter_lists[] = {
    {"system_service", system_service, NULL, COUNT_OF(system_service), 0},
    {"openssh", openssh, openssh_refused, COUNT_OF(openssh), COUNT_OF(openssh_refused)},
    {"least", least, NULL, COUNT_OF(least), 0},
};

static inline const struct filter_list *filter_list_named(const char *name) {
    for (size_t i = 0; i < COUNT_OF(filter_lists); i++)
        if (strcmp(filter_lists[i].name, name) == 0) return &filter_lists[i];
    return NULL;
}

static inline bool filter_allows(const struct filter_list *list, int call) {
    for (size_t i = 0; i < list->allowed_count; i++)
        if (list->allowed[i] == call) return true;
    return false;
}

enum { FILTER_MOST = 2048 };

static inline size_t filter_add(struct sock_filter *filter, size_t at, int call, uint32_t action) {
    filter[at] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
    filter[at + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    return at + 2;
}

/* Chromium's sandbox, for one, knows the flags of mmap that its own libc and allocators use, and kills for others. */
enum {
    FLAGS_OF_MMAP = MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE | MAP_FIXED | MAP_DENYWRITE
};

static inline size_t filter_add_mmap(struct sock_filter *filter, size_t at, uint32_t otherwise) {
    const struct sock_filter rule[] = {
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, ~(uint32_t)FLAGS_OF_MMAP, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    memcpy(filter + at, rule, sizeof rule);
    return at + COUNT_OF(rule);
}

/* Calls of which one argument has these values only; without any it may have all. */
static struct filter_values {
    int call;
    unsigned argument;
    uint32_t values[16];
    size_t count;
} filter_advice = {.call = SYS_madvise, .argument = 2}, filter_protection = {.call = SYS_mprotect, .argument = 2};

static inline size_t filter_add_values(struct sock_filter *filter, size_t at, const struct filter_values *rule,
                                       uint32_t otherwise) {
    size_t count = rule->count;
    if (count == 0) return at;
    filter[at++] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)rule->call, 0, (uint8_t)(count + 3));
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) +
                                                                              rule->argument * sizeof(uint64_t));
    for (size_t i = 0; i < count; i++)
        filter[at++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule->values[i], (uint8_t)(count - i), 0);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    return at;
}

/* Puts the calling thread, or with `all_threads` each one, under the list; what it doesn't have meets `otherwise`.
 * False where the kernel has no such thing. Allocates nothing. */
static inline bool filter_enter(const struct filter_list *list, uint32_t otherwise, bool all_threads) {
    static struct sock_filter filter[FILTER_MOST];
    size_t at = 0;
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < list->refused_count; i++)
        at = filter_add(filter, at, list->refused[i], SECCOMP_RET_ERRNO | 13 /* EACCES */);
    at = filter_add_mmap(filter, at, otherwise);
    at = filter_add_values(filter, at, &filter_advice, otherwise);
    at = filter_add_values(filter, at, &filter_protection, otherwise);
    for (size_t i = 0; i < list->allowed_count; i++) at = filter_add(filter, at, list->allowed[i], SECCOMP_RET_ALLOW);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = {.len = (unsigned short)at, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program) == 0;
}

#endif
