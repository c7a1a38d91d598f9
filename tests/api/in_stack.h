/* Functions on a stack of few bytes, as those of coroutines are, with a guard below it. */
#ifndef HAKMEM_API_IN_STACK_H
#define HAKMEM_API_IN_STACK_H

#include "expect.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static inline void run_in_stack(void (*function)(void), size_t bytes) {
    static ucontext_t program, coroutine;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *guard = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(guard != MAP_FAILED && mprotect(guard, page, PROT_NONE) == 0, "no stack");
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = guard + page;
    coroutine.uc_stack.ss_size = bytes;
    coroutine.uc_link = &program;
    makecontext(&coroutine, function, 0);
    EXPECT(swapcontext(&program, &coroutine) == 0, "no coroutine");
}

#endif
