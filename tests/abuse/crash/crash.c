/* Programs that crash under HAKMEM_CRASH=1: what the report says, that there is one, and that the program ends as it would have
 * without it. The victims write on stdout the address that they are about to access, and die of it. */
#include <malloc.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "churn.h"

enum { HANDLED = 42 };

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* ---- Expectations --------------------------------------------------------------------------------------------------- */

static unsigned count_of(const char *text, const char *word) {
    unsigned count = 0;
    for (; (text = strstr(text, word)) != NULL; text += strlen(word)) count++;
    return count;
}

/* A victim that died of the signal, after one report that begins with the signal's name. */
static struct case_end expect_report(const char *argument, int signal, const char *name) {
    char start[64];
    struct case_end end = case_watch(argument);
    snprintf(start, sizeof start, "hakmem: %s", name);
    expect(end.status != -1, "%s: it hung; it said: %s", argument, end.error);
    expect(WIFSIGNALED(end.status) && WTERMSIG(end.status) == signal, "%s: wait status %#x; it said: %s", argument,
           (unsigned)end.status, end.error);
    expect(count_of(end.error, start) == 1, "%s: not one report: %s", argument, end.error);
    expect(strstr(end.error, "hakmem: stack, innermost first"), "%s: no stack: %s", argument, end.error);
    return end;
}

static void expect_says(const struct case_end *end, const char *words) {
    expect(strstr(end->error, words), "it does not say \"%s\": %s", words, end->error);
}

/* The line about the address that the victim announced. */
static void expect_address(const struct case_end *end, const char *words) {
    char line[256];
    snprintf(line, sizeof line, "hakmem: %.*s is %s", (int)strcspn(end->output, "\n"), end->output, words);
    expect_says(end, line);
}

static void access_at(const volatile void *address) {
    case_print(1, "%#lx", (unsigned long)(uintptr_t)address);
    *(volatile char *)(uintptr_t)address = 1;
}

/* ---- Where it crashes ----------------------------------------------------------------------------------------------- */

static void forbid(void *block, size_t bytes) {
    uintptr_t start = (uintptr_t)block & -page_bytes(),
              end = ((uintptr_t)block + bytes + page_bytes() - 1) & -page_bytes();
    expect(mprotect((void *)start, end - start, PROT_NONE) == 0, "mprotect: errno %d", errno);
}

/* Where the writable mapping next below this address ends that does not reach as far: below the heap, its tables. */
static uintptr_t end_of_mapping_below(const void *address) {
    static char line[4096];
    unsigned long start, end, found = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, file) != NULL)
        if (strstr(line, " rw-p ") && sscanf(line, "%lx-%lx", &start, &end) == 2 && end <= (uintptr_t)address)
            found = end;
    fclose(file);
    return found;
}

