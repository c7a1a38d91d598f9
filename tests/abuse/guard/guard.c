/* Programs under HAKMEM_GUARD that misuse a block between guards: each dies at the instruction that does it, and the
 * report says of which block, and where it was allocated and freed. And programs that do nothing wrong: they notice
 * nothing of it. A block is known to be between guards by the pages on both sides of its own: no call can read them. */
#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "case.h"

enum { SIZE = 100, PAD = 112, HANDLED = 42, TRIES = 10000 };

/* Asks hakmem's service in this process, as `hakmem ctl` does from outside, and writes its answer's first bytes to
 * `answer`. */
static bool ask(const char *thread, const char *request, char *answer, size_t bytes) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", thread);
    int file = open(path, O_RDONLY);
    bool is_it = file >= 0 && read(file, name, sizeof name - 1) > 0 && !strcmp(name, "hakmem-ctl\n");
    close(file);
    if (!is_it) return false;
    snprintf(path, sizeof path, "/proc/self/task/%s/fd/11", thread); /* HAK_CHANNEL_REQUEST_WRITE */
    int to = open(path, O_WRONLY);
    snprintf(path, sizeof path, "/proc/self/task/%s/fd/12", thread);
    int from = open(path, O_RDONLY);
    dprintf(to, "x 0 %s\n", request);
    ssize_t length = read(from, answer, bytes - 1);
    answer[length < 0 ? 0 : length] = '\0';
    close(to);
    close(from);
    return !strncmp(answer, "x ok", 4);
}

static void case_ask(const char *request) {
    char answer[64];
    for (int i = 0; i < 30000; i++) { /* the service begins with hakmem's thread */
        DIR *threads = opendir("/proc/self/task");
        bool is_done = false;
        for (struct dirent *one; !is_done && (one = readdir(threads)) != NULL;)
            is_done = ask(one->d_name, request, answer, sizeof answer);
        closedir(threads);
        if (is_done) return;
        case_sleep_us(10000);
    }
    expect(false, "no service");
}

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* The kernel reads a mask there before it looks at what is to be done with it. */
static bool is_readable(uintptr_t address) {
    enum { NOTHING = -1, MASK_BYTES = 8 };
    return syscall(SYS_rt_sigprocmask, NOTHING, address, NULL, MASK_BYTES) == 0 || errno != EFAULT;
}

static bool is_guarded(void *block, size_t size) {
    uintptr_t start = (uintptr_t)block, page = start - start % page_bytes(), end = start + ((size + 15) & ~(size_t)15);
    bool is_at_edge = start == page || end == page + page_bytes();
    return is_at_edge && !is_readable(page - 8) && !is_readable(page + page_bytes());
}
static bool is_at_end(const void *block) { return ((uintptr_t)block + PAD) % page_bytes() == 0; }
static bool is_at_start(const void *block) { return (uintptr_t)block % page_bytes() == 0; }

__attribute__((noinline)) static char *allocate_here(void) {
    char *block = malloc(SIZE);
    __asm__ volatile("" : "+r"(block));
    return block;
}

__attribute__((noinline)) static void free_here(void *block) {
    free(block);
    __asm__ volatile("" : : : "memory");
}

/* A block between guards, at the wanted end of its page. Others stay allocated: the cache runs empty again and again. */
static char *guarded_block(bool at_end) {
    for (int i = 0; i < TRIES; i++) {
        char *block = allocate_here();
        if (is_guarded(block, SIZE) && (at_end ? is_at_end(block) : is_at_start(block))) return block;
    }
    expect(false, "no block between guards in %d", TRIES);
    return NULL;
}

/* ---- Misuse --------------------------------------------------------------------------------------------------------- */

static void touch(const volatile char *address) {
    case_print(1, "%#lx", (unsigned long)(uintptr_t)address);
    (void)*address;
}

static void exit_handled(int signal) {
    (void)signal;
    _exit(HANDLED);
}

static void *free_elsewhere(void *block) {
    free_here(block);
    return NULL;
}

static void free_by_thread(void *block) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, free_elsewhere, block) == 0, "no thread");
    pthread_join(thread, NULL);
}

