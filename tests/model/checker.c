/* Runs a harness once for every schedule and every choice of the memory model, within bounds.
 *
 * Threads are coroutines of one OS thread. All that is open in an execution - which thread runs next, which message a
 * load reads - goes through model_choose; the choices of an execution form a list, and depth-first search means to run
 * again with the last choice that has alternatives left moved to its next one.
 *
 *   E1  an execution is a function of its list of choices (checked: a choice met again has as many alternatives)
 *   E2  a thread loses the processor only at a switch point, or by waiting, or at its end
 */
#undef _FORTIFY_SOURCE /* its longjmp refuses to change stacks */
#include "internal.h"

#include <elf.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    STACK_BYTES = 256 * 1024,
    GUARD_BYTES = 64 * 1024,
    CHOICES = 1 << 16,
    STEPS = 1 << 14,
    PRINTED_STEPS = 200,
    LOCAL_BYTES = 16 * 1024,
    LOCALS = 16,
};

enum thread_state { THREAD_NEW, THREAD_READY, THREAD_YIELDED, THREAD_ASLEEP, THREAD_DONE };

struct thread {
    enum thread_state state;
    bool fresh; /* has done nothing since it got the processor: taking it away now explores nothing new */
    jmp_buf start, context;
    const volatile uint32_t *futex;
    const struct model_site *last; /* operation */
};

struct choice {
    uint16_t taken, count;
};

struct model_execution model_now;
bool model_stops_anywhere, model_recovers;

static struct thread threads[MODEL_THREADS];
static char *stacks;
static jmp_buf creator, explorer;
enum { EXPLORER_CALLS, THREADS_ENDED, EXECUTION_FAILED };

static struct choice choices[CHOICES];
static unsigned choice_count, choice_depth;

static struct model_step steps[STEPS];
static unsigned step_count;

static const struct model_harness *harness;
static struct model_bounds bounds;
static struct model_result result;
static unsigned preemptions_left;
static volatile sig_atomic_t is_exploring;

static struct {
    char *address;
    size_t size;
    char *copies; /* one per thread, then the one from setup */
} locals[LOCALS];
static unsigned local_count;
static char local_memory[LOCAL_BYTES];
static size_t local_bytes;

/* ---- failing ------------------------------------------------------------------------------------------------ */

static struct model_harness *first_harness, **next_harness = &first_harness;

void model_register(struct model_harness *registered) {
    *next_harness = registered;
    next_harness = &registered->next;
}

struct model_harness *model_harnesses(void) {
    return first_harness;
}

const char *model_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

_Noreturn void model_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result.message, sizeof(result.message), format, arguments);
    va_end(arguments);
    if (!is_exploring) {
        fprintf(stderr, "model: %s\n", result.message);
        abort();
    }
    _longjmp(explorer, EXECUTION_FAILED);
}

static void on_crash(int signal_number) {
    if (is_exploring) model_fail("crash: %s", strsignal(signal_number));
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static uint64_t executions_at_tick;

/* Once per second of CPU time. */
static void on_tick(int signal_number) {
    (void)signal_number;
    if (is_exploring && executions_at_tick == result.executions)
        model_fail("hang: an execution takes more than a second");
    executions_at_tick = result.executions;
}

static void set_timer(int seconds) { setitimer(ITIMER_VIRTUAL, &(struct itimerval){{seconds, 0}, {seconds, 0}}, NULL); }

static void install_handlers(void) {
    static char alternate[64 * 1024];
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = sizeof(alternate)}, NULL);
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK | SA_NODEFER};
    for (unsigned i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++) sigaction(crashes[i], &action, NULL);
    action.sa_handler = on_tick;
    action.sa_flags |= SA_RESTART;
    sigaction(SIGVTALRM, &action, NULL);
}

/* ---- choices ------------------------------------------------------------------------------------------------ */

unsigned model_choose(unsigned count) {
    if (count == 1) return 0;
    if (choice_depth == choice_count) {
        if (choice_count == CHOICES) model_fail("more than %d choices in one execution", CHOICES);
        choices[choice_count++] = (struct choice){0, (uint16_t)count};
    } else if (choices[choice_depth].count != count) {
        model_fail("not deterministic: setup leaves something of the last execution, or a thread reads what the "
                   "checker does not control");
    }
    return choices[choice_depth++].taken;
}