/* An access that fails, with `pointer` in a register. */
static void access_beside(const void *pointer) {
#ifdef __x86_64__
    __asm__ volatile("movb $1, (%1)" : : "r"(pointer), "r"((void *)16) : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("strb wzr, [%1]" : : "r"(pointer), "r"((void *)16) : "memory");
#else
    _exit(CASE_SKIPPED);
#endif
}

__attribute__((noinline)) static char *allocate_here(size_t size) {
    char *block = malloc(size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

/* Announces the block, and the function that has allocated it. */
static void victim_origin(const char *which) {
    char *block = allocate_here(60);
    if (hidden(malloc(60)) == NULL) return; /* the slab stays */
    case_print(1, "%#lx %#lx", (unsigned long)(uintptr_t)block, (unsigned long)(uintptr_t)allocate_here);
    if (!strcmp(which, "origin-freed")) free(hidden(block));
    if (!strcmp(which, "origin-moved")) free(hidden(realloc(hidden(block), 40 << 20)));
    access_beside(block + 8);
}

static void victim_place(const char *place) {
    enum { SIZE = 64, LARGE = 100000, HUGE_SIZE = 40 << 20 };
    static const char constant[] = "constant";
    char *small = hidden(malloc(SIZE)), *large = hidden(malloc(LARGE)), *huge = hidden(malloc(HUGE_SIZE));
    if (!strcmp(place, "null")) access_at((void *)16);
    if (!strcmp(place, "live")) {
        forbid(small, SIZE);
        access_at(small + 16);
    }
    if (!strcmp(place, "cached")) {
        free(small);
        forbid(small, SIZE);
        access_at(small + 16);
    }
    if (!strcmp(place, "freed")) {
        char *others[1000];
        for (int i = 0; i < 1000; i++) others[i] = malloc(SIZE);
        free(small);
        for (int i = 1; i < 1000; i += 2) free(others[i]);
        forbid(small, SIZE);
        malloc_trim(0);
        access_at(small + 16);
    }
    if (!strcmp(place, "alone")) {
        free(small);
        malloc_trim(0);
        forbid(small, SIZE);
        access_at(small + 16);
    }
    if (!strcmp(place, "large")) {
        forbid(large, LARGE);
        access_at(large + 70000);
    }
    if (!strcmp(place, "large-freed")) {
        free(large);
        forbid(large, LARGE);
        access_at(large + 70000);
    }
    if (!strcmp(place, "kept")) {
        mallopt(M_TRIM_THRESHOLD, -1); /* it may stay */
        mallopt(M_MMAP_MAX, 0);
        free(huge);
        forbid(huge, HUGE_SIZE);
        access_at(huge + 70000);
    }
    if (!strcmp(place, "unmapped")) {
        free(huge);
        malloc_trim(0);
        access_at(huge + 70000);
    }
    if (!strcmp(place, "tables")) {
        /* Below the page map, which has a page, and without which nothing is found: the bits of a slab that there isn't yet. */
        uintptr_t page_map = end_of_mapping_below(small) - page_bytes();
        char *last = (char *)end_of_mapping_below((void *)page_map) - 1;
        forbid(last, 1);
        access_at(last);
    }
    if (!strcmp(place, "constant")) access_at(constant);
    if (!strcmp(place, "beside")) {
        case_print(1, "%#lx", (unsigned long)(uintptr_t)small);
        free(small);
        access_beside(small + 8);
    }
}

static void run_places(void) {
    static const struct {
        const char *place, *words;
    } cases[] = {
        {"null", "not hakmem's, and not mapped\n"},
        {"live", "16 bytes into a live block of 64 bytes at 0x"},
        {"cached", "16 bytes into a free block of 64 bytes at 0x"},
        {"freed", "16 bytes into a free block of 64 bytes at 0x"},
        {"alone", "free memory of the heap, in no block; 16 bytes into a former block of 64 bytes at 0x"},
        {"large", "70000 bytes into a live large block of "},
        {"large-freed", "free memory of the heap, in no block"},
        {"kept", "70000 bytes into a free large block of 41943040 bytes at 0x"},
        {"unmapped", "not hakmem's, and not mapped\n"},
        {"tables", "in hakmem's tables\n"},
        {"constant", "not hakmem's: r"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct case_end end = expect_report(cases[i].place, SIGSEGV, "SIGSEGV at 0x");
        expect_address(&end, cases[i].words);
        if (!strcmp(cases[i].place, "cached")) expect_says(&end, ", in the cache of heap ");
    }
}

/* ---- How it crashes ------------------------------------------------------------------------------------------------- */

static volatile unsigned deepest = UINT32_MAX;

__attribute__((noinline)) static unsigned overflow_stack(unsigned depth) {
    volatile char room[512];
    room[0] = (char)depth;
    if (depth == deepest) return 0;
    unsigned below = overflow_stack(depth + 1);
    return below + (unsigned)room[0];
}

static void *overflow_in_thread(void *nothing) {
    free(hidden(malloc(10)));
    overflow_stack(0);
    return nothing;
}

static void crash_on_signal(int signal) {
    (void)signal;
    access_at((void *)16);
}

static pthread_barrier_t barrier;

static void *crash_together(void *nothing) {
    free(hidden(malloc(10)));
    pthread_barrier_wait(&barrier);
    *(volatile char *)16 = 1;
    return nothing;
}

/* A signal from a timer, somewhere in malloc or free. */
static void crash_in_allocator(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGSEGV};
    struct itimerspec once = {{0, 0}, {0, 3000000}};
    timer_t timer;
    struct churn churn;
    churn_start(&churn, (uintptr_t)getpid(), 64 << 10);
    expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "no timer");
    timer_settime(timer, 0, &once, NULL);
    for (;;) churn_steps(&churn, 100);
}

static void truncated_file(void) {
    int file = memfd_create("file", MFD_CLOEXEC);
    expect(file >= 0 && ftruncate(file, (off_t)page_bytes()) == 0, "no file");
    char *start = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    expect(start != MAP_FAILED && ftruncate(file, 0) == 0, "no mapping");
    access_at(start);
}

static void crash_in_child(void) {
    pid_t child = fork();
    if (child == 0) {
        case_print(1, "%d", (int)getpid());
        access_at((void *)16);
    }
    int status = case_await(child, 10);
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the child's wait status is %#x", (unsigned)status);
    exit(HANDLED);
}

/* The handler's own memory can't be accessed: the library's variables without a value of their own. */
static void crash_in_report(void) {
    static char line[4096];
    FILE *file = fopen("/proc/self/maps", "re");
    unsigned long start = 0, end = 0, last_end = 0;
    bool is_ours = false;
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) != 2) break;
        if (is_ours && from == last_end && !strchr(line, '/')) start = from, end = to;
        is_ours = strstr(line, "libhakmem") != NULL;
        last_end = to;
    }
    expect(start != 0, "no variables of the library were found");
    case_print(1, "%#lx", start);
    mprotect((void *)start, end - start, PROT_NONE);
    *(volatile char *)16 = 1;
}

