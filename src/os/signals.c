#include "os/signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/bits.h"
#include "os/inspect.h"
#include "os/kernel.h"
#include "os/os.h"

/* Constants newer than the oldest headers hakmem builds with. */
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif
#ifndef BUS_MCEERR_AO
#define BUS_MCEERR_AO 5
#endif
#ifndef SI_KERNEL
#define SI_KERNEL 0x80
#endif

/* ---- What the processor was doing -------------------------------------------------------------------------------- */

#if defined(__x86_64__)

static const struct {
    const char *name;
    int place;
} register_table[] = {{"rax", REG_RAX}, {"rbx", REG_RBX}, {"rcx", REG_RCX}, {"rdx", REG_RDX}, {"rsi", REG_RSI},
                      {"rdi", REG_RDI}, {"rbp", REG_RBP}, {"r8", REG_R8},   {"r9", REG_R9},   {"r10", REG_R10},
                      {"r11", REG_R11}, {"r12", REG_R12}, {"r13", REG_R13}, {"r14", REG_R14}, {"r15", REG_R15}};

enum { REGISTER_COUNT = sizeof register_table / sizeof register_table[0], CALL_BYTES = 7 };

static const char *register_name(uint32_t index) { return register_table[index].name; }
static uintptr_t register_value(const ucontext_t *context, uint32_t index) {
    return (uintptr_t)context->uc_mcontext.gregs[register_table[index].place];
}
static void read_pointers(const ucontext_t *context, struct hak_os_signal *arrived) {
    arrived->instruction = (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
    arrived->stack = (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
    arrived->frame = (uintptr_t)context->uc_mcontext.gregs[REG_RBP];
}

uintptr_t hak_os_strip_address(uintptr_t address) { return address; }

/* The last bytes of a call: E8 and 32 bits; or FF, a byte whose middle is 2, and what its addressing needs. */
static bool ends_in_call(const unsigned char *bytes) {
    static const uint32_t indirect_bytes[] = {2, 3, 4, 6, 7};
    if (bytes[CALL_BYTES - 5] == 0xe8) return true;
    for (uint32_t i = 0; i < sizeof indirect_bytes / sizeof indirect_bytes[0]; i++) {
        const unsigned char *at = bytes + CALL_BYTES - indirect_bytes[i];
        if (at[0] == 0xff && (at[1] & 0x38) == 0x10) return true;
    }
    return false;
}

#elif defined(__aarch64__)

enum { REGISTER_COUNT = 31, CALL_BYTES = 4 };

static const char *register_name(uint32_t index) {
    static const char names[] = "x0\0 x1\0 x2\0 x3\0 x4\0 x5\0 x6\0 x7\0 x8\0 x9\0 x10\0x11\0x12\0x13\0x14\0x15\0x16\0"
                                "x17\0x18\0x19\0x20\0x21\0x22\0x23\0x24\0x25\0x26\0x27\0x28\0x29\0x30";
    return &names[index * 4];
}
static uintptr_t register_value(const ucontext_t *context, uint32_t index) {
    return (uintptr_t)context->uc_mcontext.regs[index];
}
static void read_pointers(const ucontext_t *context, struct hak_os_signal *arrived) {
    arrived->instruction = (uintptr_t)context->uc_mcontext.pc;
    arrived->stack = (uintptr_t)context->uc_mcontext.sp;
    arrived->frame = (uintptr_t)context->uc_mcontext.regs[29];
}

/* Programs use 48 bits of an address, the signature is above. */
uintptr_t hak_os_strip_address(uintptr_t address) { return address & (((uintptr_t)1 << 48) - 1); }

/* BL, BLR, BLRAA and their kin. */
static bool ends_in_call(const unsigned char *bytes) {
    uint32_t instruction;
    memcpy(&instruction, bytes, sizeof instruction);
    return (instruction & 0xfc000000) == 0x94000000 || (instruction & 0xfffffc1f) == 0xd63f0000 ||
           (instruction & 0xfefff800) == 0xd63f0800;
}

#else

enum { REGISTER_COUNT = 0, CALL_BYTES = 1 };

static const char *register_name(uint32_t index) { return (void)index, ""; }
static uintptr_t register_value(const ucontext_t *context, uint32_t index) { return (void)context, index; }
static void read_pointers(const ucontext_t *context, struct hak_os_signal *arrived) { (void)context, (void)arrived; }
uintptr_t hak_os_strip_address(uintptr_t address) { return address; }
static bool ends_in_call(const unsigned char *bytes) { return (void)bytes, true; }

#endif

bool hak_os_register(const struct hak_os_signal *arrived, uint32_t index, const char **name, uintptr_t *value) {
    if (index >= REGISTER_COUNT) return false;
    *name = register_name(index);
    *value = register_value(arrived->context, index);
    return true;
}

bool hak_os_follows_call(uintptr_t address) {
    unsigned char bytes[CALL_BYTES];
    return hak_os_read_memory(address - CALL_BYTES, bytes, sizeof bytes) && ends_in_call(bytes);
}

/* ---- Crashes ----------------------------------------------------------------------------------------------------- */

enum { CRASH_SIGNALS = 3 };

static const struct {
    const char *name;
    int number;
} crash_table[CRASH_SIGNALS] = {{"SIGSEGV", SIGSEGV}, {"SIGBUS", SIGBUS}, {"SIGABRT", SIGABRT}};

static struct sigaction actions_before[CRASH_SIGNALS];
static bool (*report_crash)(const struct hak_os_signal *arrived);

static uint32_t crash_index(int number) {
    uint32_t index = 0;
    while (index < CRASH_SIGNALS - 1 && crash_table[index].number != number) index++;
    return index;
}

static struct hak_os_signal tell_signal(int number, const siginfo_t *info, const void *context) {
    struct hak_os_signal arrived = {.name = crash_table[crash_index(number)].name, .context = context};
    if (info->si_code <= 0) {
        arrived.cause = HAK_SIGNAL_SENT;
        arrived.sender = info->si_pid;
    } else if (info->si_code == SI_KERNEL) {
        arrived.cause = HAK_SIGNAL_NOWHERE;
    } else {
        arrived.cause = HAK_SIGNAL_ACCESS;
        arrived.address = (uintptr_t)info->si_addr;
    }
    read_pointers(context, &arrived);
    return arrived;
}

/* True when the instruction that caused the signal causes it again. Of what the kernel sends by itself, that's not
 * known. */
static bool comes_by_itself(int number, const siginfo_t *info) {
    bool is_late = number == SIGBUS && info->si_code == BUS_MCEERR_AO; /* broken memory that nobody has accessed */
    return info->si_code > 0 && info->si_code != SI_KERNEL && !is_late;
}

static bool is_handler(const struct sigaction *action) {
    return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

/* Calls the program's handler as the kernel would have. False when there is none. */
static bool hand_on(int number, siginfo_t *info, void *context) {
    struct sigaction *before = &actions_before[crash_index(number)], action = *before;
    if (!is_handler(&action)) return false;
    if ((action.sa_flags & SA_RESETHAND) != 0) before->sa_handler = SIG_DFL;
    sigset_t mask = ((const ucontext_t *)context)->uc_sigmask;
    for (int other = 1; other < NSIG; other++)
        if (sigismember(&action.sa_mask, other) == 1) sigaddset(&mask, other);
    if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, number);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if ((action.sa_flags & SA_SIGINFO) != 0) action.sa_sigaction(number, info, context);
    else action.sa_handler(number);
    return true;
}

static HAK_COLD void on_crash(int number, siginfo_t *info, void *context) {
    int saved_errno = errno;
    struct hak_os_signal arrived = tell_signal(number, info, context);
    bool is_reported = report_crash(&arrived);
    errno = saved_errno;
    if (!is_reported && hand_on(number, info, context)) return;
    sigaction(number, &actions_before[crash_index(number)], NULL);
    if (!comes_by_itself(number, info) &&
        HAK_SYSTEM_CALL(SYS_rt_tgsigqueueinfo, getpid(), (int)hak_os_thread_id(), number, info) != 0)
        raise(number);
    errno = saved_errno;
}

void hak_os_catch_crashes(bool (*report)(const struct hak_os_signal *arrived)) {
    int saved_errno = errno;
    report_crash = report;
    struct sigaction action = {.sa_sigaction = on_crash};
    sigfillset(&action.sa_mask); /* G2 */
    for (uint32_t i = 0; i < CRASH_SIGNALS; i++) {
        struct sigaction *before = &actions_before[i];
        if (sigaction(crash_table[i].number, NULL, before) != 0 || before->sa_handler == SIG_IGN) continue;
        action.sa_flags = SA_SIGINFO | ((SA_ONSTACK | SA_RESTART) & (is_handler(before) ? before->sa_flags : ~0));
        sigaction(crash_table[i].number, &action, NULL);
    }
    errno = saved_errno;
}

/* ---- A signal for something to be done --------------------------------------------------------------------------- */

static void (*act_on_signal)(void);

static void on_signal(int number) {
    int saved_errno = errno;
    (void)number;
    act_on_signal();
    errno = saved_errno;
}

bool hak_os_on_signal(int number, void (*act)(void)) {
    int saved_errno = errno;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    act_on_signal = act;
    bool done =
        sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_DFL && sigaction(number, &action, NULL) == 0;
    errno = saved_errno;
    return done;
}

/* ---- Alternate stacks -------------------------------------------------------------------------------------------- */

/* For a handler of the program's, too: one that wants an alternate stack, and had none in this thread. */
static size_t signal_stack_bytes(void) {
    return hak_align_up((48 << 10) + getauxval(AT_MINSIGSTKSZ), hak_os_page_bytes());
}

void *hak_os_make_signal_stack(void) {
    size_t page = hak_os_page_bytes(), bytes = signal_stack_bytes();
    char *start = hak_os_reserve(page + bytes, page);
    if (start == NULL) return NULL;
    if (hak_os_commit(start + page, bytes)) return start + page;
    hak_os_unmap(start, page + bytes);
    return NULL;
}

void hak_os_set_signal_stack(void *stack) {
    int saved_errno = errno;
    stack_t ours = {.ss_sp = stack, .ss_size = signal_stack_bytes()}, before;
    if (sigaltstack(NULL, &before) == 0 && (before.ss_flags & SS_DISABLE) != 0) sigaltstack(&ours, NULL);
    errno = saved_errno;
}

void hak_os_unset_signal_stack(const void *stack) {
    int saved_errno = errno;
    stack_t none = {.ss_flags = SS_DISABLE}, before;
    if (sigaltstack(NULL, &before) == 0 && before.ss_sp == stack) sigaltstack(&none, NULL);
    errno = saved_errno;
}