/* Moves on to the next list of choices; false when there is none. */
static bool next_choices(void) {
    while (choice_count > 0) {
        struct choice *last = &choices[choice_count - 1];
        if (++last->taken < last->count) return true;
        choice_count--;
    }
    return false;
}

/* ---- threads ------------------------------------------------------------------------------------------------ */

unsigned model_thread(void) { return model_now.thread; }

bool model_is_private(const volatile void *address) {
    uintptr_t at = (uintptr_t)address;
    if (at - (uintptr_t)stacks < (size_t)MODEL_THREADS * (STACK_BYTES + GUARD_BYTES)) return true;
    for (unsigned i = 0; i < local_count; i++)
        if (at - (uintptr_t)locals[i].address < locals[i].size) return true;
    return false;
}

void model_thread_local(void *address, size_t size) {
    size_t needed = size * (MODEL_THREADS + 1);
    if (local_count == LOCALS || needed > LOCAL_BYTES - local_bytes) model_fail("too much thread-local data");
    locals[local_count].address = address;
    locals[local_count].size = size;
    locals[local_count++].copies = local_memory + local_bytes;
    local_bytes += needed;
}

static void save_locals(unsigned slot) {
    for (unsigned i = 0; i < local_count; i++)
        memcpy(locals[i].copies + slot * locals[i].size, locals[i].address, locals[i].size);
}

static void load_locals(unsigned slot) {
    for (unsigned i = 0; i < local_count; i++)
        memcpy(locals[i].address, locals[i].copies + slot * locals[i].size, locals[i].size);
}

_Noreturn static void resume(unsigned thread) {
    struct thread *next = &threads[thread];
    bool is_new = next->state == THREAD_NEW;
    if (next->state == THREAD_YIELDED) model_memory_forget_reads(thread);
    if (next->state != THREAD_READY) next->fresh = true;
    next->state = THREAD_READY;
    model_now.thread = thread;
    load_locals(thread);
    if (is_new) _longjmp(next->start, 1);
    _longjmp(next->context, 1);
}

static bool can_run(unsigned thread) {
    switch (threads[thread].state) {
    case THREAD_NEW:
    case THREAD_READY: return true;
    case THREAD_YIELDED: return model_memory_changed(thread);
    default: return false;
    }
}

_Noreturn static void fail_deadlock(void) {
    char text[300];
    size_t used = 0;
    for (unsigned i = 0; i < model_now.thread_count; i++)
        if (threads[i].state != THREAD_DONE && used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used, " T%u %s after %s", i,
                                     threads[i].state == THREAD_ASLEEP ? "sleeps" : "waits",
                                     threads[i].last ? threads[i].last->entry->name : "its start");
    model_fail("deadlock:%s", text);
}

/* Chooses among threads other than the running one that can run, and that one last if it waits on something that has
 * changed already. */
static void give_up_processor(void) {
    unsigned self = model_now.thread, count = model_now.thread_count, option_count = 0;
    unsigned options[MODEL_THREADS];
    bool all_done = true;
    for (unsigned i = 1; i <= count; i++) {
        unsigned other = (self + i) % count;
        all_done = all_done && threads[other].state == THREAD_DONE;
        if (can_run(other)) options[option_count++] = other;
    }
    save_locals(self);
    if (all_done) _longjmp(explorer, THREADS_ENDED);
    if (option_count == 0) fail_deadlock();
    unsigned next = options[model_choose(option_count)];
    if (_setjmp(threads[self].context) == 0) resume(next);
}

void model_switch_point(void) {
    unsigned self = model_now.thread, option_count = 1;
    unsigned options[MODEL_THREADS];
    if (threads[self].fresh) {
        threads[self].fresh = false;
        return;
    }
    if (preemptions_left == 0 && model_now.cut_preemptions) return;
    for (unsigned i = 0; i < model_now.thread_count; i++)
        if (i != self && can_run(i)) options[option_count++] = i;
    if (preemptions_left == 0) {
        model_now.cut_preemptions = option_count > 1;
        return;
    }
    unsigned chosen = model_choose(option_count);
    if (chosen == 0) return;
    preemptions_left--;
    save_locals(self);
    if (_setjmp(threads[self].context) == 0) resume(options[chosen]);
}

void model_yield(void) {
    if (!model_now.running) return;
    model_step(MODEL_STEP_YIELD, NULL);
    threads[model_now.thread].state = THREAD_YIELDED;
    give_up_processor();
}