#ifdef __x86_64__
static void lose_stack(void) { __asm__ volatile("mov $4096, %%rsp\n\tpush %%rax" ::: "memory"); }
static void follow_nonsense(void) { *(volatile char *)hidden((void *)0x8000000000000000) = 1; }
#else
static void lose_stack(void) { _exit(CASE_SKIPPED); }
static void follow_nonsense(void) { _exit(CASE_SKIPPED); }
#endif

static void victim_way(const char *way) {
    pthread_t threads[8];
    if (!strcmp(way, "overflow")) overflow_stack(0);
    if (!strcmp(way, "overflow-thread")) {
        pthread_create(&threads[0], NULL, overflow_in_thread, NULL);
        pthread_join(threads[0], NULL);
    }
    if (!strcmp(way, "handler")) {
        struct sigaction action = {.sa_handler = crash_on_signal};
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    }
    if (!strcmp(way, "together")) {
        pthread_barrier_init(&barrier, NULL, 8);
        for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, crash_together, NULL);
        pthread_join(threads[0], NULL);
    }
    if (!strcmp(way, "allocator")) crash_in_allocator();
    if (!strcmp(way, "bus")) truncated_file();
    if (!strcmp(way, "abort")) abort();
    if (!strcmp(way, "raise")) raise(SIGSEGV);
    if (!strcmp(way, "killed")) {
        pid_t child = fork();
        if (child == 0) {
            case_print(1, "%d", (int)getpid());
            kill(getppid(), SIGBUS);
            _exit(0);
        }
        for (;;) pause();
    }
    if (!strcmp(way, "misuse")) {
        char *block = malloc(64);
        free(hidden(block));
        free(hidden(block));
    }
    if (!strcmp(way, "child")) crash_in_child();
    if (!strcmp(way, "report")) crash_in_report();
    if (!strcmp(way, "stack")) lose_stack();
    if (!strcmp(way, "nonsense")) follow_nonsense();
    if (!strcmp(way, "name")) {
        prctl(PR_SET_NAME, "r\033[31m\r\177\303\251d");
        access_at((void *)16);
    }
    if (!strcmp(way, "closed")) {
        close(2);
        access_at((void *)16);
    }
}

static void run_overflow(void) {
    struct case_end end = expect_report("overflow", SIGSEGV, "SIGSEGV at 0x");
    expect_says(&end, "the stack has overflowed\n");
    end = expect_report("overflow-thread", SIGSEGV, "SIGSEGV at 0x");
    expect_says(&end, "the stack has overflowed\n");
}

