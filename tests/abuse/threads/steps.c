/* A signal handler that allocates and frees, between any two instructions of malloc and free of the thread that it
 * interrupts.
 *
 * A first pass goes through the calls with the trap flag of x86-64, which gives a signal after each instruction, and
 * notes where hakmem has been. Then each of these places in turn gets a breakpoint: the handler does there what
 * handlers may not. It allocates and keeps, frees what it has kept, or both. Afterwards no block may have two owners,
 * or none. In a hit there are instructions where that can't be (docs/misuse.md): the case `hits` finds out which
 * those are, and that they are few and lie together; the other cases spare them, and no others.
 *
 * Without a background thread: it would run into the breakpoints, too. */
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "../case.h"

#if defined(__x86_64__)

enum { TRAP_FLAG = 0x100, KEPT = 16, MOST_SPARED = 32, LONGEST_HIT = 40, OVER_BEFORE = 2 };
enum deed { ALLOCATE, FREE, SWAP, PAIR, DEEDS };

/* Not through the table of a lazy linker. */
static void *(*do_malloc)(size_t);
static void (*do_free)(void *);
static void *(*do_realloc)(void *, size_t);
static size_t block_bytes = 64;

static unsigned char *text; /* hakmem's */
static size_t text_bytes;

/* ---- The handler's part ----------------------------------------------------------------------------------------- */

static size_t *kept[KEPT];
static unsigned kept_count;
static enum deed deed;
static unsigned steps, deed_step; /* instructions so far; the one after which it is done */
static bool is_done, may_get_nothing;
static uintptr_t done_at, *shared_at, spared[MOST_SPARED];
static unsigned spared_count;

static size_t tag_of(const size_t *block, size_t owner) { return (size_t)block ^ owner; }
enum { PROGRAM = 0x5555, HANDLER = 0xAAAA };

static void fill(size_t *block, size_t owner) {
    expect(block != NULL, "no block");
    for (size_t i = 0; i < block_bytes / sizeof *block; i += i < 8 ? 1 : 1 << 17) block[i] = tag_of(block, owner);
}

static void check(const size_t *block, size_t owner) {
    for (size_t i = 0; i < block_bytes / sizeof *block; i += i < 8 ? 1 : 1 << 17)
        expect(block[i] == tag_of(block, owner), "block %p has two owners, deed %d at %#zx", (const void *)block,
               (int)deed, (size_t)done_at - (size_t)text);
}

static void keep_one(void) {
    size_t *block = do_malloc(block_bytes);
    if (block == NULL && may_get_nothing && errno == ENOMEM) return;
    fill(kept[kept_count++] = block, HANDLER);
}

/* Of a size that realloc leaves in place: it looks whether the block is free. */
static void free_one(void) {
    size_t *block = kept[--kept_count];
    check(block, HANDLER);
    if (block_bytes <= 3000) expect(do_realloc(block, block_bytes) == block, "%p has moved", (void *)block);
    do_free(block);
}

static void do_deed(void) {
    if (deed == SWAP || deed == FREE) free_one();
    if (deed != FREE) keep_one();
    if (deed == PAIR) free_one();
}

static bool is_spared(uintptr_t at) {
    for (unsigned i = 0; i < spared_count; i++)
        if (spared[i] == at) return true;
    return false;
}

/* ---- Places ----------------------------------------------------------------------------------------------------- */

enum { TEXT_MOST = 1 << 20, BREAKPOINT = 0xCC };
static unsigned char *breakpoint, original; /* where there is one, and what was there */
static bool has_been_at[TEXT_MOST], is_tracing;

static void note_place(uintptr_t at) {
    if (at - (uintptr_t)text < text_bytes && !is_spared(at)) has_been_at[at - (uintptr_t)text] = true;
}

static void set_breakpoint(unsigned char *at) {
    breakpoint = at;
    original = *at;
    *(volatile unsigned char *)at = BREAKPOINT;
}

static void clear_breakpoint(void) {
    if (breakpoint != NULL) *(volatile unsigned char *)breakpoint = original;
    breakpoint = NULL;
}

static int find_text(struct dl_phdr_info *info, size_t size, void *nothing) {
    (void)size, (void)nothing;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0 || (uintptr_t)do_malloc - start >= part->p_memsz)
            continue;
        text = (unsigned char *)start;
        text_bytes = part->p_memsz;
    }
    return 0;
}

