/* Replays a trace: what a real program asked of its allocator, asked again of this program's.
 *
 *     bench_replay TRACE REPEATS [LOOK_EVERY]
 *
 * TRACE is a file in the format of trace.h that is not packed. Before the clock starts it is turned into steps for each
 * thread. Then these are gone through, REPEATS times, each recorded thread on one of its own, which begins with its
 * first event and ends after its last. All events happen in the recorded order: one thread at a time has the turn, and
 * passes it on where the recorded threads alternated.
 *
 * A byte in each page of a block is written, and its last; the first and the last are read again when it is freed or
 * reallocated, and those that will be written must be zero in a block from calloc. What is alive at the end of the
 * trace is freed after the clock has stopped. One operation is one call. The checksum folds the trace's own, the
 * operations and the number of blocks found damaged.
 *
 * Figures: `calls` and `turns`, how many of them one repeat has; `live_peak`, the most bytes that were alive, as they
 * were asked for; `heap_peak`, how much more memory was resident at the most than before the first step, with stacks
 * of threads in it; `heap_per_live`, their ratio. With LOOK_EVERY it looks at its memory after every so many events,
 * which takes time: `anonymous_peak`, how much more was anonymous at such a look, at the most, than before the first
 * step. The kernel counts that one exactly, and adds up the others later.
 */
#include "bench.h"
#include "bench_steps.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

enum { SPIN_COUNT = 100 };

struct player {
    _Alignas(64) const struct bench_step *steps;
    uint64_t damaged_count;
    pthread_t thread;
    bool is_started; /* belongs to whoever has the turn */
    _Alignas(64) _Atomic uint32_t given_turns;
    _Atomic uint32_t is_asleep;
};

static struct player *players; /* the first plays on the main thread */
static void **slots;

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

static void *play(void *argument);