/* What was freed too early had another address in it, which fails: the register that led there tells more. */
static void run_beside(void) {
    char words[128];
    struct case_end end = expect_report("beside", SIGSEGV, "SIGSEGV at 0x10 ");
    snprintf(words, sizeof words, ", 8 bytes into a free block of 64 bytes at %.*s, in the cache of heap ",
             (int)strcspn(end.output, "\n"), end.output);
    expect_says(&end, words);
}

/* What the report says of where the announced block was allocated: `words`, and then frames, the first of the announced function. */
static void expect_origin(const char *argument, const char *words) {
    unsigned long block, function, frame;
    char line[128];
    struct case_end end = expect_report(argument, SIGSEGV, "SIGSEGV at 0x10 ");
    expect(sscanf(end.output, "%lx %lx", &block, &function) == 2, "it announced %s", end.output);
    snprintf(line, sizeof line, "hakmem: %#lx was %s, 60 bytes, from:\nhakmem:     ", block, words);
    const char *found = strstr(end.error, line);
    expect(found != NULL, "it does not say \"%s\": %s", line, end.error);
    expect(sscanf(found + strlen(line), "%lx", &frame) == 1 && frame > function && frame < function + 200,
           "%#lx is not in the function at %#lx: %s", frame, function, end.error);
    const char *next = strchr(found + strlen(line), '\n');
    expect(strstr(next, "abuse_crash+0x"), "one frame only: %s", end.error);
}

static void run_origin(void) {
    expect_origin("origin", "allocated");
    expect_origin("origin-freed", "allocated and freed");
    expect_origin("origin-moved", "allocated and freed");
}

/* What moves a terminal's cursor is not passed on; what is text in whatever language is. */
static void run_names(void) {
    struct case_end end = expect_report("name", SIGSEGV, "SIGSEGV at 0x10 ");
    expect_says(&end, " (r?[31m??\303\251d) ");
}

static void run_handler(void) { expect_report("handler", SIGSEGV, "SIGSEGV at 0x10 "); }

static void run_together(void) {
    for (int i = 0; i < 20; i++) {
        struct case_end end = expect_report("together", SIGSEGV, "SIGSEGV at 0x10 ");
        expect(count_of(end.error, "hakmem: SIG") == 1, "more than one report: %s", end.error);
    }
}

static void run_allocator(void) {
    for (int i = 0; i < 20; i++) expect_report("allocator", SIGSEGV, "SIGSEGV ");
}

static void run_signals(void) {
    char sender[64];
    struct case_end end = expect_report("bus", SIGBUS, "SIGBUS at 0x");
    expect_address(&end, "not hakmem's: rw-s /memfd:file");
    end = expect_report("abort", SIGABRT, "SIGABRT in thread ");
    expect(count_of(end.error, " is ") == 0, "it speaks of an address: %s", end.error);
    expect_report("raise", SIGSEGV, "SIGSEGV in thread ");
    end = expect_report("killed", SIGBUS, "SIGBUS from process ");
    snprintf(sender, sizeof sender, "from process %.*s in thread ", (int)strcspn(end.output, "\n"), end.output);
    expect_says(&end, sender);
}

/* The message about misuse stands first, alone, and once. */
static void run_misuse(void) {
    struct case_end end = expect_report("misuse", SIGABRT, "SIGABRT in thread ");
    expect(strncmp(end.error, "hakmem: free(0x", 15) == 0, "it said: %s", end.error);
    expect(count_of(end.error, "double free") == 1, "it said: %s", end.error);
    expect_says(&end, " is the start of a free block of 64 bytes, in the cache of heap ");
}

static void run_child(void) {
    char process[64];
    struct case_end end = case_watch("child");
    expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == HANDLED, "wait status %#x; it said: %s",
           (unsigned)end.status, end.error);
    expect(count_of(end.error, "hakmem: SIGSEGV at 0x10 ") == 1, "it said: %s", end.error);
    snprintf(process, sizeof process, " of process %.*s\n", (int)strcspn(end.output, "\n"), end.output);
    expect_says(&end, process);
}