static void victim_misuse(const char *what) {
    bool at_end = strcmp(what, "underflow") != 0 && strcmp(what, "spoiled-far") != 0;
    if (!strcmp(what, "handler")) signal(SIGSEGV, exit_handled);
    char *block = guarded_block(at_end);
    if (!strcmp(what, "elsewhere")) touch((char *)16);
    if (!strcmp(what, "abort")) abort();
    if (!strcmp(what, "child") && fork() != 0) {
        int status;
        expect(wait(&status) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the child's status");
        return;
    }
    if (!strcmp(what, "overflow") || !strcmp(what, "handler")) touch(block + PAD + 5);
    if (!strcmp(what, "underflow")) touch(block - 3);
    if (!strncmp(what, "spoiled", 7)) {
        case_print(1, "%#lx", (unsigned long)(uintptr_t)block);
        *(volatile char *)(!strcmp(what, "spoiled-before") ? block - 7
                           : !strcmp(what, "spoiled-far")  ? block + SIZE + 60
                                                           : block + SIZE) = 1;
        free_here(block);
        return;
    }
    if (!strcmp(what, "by-thread")) free_by_thread(block);
    else free_here(block);
    case_print(1, "%#lx", (unsigned long)(uintptr_t)block);
    if (!strcmp(what, "double-free") || !strcmp(what, "by-thread")) free(hidden(block));
    if (!strcmp(what, "realloc")) free(hidden(realloc(hidden(block), 2 * SIZE)));
    if (!strcmp(what, "usable-size")) case_print(1, "%zu", malloc_usable_size(hidden(block)));
    if (!strcmp(what, "inside")) free(hidden(guarded_block(true) + 16));
    touch(block + 10);
}

static struct case_end expect_end(const char *argument, int signal) {
    struct case_end end = case_watch(argument);
    expect(end.status != -1, "%s: it hung; it said: %s", argument, end.error);
    expect(WIFSIGNALED(end.status) && WTERMSIG(end.status) == signal, "%s: wait status %#x; it said: %.800s", argument,
           (unsigned)end.status, end.error);
    return end;
}

static void expect_says(const struct case_end *end, const char *words) {
    expect(strstr(end->error, words), "it does not say \"%s\": %.800s", words, end->error);
}

/* Below the line that ends with `heading` stands an address within `function`, which is short. */
static void expect_frame(const struct case_end *end, const char *heading, const void *function) {
    enum { MOST_CODE_BYTES = 200 };
    const char *at = strstr(end->error, heading);
    expect(at, "it does not say \"%s\": %.800s", heading, end->error);
    for (int i = 0; i < 2; i++) {
        at = strchr(at, '\n') + 1;
        uintptr_t address = strtoul(at + sizeof "hakmem:    " - 1, NULL, 16), module_offset = 0;
        const char *offset = strstr(at, "+0x");
        if (offset != NULL) module_offset = strtoul(offset + 1, NULL, 16);
        Dl_info known;
        expect(dladdr(function, &known) != 0, "no module");
        uintptr_t wanted = (uintptr_t)function - (uintptr_t)known.dli_fbase;
        if (address != 0 && module_offset - wanted < MOST_CODE_BYTES) return;
    }
    expect(false, "%s is not from %p: %.1500s", heading, function, end->error);
}

static void run_faults(void) {
    struct case_end end = expect_end("overflow", SIGSEGV);
    expect_says(&end, " is 17 bytes behind the end of a live guarded block of 100 bytes at 0x");
    expect_says(&end, "\"error\": \"overflow\"");
    expect_frame(&end, " was allocated by thread ", (void *)(uintptr_t)allocate_here);
    expect(!strstr(end.error, " was freed "), "it was not: %.800s", end.error);
    end = expect_end("underflow", SIGSEGV);
    expect_says(&end, " is 3 bytes before a live guarded block of 100 bytes at 0x");
    expect_says(&end, "\"error\": \"underflow\"");
    end = expect_end("after-free", SIGSEGV);
    expect_says(&end, " is 10 bytes into a freed guarded block of 100 bytes at 0x");
    expect_says(&end, "\"error\": \"use-after-free\"");
    expect_frame(&end, " was allocated by thread ", (void *)(uintptr_t)allocate_here);
    expect_frame(&end, " was freed by thread ", (void *)(uintptr_t)free_here);
}

static void expect_complaint(const char *argument, const char *function, const char *words, const char *error) {
    char line[256];
    struct case_end end = expect_end(argument, SIGABRT);
    snprintf(line, sizeof line, "hakmem: %s(%.*s): %s\n", function, (int)strcspn(end.output, "\n"), end.output, words);
    if (function != NULL) expect_says(&end, line);
    snprintf(line, sizeof line, "\"error\": \"%s\"", error);
    expect_says(&end, line);
    expect_says(&end, " was allocated by thread ");
}

static void run_frees(void) {
    expect_complaint("double-free", "free", "double free of a block of 100 bytes", "double-free");
    expect_complaint("by-thread", "free", "double free of a block of 100 bytes", "double-free");
    expect_complaint("realloc", "realloc", "invalid pointer: a freed block of 100 bytes", "use-after-free");
    expect_complaint("usable-size", "malloc_usable_size", "invalid pointer: a freed block of 100 bytes",
                     "use-after-free");
    struct case_end end = expect_end("inside", SIGABRT);
    expect_says(&end, "invalid pointer: 16 bytes into a block of 100 bytes\n");
    expect_says(&end, "\"error\": \"invalid-free\"");
}

static void run_spoiled(void) {
    expect_complaint("spoiled", "free", "overflow: 0 bytes behind the end of a block of 100 bytes were written",
                     "overflow-found-late");
    expect_complaint("spoiled-far", "free", "overflow: 60 bytes behind the end of a block of 100 bytes were written",
                     "overflow-found-late");
    expect_complaint("spoiled-before", "free", "underflow: 7 bytes before a block of 100 bytes were written",
                     "underflow-found-late");
}

/* Ends a line of JSON, whose braces and brackets close. Returns what follows it. */
static char *expect_json(char *line) {
    char *line_end = strchr(line, '\n');
    expect(line_end != NULL, "no whole line: %s", line);
    *line_end = '\0';
    int depth = 0;
    bool in_string = false;
    for (const char *at = line; *at != '\0'; at++) {
        if (*at == '"') in_string = !in_string;
        else if (!in_string) depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        expect(depth > 0 || at[1] == '\0', "it closes too early: %s", line);
    }
    expect(depth == 0 && !in_string, "it does not close: %s", line);
    return line_end + 1;
}

/* One line, which has what a collector needs. */
static void run_json(void) {
    static const char *const keys[] = {"\"hakmem\": \"guard\"",
                                       "\"process\": ",
                                       "\"thread\": ",
                                       "\"address\": \"0x",
                                       "\"block\": \"0x",
                                       "\"size\": 100",
                                       "\"offset\": 10",
                                       "\"is_freed\": true",
                                       "\"stack\": [\"0x",
                                       "\"allocated\": {\"thread\": ",
                                       "\"freed\": {\"thread\": "};
    struct case_end end = expect_end("after-free", SIGSEGV);
    char *line = strstr(end.error, "{\"hakmem\"");
    expect(line != NULL && (line == end.error || line[-1] == '\n'), "no line of JSON: %.1500s", end.error);
    expect(*expect_json(line) == '\0', "it is not the last line");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) expect(strstr(line, keys[i]), "no %s in %s", keys[i], line);
}