static void make_text_writable(void) {
    dl_iterate_phdr(find_text, NULL);
    size_t before = (uintptr_t)text % (size_t)sysconf(_SC_PAGESIZE);
    expect(text != NULL && text_bytes <= TEXT_MOST, "hakmem's text has %zu bytes", text_bytes);
    if (mprotect(text - before, text_bytes + before, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        skip("no breakpoints here");
}

static void on_breakpoint(greg_t *registers) {
    registers[REG_RIP] = (greg_t)(done_at = (uintptr_t)breakpoint);
    clear_breakpoint();
    is_done = true;
    do_deed();
}

static void on_step(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (breakpoint != NULL) {
        on_breakpoint(registers);
        return;
    }
    if (is_tracing) note_place((uintptr_t)registers[REG_RIP]);
    if (is_tracing || steps++ != deed_step) return;
    registers[REG_EFL] &= ~TRAP_FLAG;
    is_done = true;
    done_at = (uintptr_t)registers[REG_RIP];
    if (shared_at != NULL) *shared_at = done_at;
    if (!is_spared(done_at)) do_deed();
}

static unsigned char
    *place; /* where the deed is to be done; NULL: after deed_step instructions, or while tracing nowhere */

static void begin_steps(void) {
    steps = 0;
    is_done = false;
    if (place != NULL) set_breakpoint(place);
    else __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | TRAP_FLAG);
}

static void end_steps(void) {
    if (place != NULL) clear_breakpoint();
    else __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~(uint64_t)TRAP_FLAG);
}

static void prepare_signals(void) {
    const struct sigaction on_trap = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    expect(sigaction(SIGTRAP, &on_trap, NULL) == 0, "errno %d", errno);
}

static void prepare(void) {
    prepare_signals();
    if (do_malloc == NULL) *(void **)&do_malloc = dlsym(RTLD_DEFAULT, "malloc");
    if (do_free == NULL) *(void **)&do_free = dlsym(RTLD_DEFAULT, "free");
    if (do_realloc == NULL) *(void **)&do_realloc = dlsym(RTLD_DEFAULT, "realloc");
    deed = PAIR;
    begin_steps();
    end_steps();
    if (!is_done) skip("this machine does not step");
}

/* Before each call: the handler has room, and something to free. */
static void restock(void) {
    if (kept_count < 2)
        while (kept_count < 4) keep_one();
    if (kept_count > KEPT - 2)
        while (kept_count > 4) free_one();
}

static size_t *step_malloc(void) {
    begin_steps();
    size_t *block = do_malloc(block_bytes);
    end_steps();
    fill(block, PROGRAM);
    return block;
}

static void step_free(size_t *block) {
    check(block, PROGRAM);
    begin_steps();
    do_free(block);
    end_steps();
}

/* ---- Hits ------------------------------------------------------------------------------------------------------- */

enum { TAKEN = 300 };

/* In a child: one hit with one deed in it, and then so many blocks that each block of the bin must have come. */
static void hit_once(bool is_free) {
    size_t *blocks[TAKEN], *one;
    for (int i = 0; i < 40; i++) blocks[i] = do_malloc(block_bytes); /* some in the bin, and room for more */
    for (int i = 0; i < 6; i++) keep_one();
    for (int i = 0; i < 12; i++) do_free(blocks[i]);
    for (int i = 0; i < 6; i++) blocks[i] = do_malloc(block_bytes);
    for (int i = 0; i < 2; i++) do_free(blocks[i]);
    one = do_malloc(block_bytes);
    fill(one, PROGRAM);
    if (!is_free) do_free(one);
    if (is_free) step_free(one);
    else one = step_malloc();
    unsigned length = steps;
    bool was_reached = is_done;
    for (int i = 0; i < TAKEN; i++) {
        blocks[i] = do_malloc(block_bytes);
        fill(blocks[i], PROGRAM);
    }
    if (!is_free) check(one, PROGRAM);
    while (kept_count > 0) check(kept[--kept_count], HANDLER);
    for (int i = 0; i < TAKEN; i++) {
        check(blocks[i], PROGRAM);
        for (int j = 0; j < i; j++) expect(blocks[i] != blocks[j], "handed out twice");
        expect(is_free || blocks[i] != one, "handed out twice");
    }
    expect(length < LONGEST_HIT, "not a hit: %u instructions", length);
    _exit(was_reached ? 0 : OVER_BEFORE);
}