static void run_report(void) {
    struct case_end end = case_watch("report");
    expect(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV, "wait status %#x; it said: %s",
           (unsigned)end.status, end.error);
    expect(strstr(end.error, "stack, innermost") == NULL, "the report was possible: %s", end.error);
}

static void run_broken_stack(void) {
    struct case_end end = case_watch("stack");
    if (WIFEXITED(end.status) && WEXITSTATUS(end.status) == CASE_SKIPPED) skip("for x86-64 only");
    end = expect_report("stack", SIGSEGV, "SIGSEGV at 0xff8 ");
    expect_says(&end, "the stack has overflowed\n");
    expect_report("nonsense", SIGSEGV, "SIGSEGV at an address that no memory can have in thread ");
}

static void run_closed(void) {
    struct case_end end = case_watch("closed");
    expect(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV, "wait status %#x", (unsigned)end.status);
    expect(end.error[0] == '\0', "it said: %s", end.error);
}

/* The innermost frames are this program's, and known for certain. */
static void run_stack(void) {
    struct case_end end = expect_report("overflow", SIGSEGV, "SIGSEGV at 0x");
    const char *stack = strstr(end.error, "innermost first");
    for (int i = 0; i < 5; i++) {
        stack = strchr(stack, '\n') + 1;
        char line[256] = "";
        strncat(line, stack, strcspn(stack, "\n") < 255 ? strcspn(stack, "\n") : 255);
        expect(strncmp(line, "hakmem:     0x", 14) == 0 && strstr(line, "abuse_crash+0x"), "frame %d: %s", i, line);
    }
}

/* ---- Handlers of the program ---------------------------------------------------------------------------------------- */

static sigjmp_buf recovery;

static void handle(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    case_print(1, "handled %#lx", (unsigned long)(uintptr_t)info->si_addr);
    _exit(HANDLED);
}

/* As Java's: what was there before is called, and what returns has handled it. */
static struct sigaction before_chain;
static void chain(int number, siginfo_t *info, void *context) {
    if (before_chain.sa_handler != SIG_DFL) before_chain.sa_sigaction(number, info, context);
    else handle(number, info, context);
}

static void recover(int number) { siglongjmp(recovery, number); }

/* Runs before any library's constructor, and so before hakmem's. */
static void before_all(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    if (argc != 3 || strcmp(argv[1], "handlers") != 0) return;
    if (!strcmp(argv[2], "before")) sigaction(SIGSEGV, &action, NULL);
    action = (struct sigaction){.sa_handler = recover};
    if (!strcmp(argv[2], "recover")) sigaction(SIGSEGV, &action, NULL);
    action = (struct sigaction){.sa_handler = SIG_IGN};
    if (!strcmp(argv[2], "ignored")) sigaction(SIGABRT, &action, NULL);
}
__attribute__((section(".preinit_array"), used)) static void (*const start)(int, char **) = before_all;

static void victim_handlers(const char *argument) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO}, ours;
    if (!strcmp(argument, "before")) access_at((void *)16);
    if (!strcmp(argument, "after")) {
        sigaction(SIGSEGV, &action, NULL);
        access_at((void *)16);
    }
    if (!strcmp(argument, "chain")) {
        action.sa_sigaction = chain;
        sigaction(SIGSEGV, &action, &before_chain);
        access_at((void *)16);
    }
    if (!strcmp(argument, "called")) { /* as crash reporters do with what was there before */
        sigaction(SIGSEGV, NULL, &ours);
        siginfo_t info = {.si_signo = SIGSEGV, .si_code = SEGV_MAPERR};
        ucontext_t context;
        memset(&context, 0, sizeof context);
        ours.sa_sigaction(SIGSEGV, &info, &context);
        access_at((void *)16);
    }
    if (!strcmp(argument, "recover")) {
        volatile int times = 0;
        sigsetjmp(recovery, 1);
        if (times++ < 3) access_at((void *)16);
        exit(HANDLED);
    }
    if (!strcmp(argument, "ignored")) {
        raise(SIGABRT);
        exit(HANDLED);
    }
    if (!strcmp(argument, "own-stack")) { /* a thread that has an alternate stack keeps it */
        static char room[1 << 16];
        stack_t own = {.ss_sp = room, .ss_size = sizeof room}, found;
        sigaltstack(&own, NULL);
        free(hidden(malloc(10)));
        sigaltstack(NULL, &found);
        exit(found.ss_sp == room ? HANDLED : 1);
    }
}

