/* A thread's floating-point environment: rounding, traps, and flags of what has happened. In a thread of the program it
 * is the program's, who may want a signal at the first result that is inexact. Who computes with doubles there brings
 * an environment of his own, and gives the program's back as it was.
 *
 * To be used around a call that is not inlined: compilers know nothing of it, and move arithmetic. */
#ifndef HAK_BASE_FLOATING_H
#define HAK_BASE_FLOATING_H

#include "base/platform.h"

struct hak_floating {
    uint64_t control, status;
};

/* From here on to the nearest, and without traps. Returns what was before. */
HAK_INLINE struct hak_floating hak_floating_begin(void) {
#if defined(__x86_64__)
    struct hak_floating before = {.control = __builtin_ia32_stmxcsr()};
    __builtin_ia32_ldmxcsr(0x1f80); /* as a process begins */
#else
    struct hak_floating before;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr" : "=r"(before.control), "=r"(before.status));
#endif
    return before;
}

HAK_INLINE void hak_floating_end(struct hak_floating before) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)before.control); /* flags included */
#else
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(before.control), "r"(before.status));
#endif
}

#endif
