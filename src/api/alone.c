/* Functions of libc's with which a program asks the kernel for what only a process with one thread may have, or for
 * what each thread has for itself: namespaces, capabilities, filters. A thread of hakmem's that works for a program
 * with one thread ends before such a call (hak_background_yield), and the program is alone.
 *
 * In the shared library only, and only where calls of the program's lead here: elsewhere such a program has no thread
 * of hakmem's. Who makes such a call without libc, in assembler, isn't seen. Nor is who has asked the dynamic linker
 * for a function of libc's own. */
#include <sched.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "front/background.h"
#include "os/kernel.h"
#include "os/libc.h"

#if !defined(HAK_NO_OVERRIDE) && !defined(HAK_KERNEL_BEHIND_LIBC) && !HAK_KERNEL_BY_LIBC

enum { LANDLOCK_RESTRICT_SELF = 446 }; /* the same on all machines, and not in older headers */

/* libc's header for it isn't everywhere. */
HAK_API int mallopt(int parameter, int value);

/* As the kernel has them, whose header isn't everywhere either. */
enum { STRICT = 1, SET_STRICT = 0 };

/* What a filter may forbid, nobody may ask: from then on the program stays without such a thread. */
static void yield_before_prctl(long option) {
    switch (option) {
    case PR_SET_SECCOMP:
    case PR_SET_NO_NEW_PRIVS: hak_background_yield(HAK_YIELD_FOR_GOOD); break;
    case PR_SET_KEEPCAPS:
    case PR_SET_SECUREBITS:
    case PR_CAPBSET_DROP:
    case PR_CAP_AMBIENT:
    case PR_SET_TSC: hak_background_yield(HAK_YIELD); break;
    default: break;
    }
}

static void yield_before_call(long number, long option) {
    switch (number) {
    case SYS_prctl: yield_before_prctl(option); break;
    case SYS_seccomp: hak_background_yield(HAK_YIELD_FOR_GOOD); break;
    case SYS_unshare:
    case SYS_setns:
    case SYS_capset:
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_setfsuid:
    case SYS_setfsgid:
    case SYS_setgroups:
    case LANDLOCK_RESTRICT_SELF:
    case SYS_exit: hak_background_yield(HAK_YIELD); break;
    default: break;
    }
}

/* After it the caller may read, write and end, and is killed for any other call. */
static bool is_strict_seccomp(long number, long first, long second) {
    return number == SYS_prctl ? first == PR_SET_SECCOMP && second == STRICT
                               : number == SYS_seccomp && first == SET_STRICT;
}

/* Memory for some blocks is mapped before strict seccomp, and what is freed from then on stays. */
static void map_ahead(void) { hak_free(hak_malloc(HAK_MIB)); }
static void keep_freed_memory(void) {
    enum { TRIM_THRESHOLD = -1 };
    mallopt(TRIM_THRESHOLD, -1);
}

/* What the program asks of the kernel, with what comes before it and after it. */
static long ask_kernel(long number, long a, long b, long c, long d, long e, long f) {
    bool is_strict = is_strict_seccomp(number, a, b);
    yield_before_call(number, a);
    if (is_strict) map_ahead();
    if (number == SYS_seccomp) hak_background_filter(true);
    long answer = HAK_SYSTEM_CALL_OF(number, a, b, c, d, e, f);
    if (number == SYS_seccomp) hak_background_filter(false);
    if (is_strict && answer == 0) keep_freed_memory();
    return answer;
}

HAK_API int prctl(int option, ...) {
    va_list rest;
    va_start(rest, option);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long), d = va_arg(rest, long);
    va_end(rest);
    return (int)ask_kernel(SYS_prctl, option, a, b, c, d, 0);
}

/* A child with a stack of its own goes on there as from libc's function, which has none of its caller's: on x86-64 from
 * what lies on top of the stack, elsewhere from the caller. Its other registers may not be the caller's. */
static long clone_from(const void *caller, long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = e;
    long answer = number;
    __asm__ volatile("movq %%rsp, %%r12\n\tsyscall\n\ttestq %%rax, %%rax\n\tjnz 1f\n\tcmpq %%rsp, %%r12\n\tje "
                     "1f\n\tretq\n1:"
                     : "+a"(answer)
                     : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "r12", "memory");
    (void)caller;
#elif defined(__aarch64__)
    register long at __asm__("x8") = number, answer __asm__("x0") = a, second __asm__("x1") = b,
                     third __asm__("x2") = c, fourth __asm__("x3") = d, fifth __asm__("x4") = e;
    __asm__ volatile("mov x9, sp\n\tsvc #0\n\tcbnz x0, 1f\n\tmov x10, sp\n\tcmp x9, x10\n\tb.eq 1f\n\tmov x30, "
                     "%[caller]\n\tret\n1:"
                     : "+r"(answer)
                     : "r"(at), "r"(second), "r"(third), "r"(fourth), "r"(fifth), [caller] "r"(caller)
                     : "x9", "x10", "x30", "cc", HAK_KERNEL_CHANGES);
#endif
    return hak_kernel_result(answer);
}

HAK_API long syscall(long number, ...) {
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long), d = va_arg(rest, long),
         e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_clone || number == SYS_clone3)
        return clone_from(__builtin_return_address(0), number, a, b, c, d, e);
    return ask_kernel(number, a, b, c, d, e, f);
}

HAK_API int unshare(int flags) {
    hak_background_yield(HAK_YIELD);
    return (int)HAK_SYSTEM_CALL(SYS_unshare, flags);
}

HAK_API int setns(int descriptor, int kind) {
    hak_background_yield(HAK_YIELD);
    return (int)HAK_SYSTEM_CALL(SYS_setns, descriptor, kind);
}

/* Of pointers to structs of linux/capability.h, which not every C library's headers come with. */
HAK_API int capset(void *header, const void *data);
HAK_API int capset(void *header, const void *data) {
    hak_background_yield(HAK_YIELD);
    return (int)HAK_SYSTEM_CALL(SYS_capset, header, data);
}

static bool leads_here(const char *name, uintptr_t function) { return (uintptr_t)hak_os_find_any(name) == function; }

__attribute__((constructor(102))) static void begin_watch(void) {
    if (leads_here("prctl", (uintptr_t)prctl) && leads_here("syscall", (uintptr_t)syscall) &&
        leads_here("unshare", (uintptr_t)unshare) && leads_here("setns", (uintptr_t)setns) &&
        leads_here("capset", (uintptr_t)capset))
        hak_background_watch();
}

#endif