static void expect_handled(const char *argument, const char *said, unsigned reports) {
    struct case_end end = case_watch(argument);
    expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == HANDLED, "%s: wait status %#x; it said: %s%s", argument,
           (unsigned)end.status, end.output, end.error);
    expect(strstr(end.output, said), "%s: it said: %s", argument, end.output);
    expect(count_of(end.error, "hakmem: SIG") == reports, "%s: not %u reports: %s", argument, reports, end.error);
    expect(reports > 0 || end.error[0] == '\0', "%s: it said: %s", argument, end.error);
}

static void run_handlers(void) {
    expect_handled("before", "handled 0x10\n", 1);
    expect_handled("after", "handled 0x10\n", 0);
    expect_handled("recover", "0x10\n", 1);
    expect_handled("ignored", "", 0);
    expect_handled("own-stack", "", 0);
    expect_report("called", SIGSEGV, "SIGSEGV ");
    struct case_end end = expect_report("chain", SIGSEGV, "SIGSEGV at 0x10 ");
    expect(!strstr(end.output, "handled"), "the program has reported it as well: %s", end.output);
}

/* ---- Without the setting --------------------------------------------------------------------------------------------- */

static void run_off(void) {
    static const struct {
        const char *way;
        int signal;
    } cases[] = {{"overflow", SIGSEGV}, {"overflow-thread", SIGSEGV}, {"abort", SIGABRT}, {"bus", SIGBUS}};
    unsetenv("HAKMEM_CRASH");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct case_end end = case_watch(cases[i].way);
        expect(WIFSIGNALED(end.status) && WTERMSIG(end.status) == cases[i].signal, "wait status %#x",
               (unsigned)end.status);
        expect(end.error[0] == '\0', "%s: it said: %s", cases[i].way, end.error);
    }
}

/* ---- Threads that come and go ---------------------------------------------------------------------------------------- */

static void *use_heap(void *nothing) {
    free(hidden(malloc(100)));
    return nothing;
}

static unsigned count_mappings(void) {
    static char line[4096];
    unsigned count = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, file) != NULL) count++;
    fclose(file);
    return count;
}

/* Alternate stacks are used again: their number does not grow with that of the threads. */
static void run_threads(void) {
    unsigned before = 0;
    for (int i = 0; i < 500; i++) {
        pthread_t thread;
        expect(pthread_create(&thread, NULL, use_heap, NULL) == 0, "no thread");
        pthread_join(thread, NULL);
        if (i == 20) before = count_mappings();
    }
    unsigned after = count_mappings();
    expect(after < before + 10, "%u mappings became %u", before, after);
}

#define CASE(name_, run_, victim_)                                                                                     \
    { .name = name_, .run = run_, .seconds = 120, .memory_mib = 1024, .victim = victim_ }

static const struct hak_case cases[] = {
    CASE("places", run_places, victim_place),
    CASE("beside", run_beside, victim_place),
    CASE("origin", run_origin, victim_origin),
    CASE("overflow", run_overflow, victim_way),
    CASE("names", run_names, victim_way),
    CASE("handler", run_handler, victim_way),
    CASE("together", run_together, victim_way),
    CASE("allocator", run_allocator, victim_way),
    CASE("signals", run_signals, victim_way),
    CASE("misuse", run_misuse, victim_way),
    CASE("child", run_child, victim_way),
    CASE("report", run_report, victim_way),
    CASE("broken-stack", run_broken_stack, victim_way),
    CASE("closed", run_closed, victim_way),
    CASE("stack", run_stack, victim_way),
    CASE("handlers", run_handlers, victim_handlers),
    CASE("off", run_off, victim_way),
    CASE("threads", run_threads, NULL),
};

CASE_MAIN(cases)