/* Processes that share standard error, and fault at the same time. */
enum { TOGETHER = 3 };

static void victim_together(const char *nothing) {
    (void)nothing;
    int begin[2];
    char *block = guarded_block(true), byte;
    free_here(block);
    expect(pipe(begin) == 0, "no pipe");
    for (int i = 0; i < TOGETHER; i++) {
        if (fork() != 0) continue;
        close(begin[1]);
        expect(read(begin[0], &byte, 1) == 0, "not the end of the pipe");
        touch(block + 10);
    }
    close(begin[1]);
    while (wait(NULL) > 0) continue;
}

static void run_json_together(void) {
    for (int i = 0; i < 20; i++) {
        struct case_end end = case_watch("");
        int lines = 0;
        for (char *at = end.error; (at = strstr(at, "{\"hakmem\"")) != NULL; lines++) at = expect_json(at);
        expect(lines == TOGETHER, "%d lines of %d: %s", lines, TOGETHER, end.error);
    }
}

/* What a free has found: where in the block, and by way of whom. */
static void run_json_late(void) {
    static const struct {
        const char *argument, *offset;
    } misuses[] = {{"spoiled-far", "\"offset\": 160,"},
                   {"spoiled-before", "\"offset\": -7,"},
                   {"double-free", "\"offset\": 0,"},
                   {"inside", "\"offset\": 16,"}};
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        struct case_end end = expect_end(misuses[i].argument, SIGABRT);
        const char *line = strstr(end.error, "{\"hakmem\"");
        expect(line != NULL && strstr(line, misuses[i].offset), "no %s: %s", misuses[i].offset, line);
        const char *stack = strstr(line, "\"stack\": ["), *own = strstr(line, "abuse_guard+0x");
        expect(own != NULL && own < strchr(stack, ']'), "the stack doesn't lead to the program: %s", line);
    }
}

