/* System calls, straight to the kernel. libc's `syscall` is a function like others: a program, or a tool in it, may put
 * its own before it, which allocates, or holds a lock (docs/decisions/0074). */
#ifndef HAK_OS_KERNEL_H
#define HAK_OS_KERNEL_H

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/platform.h"

/* As libc's `syscall`: the number, and up to six arguments, integers or pointers. -1 with errno when it is refused. */
#define HAK_SYSTEM_CALL(...) HAK_SYSTEM_CALL_OF(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define HAK_SYSTEM_CALL_OF(number, a, b, c, d, e, f, ...)                                                              \
    hak_system_call_of_six(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

#if defined(__x86_64__) && !defined(__ILP32__)
HAK_INLINE long hak_kernel_answer(long number, long a, long b, long c, long d, long e, long f) {
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = f;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return answer;
}
#elif defined(__aarch64__) && !defined(__ILP32__)
#ifdef __ARM_FEATURE_SVE /* which the kernel doesn't keep */
#define HAK_KERNEL_CHANGES                                                                                             \
    "memory", "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12", "p13", "p14", "p15",    \
        "z0", "z1", "z2", "z3", "z4", "z5", "z6", "z7", "z8", "z9", "z10", "z11", "z12", "z13", "z14", "z15", "z16",   \
        "z17", "z18", "z19", "z20", "z21", "z22", "z23", "z24", "z25", "z26", "z27", "z28", "z29", "z30", "z31"
#else
#define HAK_KERNEL_CHANGES "memory"
#endif
HAK_INLINE long hak_kernel_answer(long number, long a, long b, long c, long d, long e, long f) {
    register long at __asm__("x8") = number, answer __asm__("x0") = a, second __asm__("x1") = b,
                     third __asm__("x2") = c, fourth __asm__("x3") = d, fifth __asm__("x4") = e,
                     sixth __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(answer)
                     : "r"(at), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : HAK_KERNEL_CHANGES);
    return answer;
}
#else /* another machine: there a wrapper of `syscall` is in the way */
#define HAK_KERNEL_BEHIND_LIBC
HAK_INLINE long hak_kernel_answer(long number, long a, long b, long c, long d, long e, long f) {
    long answer = syscall(number, a, b, c, d, e, f);
    return answer == -1 ? -errno : answer;
}
#endif

#ifndef HAK_KERNEL_BY_LIBC /* tests that stand in for the kernel, by a `syscall` of theirs, set it */
#define HAK_KERNEL_BY_LIBC 0
#endif

/* What the kernel answers, as libc's functions return it. */
HAK_INLINE long hak_kernel_result(long answer) {
    enum { MOST_ERROR = 4095 };
    if (HAK_LIKELY(answer >= 0 || answer < -MOST_ERROR)) return answer;
    errno = (int)-answer;
    return -1;
}

HAK_INLINE long hak_system_call_of_six(long number, long a, long b, long c, long d, long e, long f) {
    if (HAK_KERNEL_BY_LIBC) return syscall(number, a, b, c, d, e, f);
    return hak_kernel_result(hak_kernel_answer(number, a, b, c, d, e, f));
}

#endif