/* Where the deed does harm in a hit: a bit for each instruction. The places are spared from now on. */
static uint64_t find_harm(bool is_free) {
    uint64_t harmful = 0;
    uintptr_t *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned known = spared_count;
    for (deed_step = 0; deed_step < LONGEST_HIT; deed_step++) {
        pid_t child = fork();
        if (child == 0) {
            int nowhere = open("/dev/null", O_WRONLY);
            dup2(nowhere, 2);
            spared_count = 0;
            shared_at = at;
            hit_once(is_free);
        }
        int status = case_await(child, 20);
        if (WIFEXITED(status) && WEXITSTATUS(status) == OVER_BEFORE) break;
        if (status == 0) continue;
        harmful |= (uint64_t)1 << deed_step;
        bool is_known = false;
        for (unsigned i = 0; i < known; i++) is_known = is_known || spared[i] == *at;
        expect(spared_count < MOST_SPARED, "harm nearly everywhere");
        if (!is_known) spared[spared_count++] = *at;
    }
    munmap(at, sizeof *at);
    expect(deed_step < LONGEST_HIT, "a hit without an end");
    return harmful;
}

/* From loading the top of the bin to storing it: no more than so many instructions can lie between. */
enum { MOST_HARMFUL = 9 };

static void spare_hits(bool is_told) {
    size_t asked_bytes = block_bytes;
    block_bytes = 64;
    for (int is_free = 0; is_free < 2; is_free++) {
        for (deed = 0; deed < DEEDS; deed++) {
            uint64_t harmful = find_harm(is_free != 0);
            if (is_told)
                case_print(1, "%s, deed %d: %#lx", is_free ? "free" : "malloc", (int)deed, (unsigned long)harmful);
            if (deed == PAIR) expect(harmful == 0, "a block that comes and goes does no harm");
            if (deed != ALLOCATE) continue;
            expect(harmful != 0, "this test finds harm where there is some");
            uint64_t run = harmful >> __builtin_ctzll(harmful);
            expect((run & (run + 1)) == 0 && __builtin_popcountll(run) <= MOST_HARMFUL, "harmful: %#lx",
                   (unsigned long)harmful);
        }
    }
    block_bytes = asked_bytes;
}

static void run_hits(void) {
    prepare();
    spare_hits(true);
}

/* ---- Slow paths ------------------------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 24 };

/* Allocates and frees so often that bins are filled, emptied, and made larger. */
static void churn(unsigned count) {
    size_t *blocks[MOST_BLOCKS];
    for (unsigned i = 0; i < count; i++) {
        restock();
        blocks[i] = step_malloc();
    }
    for (unsigned i = 0; i < count; i++) {
        restock();
        step_free(blocks[i]);
    }
}

static void give_all_back(void) {
    while (kept_count > 0) free_one();
}

static uint64_t live_blocks(void) {
    struct hak_statistics now;
    expect(case_stats(&now), "no statistics");
    return now.live_blocks;
}

/* Each deed at each place. Some more places show while that is done. */
static void step_all(void (*run)(void), unsigned traces) {
    prepare();
    spare_hits(false);
    make_text_writable();
    is_tracing = true;
    for (unsigned i = 0; i < traces; i++) run();
    is_tracing = false;
    give_all_back();
    uint64_t before = live_blocks();
    unsigned places = 0, deeds_done = 0;
    for (size_t offset = 0; offset < text_bytes; offset++) {
        if (!has_been_at[offset]) continue;
        place = text + offset;
        places++;
        for (deed = 0; deed < PAIR; deed++) {
            done_at = 0;
            run();
            deeds_done += done_at != 0;
        }
    }
    place = NULL;
    give_all_back();
    case_print(1, "%u places, %u deeds", places, deeds_done);
    expect(deeds_done > places, "the second time, the calls went elsewhere");
    uint64_t after = live_blocks();
    expect(after == before, "%ld blocks were lost", (long)(after - before));
}

static void churn_many(void) { churn(MOST_BLOCKS); }
static void churn_few(void) { churn(3); }

static void run_small(void) { step_all(churn_many, 8); }

static void run_medium(void) {
    block_bytes = 3000;
    step_all(churn_many, 8);
}

static void run_large(void) {
    block_bytes = 50000;
    step_all(churn_few, 8);
}

static void run_mapped(void) {
    block_bytes = 40 << 20;
    step_all(churn_few, 2);
}

static void *churn_in_thread(void *nothing) {
    churn(MOST_BLOCKS);
    return nothing;
}

static void churn_in_new_thread(void) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, churn_in_thread, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
}

static void run_threads(void) { step_all(churn_in_new_thread, 3); }

/* ---- The first call of a process -------------------------------------------------------------------------------- */