static void pass_turn(struct player *player) {
    if (!player->is_started) {
        player->is_started = true;
        if (pthread_create(&player->thread, NULL, play, player) != 0) {
            bench_fail("no thread");
        }
        return;
    }
    /* pairs with wait_for_turn: either it finds the turn, or it is found asleep */
    atomic_fetch_add_explicit(&player->given_turns, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&player->is_asleep, memory_order_seq_cst)) {
        syscall(SYS_futex, &player->given_turns, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static void wait_for_turn(struct player *self, uint32_t taken_turns) {
    for (unsigned i = 0; i < SPIN_COUNT; i++) {
        if (atomic_load_explicit(&self->given_turns, memory_order_acquire) != taken_turns) {
            return;
        }
    }
    atomic_store_explicit(&self->is_asleep, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&self->given_turns, memory_order_seq_cst) == taken_turns) {
        syscall(SYS_futex, &self->given_turns, FUTEX_WAIT_PRIVATE, taken_turns, NULL, NULL, 0);
    }
    atomic_store_explicit(&self->is_asleep, 0, memory_order_relaxed);
}

/* ---- Looks ------------------------------------------------------------------------------------------------------- */

static uint64_t anonymous_peak_kib; /* belongs to whoever has the turn */

static uint64_t anonymous_kib(void) { return bench_kernel_kib("/proc/self/smaps_rollup", "\nAnonymous:"); }

static void look(void) {
    uint64_t now_kib = anonymous_kib();
    if (now_kib > anonymous_peak_kib) {
        anonymous_peak_kib = now_kib;
    }
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static uint8_t tag_of(const struct bench_step *step) { return (uint8_t)(step->slot + 1); }

static void begin_block(const struct bench_step *step, void *block) {
    if (step->bytes) {
        if (!block) {
            bench_fail("out of memory");
        }
        bench_touch_pages(block, step->bytes, tag_of(step));
    }
    slots[step->slot] = block;
}

static bool is_damaged(const struct bench_step *step) {
    return step->bytes && !bench_holds(slots[step->slot], step->bytes, tag_of(step));
}

static bool is_zero(const struct bench_step *step, const void *block) {
    const volatile uint8_t *payload = block;
    uint8_t bits = step->bytes ? payload[step->bytes - 1] : 0;
    for (size_t offset = 0; offset < step->bytes; offset += BENCH_PAGE_STEP) {
        bits |= payload[offset];
    }
    return bits == 0;
}

static void *align(const struct bench_step *step) {
    void *block = NULL;
    size_t alignment = (size_t)1 << step->shift;
    return posix_memalign(&block, alignment < sizeof block ? sizeof block : alignment, step->bytes) ? NULL : block;
}

static void *play(void *argument) {
    struct player *self = argument;
    uint32_t taken_turns = 0;
    for (const struct bench_step *step = self->steps;; step++) {
        void *block;
        switch (step->kind) {
        case TRACE_MALLOC: begin_block(step, malloc(step->bytes)); break;
        case TRACE_CALLOC:
            block = calloc(1, step->bytes);
            self->damaged_count += block && !is_zero(step, block);
            begin_block(step, block);
            break;
        case TRACE_ALIGNED: begin_block(step, align(step)); break;
        case TRACE_REALLOCATED: begin_block(step, realloc(NULL, step->bytes)); break;
        case TRACE_REALLOC:
            self->damaged_count += is_damaged(step);
            step++;
            block = realloc(slots[step->slot], step->bytes);
            self->damaged_count += block && step[-1].bytes && *(uint8_t *)block != tag_of(step);
            begin_block(step, block);
            break;
        case TRACE_FREE:
            self->damaged_count += is_damaged(step);
            free(slots[step->slot]);
            break;
        case BENCH_PASS: pass_turn(&players[step->slot]); break;
        case BENCH_LOOK: look(); break;
        case BENCH_WAIT: wait_for_turn(self, taken_turns++); break;
        default: return NULL;
        }
    }
}

/* Returns the seconds that the steps took. */
static double replay(const struct bench_steps *steps) {
    for (uint32_t i = 0; i < steps->thread_count; i++) {
        players[i].steps = steps->of_thread[i];
        players[i].given_turns = 0;
        players[i].is_started = i == 0;
    }
    double start = bench_now();
    play(&players[0]);
    double seconds = bench_now() - start;
    for (uint32_t i = 1; i < steps->thread_count; i++) {
        if (players[i].is_started) {
            pthread_join(players[i].thread, NULL);
        }
    }
    players[0].steps = steps->closing;
    play(&players[0]);
    return seconds;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static uint64_t peak_kib(void) { return bench_kernel_kib("/proc/self/status", "\nVmHWM:"); }

/* The peak of resident memory becomes what is resident now. Returns it in KiB; 0 where the kernel can't do that. */
static uint64_t reset_peak(void) {
    int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    bool is_reset = file >= 0 && write(file, "5", 1) == 1;
    close(file);
    return is_reset ? peak_kib() : 0;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 2, 3, "bench_replay TRACE REPEATS [LOOK_EVERY]");
    uint64_t repeat_count = bench_number(argv[2], 1), look_every = argc > 3 ? bench_number(argv[3], 1) : 0;
    struct bench_steps steps = bench_steps_of(argv[1], look_every);
    players = bench_map(steps.thread_count, sizeof *players);
    slots = bench_map(steps.slot_count, sizeof *slots);

    uint64_t before_kib = reset_peak(), anonymous_before_kib = anonymous_peak_kib = anonymous_kib();
    double seconds = 0;
    for (uint64_t i = 0; i < repeat_count; i++) {
        seconds += replay(&steps);
    }
    double heap_bytes = (double)(peak_kib() - before_kib) * 1024;

    uint64_t damaged_count = 0;
    for (uint32_t i = 0; i < steps.thread_count; i++) {
        damaged_count += players[i].damaged_count;
    }
    uint64_t operation_count = steps.operation_count * repeat_count;
    bench_figure("calls", (double)steps.operation_count, "count");
    bench_figure("turns", (double)steps.turn_count, "count");
    bench_figure("live_peak", (double)steps.live_peak_bytes, "bytes");
    if (before_kib) {
        bench_figure("heap_peak", heap_bytes, "bytes");
        bench_figure("heap_per_live", heap_bytes / (double)steps.live_peak_bytes, "x");
    }
    if (look_every && anonymous_before_kib) {
        bench_figure("anonymous_peak", (double)(anonymous_peak_kib - anonymous_before_kib) * 1024, "bytes");
    }
    bench_close(operation_count, seconds, bench_fold(bench_fold(steps.checksum, operation_count), damaged_count));
    return 0;
}