/* A handler that the program has set later has the signal. */
static void run_handler(void) {
    struct case_end end = case_watch("handler");
    expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == HANDLED, "wait status %#x", (unsigned)end.status);
}

/* ---- Guards that are switched on in a running program --------------------------------------------------------------- */

static volatile char *barrier; /* a page of the program's own, which its handler opens */
static volatile sig_atomic_t handled, was_blocked, was_on_alternate_stack, alternate_stack_is_set;
static sigjmp_buf back;

static void open_barrier(int signal, siginfo_t *info, void *context) {
    sigset_t mask;
    stack_t stack;
    (void)context;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    was_blocked = sigismember(&mask, signal) && sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGUSR2);
    sigaltstack(NULL, &stack);
    was_on_alternate_stack = (stack.ss_flags & SS_ONSTACK) != 0;
    handled++;
    if ((char *)info->si_addr != barrier) siglongjmp(back, 1);
    mprotect((void *)(uintptr_t)barrier, page_bytes(), PROT_READ | PROT_WRITE);
}

/* Faults that the program makes and handles by design, as garbage collectors do. */
static void fault_by_design(void) {
    for (int i = 0; i < 3; i++) {
        int before = handled;
        mprotect((void *)(uintptr_t)barrier, page_bytes(), PROT_NONE);
        *barrier = 1;
        expect(handled == before + 1, "its handler was called %d times", handled - before);
        expect(was_blocked && was_on_alternate_stack == alternate_stack_is_set, "it is called as it was set");
    }
}

static void set_alternate_stack(void) {
    static char memory[1 << 16];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    expect(sigaltstack(&stack, NULL) == 0, "no alternate stack");
}

static void victim_running(const char *what) {
    struct sigaction action = {.sa_sigaction = open_barrier, .sa_flags = SA_SIGINFO};
    if (strstr(what, "stack")) set_alternate_stack();
    alternate_stack_is_set = !strcmp(what, "on-stack");
    if (alternate_stack_is_set) action.sa_flags |= SA_ONSTACK;
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaction(SIGSEGV, &action, NULL);
    barrier = mmap(NULL, page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    case_ask("set guard_share=2");
    char *block = guarded_block(true);
    free_here(block);
    fault_by_design();
    if (sigsetjmp(back, 1) == 0) touch(block + 10); /* its handler leaves that by a jump */
    fault_by_design();
    _exit(HANDLED);
}

/* The program's handler goes on as before, and what hits a guard is reported. */
static void run_running(void) {
    static const char *const arguments[] = {"plain", "off-stack", "on-stack"};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        struct case_end end = case_watch(arguments[i]);
        expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == HANDLED, "%s: wait status %#x: %.800s", arguments[i],
               (unsigned)end.status, end.error);
        expect_says(&end, " is 10 bytes into a freed guarded block of 100 bytes at 0x");
        expect_says(&end, "\"error\": \"use-after-free\"");
    }
}

/* ---- Handlers that call the one before ------------------------------------------------------------------------------- */

static struct sigaction before_chain;

/* As Java's: what returns has handled it. */
static void chain(int signal, siginfo_t *info, void *context) {
    if (before_chain.sa_handler != SIG_DFL) {
        before_chain.sa_sigaction(signal, info, context);
        return;
    }
    case_print(2, "the program's own report");
    _exit(HANDLED);
}