/* Of a hakmem that is opened, in children that begin with it anew. A handler may get nothing here, but it gets it at
 * once. */
static void begin_at(unsigned char *at) {
    size_t *blocks[TAKEN];
    case_bound_time(20);
    place = at;
    may_get_nothing = true;
    blocks[0] = step_malloc();
    for (int i = 1; i < TAKEN; i++) fill(blocks[i] = do_malloc(block_bytes), PROGRAM);
    give_all_back();
    for (int i = 0; i < TAKEN; i++) {
        check(blocks[i], PROGRAM);
        do_free(blocks[i]);
    }
    _exit(0);
}

static void run_start(void) {
    void *library = dlopen(case_arguments[0], RTLD_NOW | RTLD_LOCAL);
    expect(library != NULL, "%s", dlerror());
    *(void **)&do_malloc = dlsym(library, "hak_malloc");
    *(void **)&do_free = dlsym(library, "hak_free");
    *(void **)&do_realloc = dlsym(library, "hak_realloc");
    make_text_writable();
    bool *shared = mmap(NULL, TEXT_MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        prepare_signals();
        is_tracing = true;
        step_malloc();
        memcpy(shared, has_been_at, TEXT_MOST);
        _exit(0);
    }
    case_expect_success(child, 60);
    prepare_signals();
    unsigned places = 0;
    for (size_t offset = 0; offset < text_bytes; offset++) {
        if (!shared[offset]) continue;
        places++;
        child = fork();
        if (child == 0) begin_at(text + offset);
        int status = case_await(child, 20);
        expect(status == 0, "wait status %#x after a deed at %#zx", (unsigned)status, offset);
    }
    case_print(1, "%u places", places);
    expect(places > 100, "the first call is longer");
}

/* ---- At random moments, with all sizes -------------------------------------------------------------------------- */

static atomic_uint signals, deeds_done;
static uint64_t random_state = 1;
static size_t *held[KEPT]; /* by the handler */

static size_t random_bytes(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)16 << (random_state >> 33) % 13;
}

/* Its first word says how large a block is. */
static size_t *sized_block(size_t owner) {
    size_t bytes = random_bytes(), *block = do_malloc(bytes);
    expect(block != NULL, "no block");
    block[0] = bytes;
    block[1] = block[bytes / sizeof *block - 1] = tag_of(block, owner);
    return block;
}

static void free_sized_block(size_t *block, size_t owner) {
    expect(block[1] == tag_of(block, owner) && block[block[0] / sizeof *block - 1] == tag_of(block, owner),
           "block %p of %zu bytes has two owners", (void *)block, block[0]);
    do_free(block);
}

static void on_timer(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    atomic_fetch_add(&signals, 1);
    if (is_spared((uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP])) return;
    int saved_errno = errno;
    unsigned i = atomic_fetch_add(&deeds_done, 1) % KEPT;
    if (held[i] != NULL) free_sized_block(held[i], HANDLER);
    held[i] = sized_block(HANDLER);
    errno = saved_errno;
}

static void run_timer(void) {
    enum { ENOUGH = 10000 };
    static size_t *blocks[1000];
    const struct sigaction action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec every = {{0, 30000}, {0, 30000}};
    timer_t timer;
    prepare();
    spare_hits(false);
    expect(sigaction(SIGUSR1, &action, NULL) == 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "errno %d",
           errno);
    timer_settime(timer, 0, &every, NULL);
    while (atomic_load(&deeds_done) < ENOUGH) { /* the case's bound of time is that of this */
        for (int i = 0; i < 1000; i++) blocks[i] = sized_block(PROGRAM);
        for (int i = 0; i < 1000; i++) free_sized_block(blocks[i], PROGRAM);
    }
    timer_delete(timer);
    case_print(1, "%u signals, %u of them allocated", atomic_load(&signals), atomic_load(&deeds_done));
}

static const struct hak_case cases[] = {
    {"hits", run_hits, 60, 256, NULL, false},       {"small", run_small, 120, 256, NULL, false},
    {"medium", run_medium, 120, 256, NULL, false},  {"large", run_large, 120, 256, NULL, false},
    {"mapped", run_mapped, 120, 4096, NULL, false}, {"threads", run_threads, 150, 256, NULL, false},
    {"timer", run_timer, 60, 256, NULL, false},     {"start", run_start, 150, 256, NULL, true},
};

CASE_MAIN(cases)

#else

int main(void) { return CASE_SKIPPED; }

#endif
