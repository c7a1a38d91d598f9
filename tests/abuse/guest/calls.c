/* Exactly which system calls are made after main has begun, in a program with one thread that asks for nothing: those
 * that the C library's malloc makes, and no other.
 *
 * Every call of the process traps, but those made by one instruction here, by which the handler of the trap makes them
 * in its place, and counts them.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "filters.h"

enum { MIB = 1 << 20, MOST_CALLS = 1024, BLOCK_BYTES = 700, BLOCKS = 90000, SKIPPED = 77 };

__attribute__((weak)) int hak_owns(const void *address);

static const int allowed[] = {SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mprotect, SYS_brk, SYS_futex};

static unsigned counts[MOST_CALLS];

/* ---- The one place where calls are made -------------------------------------------------------------------------- */

extern const char after_call[];
long make_call(long number, const unsigned long *arguments);

/* A thread can't begin in a handler: it is refused. */
static bool is_thread(int number) { return number == SYS_clone || number == SYS_clone3; }

#if defined(__x86_64__)
__asm__(".text\n.globl make_call\n.type make_call, @function\nmake_call:\n"
        "    mov %rdi, %rax\n    mov %rsi, %r11\n    mov (%r11), %rdi\n    mov 8(%r11), %rsi\n    mov 16(%r11), %rdx\n"
        "    mov 24(%r11), %r10\n    mov 32(%r11), %r8\n    mov 40(%r11), %r9\n    syscall\n"
        ".globl after_call\nafter_call:\n    ret\n");

static void answer(ucontext_t *context, int number) {
    greg_t *registers = context->uc_mcontext.gregs;
    unsigned long arguments[] = {(unsigned long)registers[REG_RDI], (unsigned long)registers[REG_RSI],
                                 (unsigned long)registers[REG_RDX], (unsigned long)registers[REG_R10],
                                 (unsigned long)registers[REG_R8],  (unsigned long)registers[REG_R9]};
    registers[REG_RAX] = is_thread(number) ? -EAGAIN : make_call(number, arguments);
}
#elif defined(__aarch64__)
__asm__(".text\n.globl make_call\n.type make_call, %function\nmake_call:\n"
        "    mov x8, x0\n    mov x9, x1\n    ldp x0, x1, [x9]\n    ldp x2, x3, [x9, 16]\n    ldp x4, x5, [x9, 32]\n    "
        "svc 0\n"
        ".globl after_call\nafter_call:\n    ret\n");

static void answer(ucontext_t *context, int number) {
    unsigned long long *registers = context->uc_mcontext.regs;
    unsigned long arguments[6];
    for (int i = 0; i < 6; i++) arguments[i] = registers[i];
    registers[0] = (unsigned long long)(is_thread(number) ? -EAGAIN : make_call(number, arguments));
}
#endif

static void on_call(int signal, siginfo_t *info, void *context) {
    (void)signal;
    if (info->si_syscall >= 0 && info->si_syscall < MOST_CALLS) counts[info->si_syscall]++;
    answer(context, info->si_syscall);
}

/* All calls trap whose next instruction is not `after_call`; but for the return from the handler. */
static bool trap_calls(void) {
    uint64_t at = (uintptr_t)after_call;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)at, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(at >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog program = {.len = COUNT_OF(filter), .filter = filter};
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static char *blocks[BLOCKS];

static void work(void) {
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(BLOCK_BYTES), 1, BLOCK_BYTES);
        for (int i = 0; i < BLOCKS; i++)
            if (i % 9 != round) free(blocks[i]);
        char *large = malloc(48 * MIB);
        large = realloc(large, 96 * MIB);
        large[95 * MIB] = 1;
        char *run = calloc(3, MIB);
        run = realloc(run, 9 * MIB);
        malloc_trim(0);
        free(large);
        free(run);
        free(aligned_alloc(1 << 16, 1 << 20));
        (void)mallinfo2();
        (void)malloc_usable_size(blocks[round]);
        for (int i = round; i < BLOCKS; i += 9) free(blocks[i]);
        for (unsigned i = 0; i < 20000; i++) free(malloc(i * 37 % 100000));
    }
}

int main(void) {
    if (!trap_calls()) return SKIPPED;
    work();
    char *proof = malloc(1);
    bool is_ours = hak_owns != NULL && hak_owns(proof);
    unsigned seen[MOST_CALLS], failed = 0;
    memcpy(seen, counts, sizeof seen);
    for (int call = 0; call < MOST_CALLS; call++) {
        bool is_allowed = false;
        for (size_t i = 0; i < COUNT_OF(allowed); i++) is_allowed = is_allowed || allowed[i] == call;
        if (seen[call] != 0)
            printf("system call %d: %u times%s\n", call, seen[call], is_allowed ? "" : ", NOT ALLOWED");
        failed += seen[call] != 0 && !is_allowed;
    }
    if (!is_ours) puts("malloc is not hakmem's");
    if (seen[SYS_mmap] == 0) puts("nothing was counted");
    fflush(stdout);
    _exit(failed != 0 || !is_ours || seen[SYS_mmap] == 0);
}