static void victim_chain(const char *what) {
    struct sigaction action = {.sa_sigaction = chain, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, &before_chain);
    if (before_chain.sa_handler == SIG_DFL) case_ask("set guard_share=2");
    char *block = guarded_block(true);
    if (!strcmp(what, "elsewhere")) touch((char *)16);
    free_here(block);
    touch(block + 10);
}

/* With guards from the start hakmem's handler is the one before: the program's own report is lost. */
static void run_chain(void) {
    struct case_end end = expect_end("after-free", SIGSEGV);
    expect_says(&end, "\"error\": \"use-after-free\"");
    expect(!strstr(end.error, "own report"), "it said: %.1500s", end.error);
    end = expect_end("elsewhere", SIGSEGV);
    expect(end.error[0] == '\0', "it said: %.800s", end.error);
}

/* With guards that are switched on later it comes first. */
static void run_chain_running(void) {
    static const char *const arguments[] = {"after-free", "elsewhere"};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        struct case_end end = case_watch(arguments[i]);
        expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == HANDLED, "%s: wait status %#x: %.800s", arguments[i],
               (unsigned)end.status, end.error);
        expect_says(&end, "the program's own report\n");
        expect(!strstr(end.error, "use-after-free") == (i == 1), "%s: it said: %.1500s", arguments[i], end.error);
    }
}

/* Other crashes are the program's affair. */
static void run_elsewhere(void) {
    struct case_end end = expect_end("elsewhere", SIGSEGV);
    expect(end.error[0] == '\0', "it said: %.800s", end.error);
    end = expect_end("abort", SIGABRT);
    expect(end.error[0] == '\0', "it said: %.800s", end.error);
}

static void run_child(void) {
    struct case_end end = case_watch("child");
    expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0, "wait status %#x: %.800s", (unsigned)end.status,
           end.error);
    expect_says(&end, "\"error\": \"use-after-free\"");
}

/* ---- Programs that do nothing wrong ---------------------------------------------------------------------------------- */

static void fill(unsigned char *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) block[i] = (unsigned char)(seed + i);
}

static void expect_filled(const unsigned char *block, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) expect(block[i] == (unsigned char)(seed + i), "byte %zu of %zu", i, size);
}

static struct hak_statistics stats_now(void) {
    struct hak_statistics stats;
    expect(case_stats(&stats), "no statistics");
    return stats;
}

/* Every size up to a page, all calls. */
static void run_blocks(void) {
    static unsigned char *blocks[5000];
    size_t guarded = 0, before = stats_now().large_blocks;
    for (size_t size = 0; size < sizeof blocks / sizeof *blocks; size++) {
        unsigned char *block = blocks[size] = size % 3 == 0 ? calloc(1, size) : malloc(size);
        expect(block != NULL && (uintptr_t)block % 16 == 0 && case_owns(block), "%zu bytes", size);
        for (size_t i = 0; size % 3 == 0 && i < size; i++) expect(block[i] == 0, "byte %zu of %zu", i, size);
        size_t usable = malloc_usable_size(block);
        expect(usable >= size, "%zu bytes are usable of %zu", usable, size);
        guarded += is_guarded(block, size);
        fill(block, usable, (unsigned)size);
    }
    expect(guarded > 20, "%zu blocks between guards", guarded);
    expect(stats_now().large_blocks >= before + guarded, "they are counted");
    for (size_t size = 1; size < sizeof blocks / sizeof *blocks; size++) {
        expect_filled(blocks[size], size, (unsigned)size);
        size_t other = size * 7 % 5000 + 1, kept = other < size ? other : size;
        unsigned char *moved = realloc(blocks[size], other);
        expect(moved != NULL && malloc_usable_size(moved) >= other, "%zu to %zu", size, other);
        expect_filled(moved, kept, (unsigned)size);
        blocks[size] = moved;
    }
    for (size_t size = 0; size < sizeof blocks / sizeof *blocks; size++) free(blocks[size]);
    char *shrunk = guarded_block(true);
    expect(realloc(hidden(shrunk), SIZE) == shrunk, "it stays where it is");
    free(shrunk);
    size_t after = stats_now().large_blocks; /* hakmem's thread may have begun, for which the C library allocates */
    expect(after <= before + 5, "%zu blocks are left of %zu", after, guarded);
}