void model_fork(void) {
    model_switch_point();
    for (unsigned i = 0; i < model_now.thread_count; i++)
        if (i != model_now.thread) threads[i].state = THREAD_DONE;
    model_memory_see_all();
}

void model_futex_wait(uint32_t *address, uint32_t expected) {
    model_switch_point();
    struct model_step *step = model_step(MODEL_STEP_WAIT, NULL);
    step->address = address;
    step->read = model_memory_latest(address, sizeof(*address));
    if (step->read != expected) return;
    struct thread *self = &threads[model_now.thread];
    self->state = THREAD_ASLEEP;
    self->futex = address;
    give_up_processor();
}

void model_futex_wake(uint32_t *address, unsigned count) {
    model_switch_point();
    model_step(MODEL_STEP_WAKE, NULL)->address = address;
    for (; count > 0; count--) {
        unsigned options[MODEL_THREADS], option_count = 0;
        for (unsigned i = 0; i < model_now.thread_count; i++)
            if (threads[i].state == THREAD_ASLEEP && threads[i].futex == address) options[option_count++] = i;
        if (option_count == 0) return;
        struct thread *woken = &threads[options[model_choose(option_count)]];
        woken->state = THREAD_READY;
        woken->fresh = true;
    }
}

/* The bottom frame of each stack: it never returns, so an execution can be dropped in the middle. */
static void thread_main(void) {
    if (_setjmp(threads[model_now.thread].start) == 0) _longjmp(creator, 1);
    harness->thread[model_now.thread]();
    threads[model_now.thread].state = THREAD_DONE;
    give_up_processor();
}

static void create_threads(void) {
    size_t stride = STACK_BYTES + GUARD_BYTES;
    stacks = mmap(NULL, MODEL_THREADS * stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stacks == MAP_FAILED) model_fail("no memory for stacks");
    for (unsigned i = 0; i < MODEL_THREADS; i++) {
        static ucontext_t context;
        mprotect(stacks + i * stride, GUARD_BYTES, PROT_NONE);
        getcontext(&context);
        context.uc_stack.ss_sp = stacks + i * stride + GUARD_BYTES;
        context.uc_stack.ss_size = STACK_BYTES;
        context.uc_link = NULL;
        makecontext(&context, thread_main, 0);
        model_now.thread = i;
        if (_setjmp(creator) == 0) setcontext(&context);
    }
}

/* ---- exploring ---------------------------------------------------------------------------------------------- */

struct model_step *model_step(enum model_step_kind kind, const struct model_site *site) {
    if (step_count == bounds.steps)
        model_fail("no end after %u operations: a livelock, or a loop that waits without hak_cpu_relax()", step_count);
    struct model_step *step = &steps[step_count++];
    *step = (struct model_step){.kind = kind, .thread = (uint8_t)model_now.thread, .site = site};
    if (site) threads[model_now.thread].last = site;
    return step;
}

static void start_threads(void) {
    save_locals(MODEL_THREADS);
    for (unsigned i = 0; i < model_now.thread_count; i++) {
        save_locals(i);
        threads[i].state = THREAD_NEW;
        threads[i].last = NULL;
    }
    model_now.running = true;
    resume(model_choose(model_now.thread_count));
}

static void run_execution(void) {
    choice_depth = 0;
    step_count = 0;
    local_count = 0;
    local_bytes = 0;
    model_now.stale_left = bounds.stale;
    preemptions_left = result.preemptions;
    model_now.thread = 0; /* it sets up: not the one that happened to end the last execution */
    model_memory_reset();
    switch (_setjmp(explorer)) {
    case EXPLORER_CALLS:
        is_exploring = true;
        if (harness->setup) harness->setup();
        start_threads();
        break;
    case THREADS_ENDED:
        model_now.running = false;
        load_locals(MODEL_THREADS);
        if (choice_depth != choice_count) model_fail("not deterministic: an execution ended before its choices did");
        if (harness->finally) harness->finally();
        break;
    default: result.failed = true;
    }
    is_exploring = false;
    model_now.running = false;
}

/* All executions with at most result.preemptions preemptions. A location known to be shared only late in the search
 * restarts it: switch points depend on that. */