static void run_aligned(void) {
    size_t guarded = 0;
    for (size_t i = 0; i < 4000; i++) {
        size_t alignment = (size_t)16 << i % 9, size = i * 13 % 4000 + 1;
        void *block = NULL;
        expect(posix_memalign(&block, alignment, size) == 0 && (uintptr_t)block % alignment == 0, "%zu, %zu", alignment,
               size);
        expect(malloc_usable_size(block) >= size, "%zu, %zu", alignment, size);
        memset(block, 1, malloc_usable_size(block));
        guarded += is_at_start(block) || ((uintptr_t)block + malloc_usable_size(block)) % page_bytes() == 0;
        if (i % 2) free(block);
    }
    expect(guarded > 0, "none between guards");
}

/* A freed block's page is not used again for long. */
static void run_turns(void) {
    char *freed = guarded_block(true);
    uintptr_t page = (uintptr_t)freed & -page_bytes();
    free(freed);
    size_t guarded = 0;
    for (int i = 0; i < TRIES && guarded < 200; i++) {
        char *block = malloc(SIZE);
        if (!is_guarded(block, SIZE)) continue;
        guarded++;
        expect(((uintptr_t)block & -page_bytes()) != page, "used again after %zu others", guarded);
        free(block);
    }
    expect(guarded == 200, "%zu blocks between guards", guarded);
}

/* More live ones than there is room for. */
static void run_full(void) {
    enum { COUNT = 20000 };
    static char *blocks[COUNT];
    size_t guarded = 0, again = 0;
    for (int i = 0; i < COUNT; i++) {
        expect((blocks[i] = malloc(SIZE)) != NULL, "no block");
        guarded += is_guarded(blocks[i], SIZE);
    }
    expect(guarded > 20 && guarded <= 480, "%zu between guards", guarded);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = malloc(SIZE);
        again += is_guarded(blocks[i], SIZE);
    }
    expect(again > 20, "%zu between guards", again);
}

static void victim_full(const char *what) {
    (void)what;
    for (int i = 0; i < 20000; i++) expect(hidden(malloc(SIZE)) != NULL, "no block");
}

/* Statistics tell of those for which there is no place. */
static void run_missed(void) {
    setenv("HAKMEM_STATS", "json", 1);
    struct case_end end = case_watch("all");
    const char *missed = strstr(end.error, "\"guards_missed\": ");
    expect(missed != NULL, "it does not say: %.800s", end.error);
    unsigned long count = strtoul(missed + strlen("\"guards_missed\": "), NULL, 10);
    expect(count > 10, "%lu had no place", count);
}

static void run_forked(void) {
    unsigned char *block = (unsigned char *)guarded_block(true);
    fill(block, SIZE, 1);
    pid_t child = fork();
    if (child == 0) {
        expect_filled(block, SIZE, 1);
        fill(block, SIZE, 2);
        free(block);
        free(guarded_block(false));
        _exit(0);
    }
    case_expect_success(child, 20);
    expect_filled(block, SIZE, 1);
    free(block);
}

enum { THREADS = 4, SHARED = 64, ROUNDS = 20000 };
static _Atomic(unsigned char *) shared_blocks[SHARED];

/* Puts a block where another thread takes it from. */
static void *exchange_blocks(void *number) {
    uint64_t seed = (uintptr_t)number * 2654435761u + 1;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t size = 1 + (seed >> 33) % 300;
        unsigned char *mine = malloc(size), *other;
        fill(mine, size, (unsigned)size);
        if (size > 1) mine[0] = (unsigned char)size, mine[1] = (unsigned char)(size >> 8);
        other = atomic_exchange(&shared_blocks[(seed >> 50) % SHARED], size > 1 ? mine : NULL);
        if (size == 1) free(mine);
        if (other == NULL) continue;
        size_t other_size = other[0] + 256u * other[1];
        expect(malloc_usable_size(other) >= other_size, "%zu", other_size);
        for (size_t at = 2; at < other_size; at++)
            expect(other[at] == (unsigned char)(other_size + at), "byte %zu of %zu", at, other_size);
        free(other);
    }
    return NULL;
}

static void run_threads(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        expect(pthread_create(&threads[i], NULL, exchange_blocks, (void *)i) == 0, "no thread");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARED; i++) free(shared_blocks[i]);
    expect(is_guarded(guarded_block(true), SIZE), "there are guards still");
}