static void explore_bounded(void) {
    choice_count = 0;
    model_now.cut_preemptions = model_now.cut_stale = false;
    for (;;) {
        if (result.executions == bounds.executions) return;
        result.executions++;
        model_now.restart = false;
        run_execution();
        if (result.failed) return;
        if (model_now.restart) {
            model_now.round++;
            choice_count = 0;
            model_now.cut_preemptions = model_now.cut_stale = false;
        } else if (!next_choices()) {
            result.complete = true;
            return;
        }
    }
}

struct model_result model_explore(const struct model_harness *explored, struct model_bounds within) {
    if (!stacks) {
        model_sites_build();
        create_threads();
        install_handlers();
    }
    harness = explored;
    bounds = within;
    if (bounds.steps > STEPS) bounds.steps = STEPS;
    result = (struct model_result){0};
    memset(&model_now, 0, sizeof(model_now));
    model_now.round = 1;
    while (model_now.thread_count < MODEL_THREADS && harness->thread[model_now.thread_count]) model_now.thread_count++;
    model_memory_begin();
    executions_at_tick = 0;
    set_timer(1);
    for (;; result.preemptions++) {
        result.complete = false;
        explore_bounded();
        if (!result.complete || !model_now.cut_preemptions || result.preemptions == bounds.preemptions) break;
    }
    set_timer(0);
    result.unbounded = result.complete && !model_now.cut_preemptions && !model_now.cut_stale;
    return result;
}

/* ---- printing ----------------------------------------------------------------------------------------------- */

extern const char __ehdr_start[]; /* the program's ELF header */

/* " at file:line" of a return address, as addr2line tells. */
const char *model_source_line(const void *code, char *text, size_t size) {
    char program[256], command[400], line[256] = "";
    uintptr_t offset = (uintptr_t)code - 1;
    if (((const Elf64_Ehdr *)(const void *)__ehdr_start)->e_type == ET_DYN) offset -= (uintptr_t)__ehdr_start;
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length < 0 ? 0 : length] = 0;
    snprintf(command, sizeof(command), "addr2line -e '%s' 0x%jx 2>/dev/null", program, (uintmax_t)offset);
    FILE *output = popen(command, "r");
    if (output) {
        if (!fgets(line, sizeof(line), output)) line[0] = 0;
        pclose(output);
    }
    line[strcspn(line, " \n")] = 0;
    if (line[0] && line[0] != '?') snprintf(text, size, " at %s", model_base_name(line));
    else snprintf(text, size, " at code offset 0x%jx", (uintmax_t)offset);
    return text;
}

static void print_step(FILE *stream, const struct model_step *step) {
    if (step->kind == MODEL_STEP_YIELD) {
        fprintf(stream, "waits for a change");
        return;
    }
    if (step->kind != MODEL_STEP_OPERATION) {
        fprintf(stream, "futex %s %p", step->kind == MODEL_STEP_WAIT ? "wait" : "wake", (void *)step->address);
        return;
    }
    const struct model_entry *entry = step->site->entry;
    fprintf(stream, "%s %s", entry->name, model_order_name(entry->order));
    if (step->site->operation == MODEL_CAS) fprintf(stream, "/%s", model_order_name(entry->failure));
    if (step->name) fprintf(stream, "  %s", step->name);
    else if (step->address) fprintf(stream, "  %p", (void *)step->address);
    if (step->reads) fprintf(stream, "  read 0x%jx", (uintmax_t)step->read);
    if (step->writes) fprintf(stream, "  wrote 0x%jx", (uintmax_t)step->written);
    else if (step->site->operation == MODEL_CAS) fprintf(stream, "  failed");
    if (step->old) fprintf(stream, step->reads ? "  (not the newest)" : "  (below the newest)");
}

void model_print_schedule(FILE *stream) {
    fprintf(stream, "  %s\n  after %ju executions, with %u preemption%s:\n", result.message,
            (uintmax_t)result.executions, result.preemptions, result.preemptions == 1 ? "" : "s");
    for (unsigned i = 0; i < step_count; i++) {
        if (i == PRINTED_STEPS / 2 && step_count > PRINTED_STEPS) {
            fprintf(stream, "  ...\n");
            i = step_count - PRINTED_STEPS / 2;
        }
        fprintf(stream, "  %4u  %*sT%u  ", i + 1, steps[i].thread * 2, "", steps[i].thread);
        print_step(stream, &steps[i]);
        fputc('\n', stream);
    }
}