static size_t count_guarded(int count) {
    size_t guarded = 0;
    for (int i = 0; i < count; i++) {
        char *block = malloc(SIZE);
        expect(block != NULL, "no block");
        guarded += is_guarded(block, SIZE);
    }
    return guarded;
}

/* A program that only allocates gets one in as many as it asked for. */
static void run_rate(void) {
    size_t guarded = count_guarded(40000);
    expect(guarded >= 300 && guarded <= 500, "%zu of 40000", guarded);
}

static void run_none(void) {
    size_t guarded = count_guarded(10000);
    expect(guarded == 0, "%zu between guards", guarded);
}

/* Batches that are freed again: the rate is so low that none is between guards before the first batch. */
static size_t count_guarded_in_batches(void) {
    enum { BATCHES = 2000, BATCH = 1000 };
    static char *blocks[BATCH];
    size_t guarded = 0;
    for (int i = 0; i < BATCHES; i++) {
        for (int at = 0; at < BATCH; at++) guarded += is_guarded(blocks[at] = malloc(SIZE), SIZE);
        for (int at = 0; at < BATCH; at++) free(blocks[at]);
    }
    return guarded;
}

static void victim_late(const char *what) {
    struct rlimit limit = {(rlim_t)1 << 20, (rlim_t)1 << 20};
    expect(malloc(SIZE) != NULL, "no block"); /* hakmem has its first SuperSlab */
    if (!strcmp(what, "refused")) expect(setrlimit(RLIMIT_AS, &limit) == 0, "no limit");
    case_print(1, "%zu", count_guarded_in_batches());
}

/* No addresses for the pool: no guards, and nothing is said. */
static void run_refused(void) {
    struct case_end granted = case_watch("granted"), refused = case_watch("refused");
    expect(granted.status == 0 && strtoul(granted.output, NULL, 10) > 0, "%s: no guards at all", granted.output);
    expect(refused.status == 0 && refused.error[0] == '\0', "wait status %#x: %.800s", (unsigned)refused.status,
           refused.error);
    expect(strcmp(refused.output, "0\n") == 0, "%s between guards", refused.output);
}

/* What moves a block frees it: a use of the old one faults. Each change of size does. */
static void victim_moved(const char *what) {
    char *block = guarded_block(true);
    memset(block, 'a', SIZE);
    char *moved = realloc(hidden(block), !strcmp(what, "larger") ? 10 * SIZE : SIZE - 10);
    expect(moved != NULL && moved != hidden(block) && moved[SIZE - 11] == 'a', "it isn't moved");
    touch(block);
}

static void run_moved(void) {
    static const char *const arguments[] = {"larger", "smaller"};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        struct case_end end = expect_end(arguments[i], SIGSEGV);
        expect_says(&end, " is the start of a freed guarded block of 100 bytes\n");
    }
}

#define CASE(name_, run_, victim_)                                                                                     \
    { .name = name_, .run = run_, .seconds = 60, .memory_mib = 512, .victim = victim_ }

static const struct hak_case cases[] = {
    CASE("faults", run_faults, victim_misuse),
    CASE("frees", run_frees, victim_misuse),
    CASE("spoiled", run_spoiled, victim_misuse),
    CASE("json", run_json, victim_misuse),
    CASE("json-together", run_json_together, victim_together),
    CASE("json-late", run_json_late, victim_misuse),
    CASE("handler", run_handler, victim_misuse),
    CASE("running", run_running, victim_running),
    CASE("chain", run_chain, victim_chain),
    CASE("chain-running", run_chain_running, victim_chain),
    CASE("elsewhere", run_elsewhere, victim_misuse),
    CASE("child", run_child, victim_misuse),
    CASE("blocks", run_blocks, NULL),
    CASE("aligned", run_aligned, NULL),
    CASE("turns", run_turns, NULL),
    CASE("full", run_full, NULL),
    CASE("missed", run_missed, victim_full),
    CASE("forked", run_forked, NULL),
    CASE("threads", run_threads, NULL),
    CASE("rate", run_rate, NULL),
    CASE("none", run_none, NULL),
    CASE("off", run_none, NULL),
    CASE("refused", run_refused, victim_late),
    CASE("moved", run_moved, victim_moved),
};

CASE_MAIN(cases)
