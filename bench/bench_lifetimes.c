/* A program that runs for long: blocks of a recorded program's sizes and lifetimes, and some that live much longer.
 *
 *     bench_lifetimes TRACE OPERATIONS SEED
 *
 * Each block has the size and, counted in operations, the lifetime of one of the trace's. It is one of those that the
 * trace allocates within an eighth of its length; in the course of the run that part goes through the trace 24 times, in
 * ten steps, as a service goes through its phases once an hour. Of 16 blocks one lives 16 times as long, of 256 one 256 times,
 * and of 4096 one 4096 times. A block that the trace never frees has the trace's length for a lifetime. One operation is
 * one malloc or one free; threads are not replayed. All pages of a block are written.
 *
 * Resident memory is looked at ten times an hour. Figures, of all looks (peak), of those of the sixth hour (early) and of
 * the last one (late), without what was resident before the first block:
 *
 *     rss           resident memory; early and late are means
 *     over_packed   rss / packed, where packed is what no placement can do without: the bytes that are alive, as they were
 *                   asked for, each block rounded up to 16, all of them together to pages
 *
 * A heap that wears out has more of it late than early.
 */
#include "bench_steps.h"

enum {
    HOURS = 24,
    EARLY_HOUR = 5,
    LOOKS_PER_HOUR = 10,
    WINDOW_SHARE = 8, /* of the trace */
    LONGER_SHIFT = 4, /* of 1 << 4 blocks one lives 1 << 4 times as long, */
    LONGER_STEPS = 3, /* and so on */
    WHEEL_SLOTS = 1 << 20,
    ALIGNMENT = 16,
};

/* What is known of the trace's blocks, in the order of their allocation. */
struct origin {
    uint64_t bytes;
    uint64_t lifetime; /* operations */
};

struct origins {
    struct origin *all;
    size_t count;
    uint64_t length; /* operations of the trace */
};

/* ---- The trace --------------------------------------------------------------------------------------------------- */

struct reading {
    struct origins origins;
    size_t *born;    /* by slot: which origin is there */
    uint64_t *times; /* by slot: of its allocation */
};

static void end_block(struct reading *reading, uint32_t slot) {
    reading->origins.all[reading->born[slot]].lifetime = reading->origins.length - reading->times[slot];
}

static void begin_block(struct reading *reading, const struct bench_step *step) {
    reading->born[step->slot] = reading->origins.count;
    reading->times[step->slot] = reading->origins.length;
    reading->origins.all[reading->origins.count++] = (struct origin){step->bytes ? step->bytes : 1, 0};
}

/* A realloc is a new block and the end of the old one. */
static struct origins origins_of(const struct bench_steps *steps) {
    struct reading reading = {.born = bench_scratch(steps->slot_count, sizeof *reading.born),
                              .times = bench_scratch(steps->slot_count, sizeof *reading.times)};
    reading.origins.all = bench_scratch(steps->operation_count, sizeof *reading.origins.all);
    const struct bench_step **places = bench_scratch(steps->thread_count, sizeof *places);
    for (uint32_t i = 0; i < steps->thread_count; i++) {
        places[i] = steps->of_thread[i];
    }
    for (uint32_t thread = 0;;) {
        const struct bench_step *step = places[thread]++;
        if (step->kind == BENCH_END && thread == 0) {
            break;
        }
        if (step->kind == BENCH_PASS) {
            thread = step->slot;
        } else if (step->kind == TRACE_FREE || step->kind == TRACE_REALLOC) {
            end_block(&reading, step->slot);
        }
        if (step->kind == TRACE_MALLOC || step->kind == TRACE_CALLOC || step->kind == TRACE_ALIGNED ||
            step->kind == TRACE_REALLOCATED) {
            begin_block(&reading, step);
        } else if (step->kind == TRACE_REALLOC) {
            begin_block(&reading, places[thread]++);
        }
        reading.origins.length += step->kind != BENCH_PASS && step->kind != BENCH_WAIT;
    }
    for (size_t i = 0; i < reading.origins.count; i++) {
        struct origin *origin = &reading.origins.all[i];
        origin->lifetime = origin->lifetime ? origin->lifetime : reading.origins.length;
    }
    bench_drop(reading.born, steps->slot_count, sizeof *reading.born);
    bench_drop(reading.times, steps->slot_count, sizeof *reading.times);
    bench_drop(places, steps->thread_count, sizeof *places);
    return reading.origins;
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

/* A block that is alive; in a list of the slot of the wheel in which it ends, or of those that are not used. */
struct life {
    void *block;
    uint64_t bytes;
    uint64_t end;  /* the operation at which it is freed */
    uint32_t next; /* index; 0: none */
    uint8_t tag;
};

struct run {
    struct life *lives; /* [0] is none */
    uint32_t *wheel;
    uint32_t unused;
    uint32_t life_limit, life_count;
    uint64_t packed_bytes;
    uint64_t operations, damaged_count, checksum;
};

static uint64_t packed_bytes(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Lives that are enough for the densest part of the trace, with some to spare for chance. */
static uint32_t expected_lives(const struct origins *origins) {
    size_t window = origins->count / WINDOW_SHARE + 1;
    double sum = 0, most = 0;
    for (size_t i = 0; i < origins->count; i++) {
        sum += (double)origins->all[i].lifetime;
        sum -= i >= window ? (double)origins->all[i - window].lifetime : 0;
        most = sum > most ? sum : most;
    }
    double expected = most / (double)window / 2 * (LONGER_STEPS + 1); /* every other operation allocates */
    double limit = 2 * expected + (1 << 16);
    if (limit > UINT32_MAX) {
        bench_refuse("blocks of this trace live too long");
    }
    return (uint32_t)limit;
}

static uint64_t lifetime_of(const struct origin *origin, uint64_t draw) {
    unsigned shift = 0;
    while (shift < LONGER_SHIFT * LONGER_STEPS && (draw >> shift & ((1 << LONGER_SHIFT) - 1)) == 0) {
        shift += LONGER_SHIFT;
    }
    return origin->lifetime << shift;
}

static void begin_life(struct run *run, const struct origin *origin, struct bench_random *random) {
    uint32_t index = run->unused ? run->unused : ++run->life_count;
    if (index >= run->life_limit) {
        bench_fail("more blocks are alive than this trace leads to expect");
    }
    struct life *life = &run->lives[index];
    run->unused = run->unused ? life->next : 0;
    uint64_t draw = bench_random_next(random);
    uint64_t end = run->operations + lifetime_of(origin, draw) + 1;
    uint8_t tag = (uint8_t)(draw >> 56);
    uint32_t *slot = &run->wheel[end % WHEEL_SLOTS];
    *life = (struct life){bench_allocate(origin->bytes), origin->bytes, end, *slot, tag};
    *slot = index;
    bench_touch_pages(life->block, life->bytes, tag);
    run->packed_bytes += packed_bytes(life->bytes);
    run->checksum = bench_fold(run->checksum, life->bytes << 8 | tag);
    run->operations++;
}

static void end_life(struct run *run, struct life *life) {
    run->damaged_count += !bench_holds(life->block, life->bytes, life->tag);
    run->packed_bytes -= packed_bytes(life->bytes);
    free(life->block);
    life->next = run->unused;
    run->unused = (uint32_t)(life - run->lives);
    run->operations++;
}

/* Frees what ends at this operation, or all that ends in this slot of the wheel at any time. */
static void end_lives(struct run *run, uint64_t now, bool are_all) {
    uint32_t *place = &run->wheel[now % WHEEL_SLOTS];
    while (*place) {
        struct life *life = &run->lives[*place];
        if (are_all || life->end <= now) {
            *place = life->next;
            end_life(run, life);
        } else {
            place = &life->next;
        }
    }
}

/* ---- Looks ------------------------------------------------------------------------------------------------------- */

struct looks {
    uint64_t before_bytes; /* that was resident when the run began */
    uint64_t peak_bytes;
    struct {
        double resident, packed; /* sums over the looks */
    } hours[HOURS];
};

static void look(struct looks *looks, const struct run *run, uint64_t hour) {
    uint64_t resident = bench_resident_bytes() - looks->before_bytes;
    looks->peak_bytes = resident > looks->peak_bytes ? resident : looks->peak_bytes;
    looks->hours[hour].resident += (double)resident;
    looks->hours[hour].packed += (double)bench_round_to_pages(run->packed_bytes);
}

static void report(const struct looks *looks) {
    const int hours[] = {EARLY_HOUR, HOURS - 1};
    const char *const rss_names[] = {"rss_early", "rss_late"}, *const ratio_names[] = {"over_packed_early",
                                                                                       "over_packed_late"};
    bench_figure("rss_peak", (double)looks->peak_bytes, "bytes");
    for (int i = 0; i < 2; i++) {
        double resident = looks->hours[hours[i]].resident;
        bench_figure(rss_names[i], resident / LOOKS_PER_HOUR, "bytes");
        bench_figure(ratio_names[i], resident / looks->hours[hours[i]].packed, "x");
    }
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 3, "bench_lifetimes TRACE OPERATIONS SEED");
    enum { LOOKS = HOURS * LOOKS_PER_HOUR };
    uint64_t per_look = bench_number_between(argv[2], LOOKS, UINT64_MAX >> LONGER_SHIFT * LONGER_STEPS) / LOOKS;
    struct bench_random random = bench_random_seeded(bench_number(argv[3], 0), 0);
    struct bench_steps steps = bench_steps_of(argv[1], 0);
    struct origins origins = origins_of(&steps);
    if (!origins.count) {
        bench_refuse("%s: a trace without blocks", argv[1]);
    }
    struct run run = {.life_limit = expected_lives(&origins)};
    run.lives = bench_map(run.life_limit, sizeof *run.lives);
    run.wheel = bench_map(WHEEL_SLOTS, sizeof *run.wheel);
    size_t window = origins.count / WINDOW_SHARE + 1;
    struct looks looks = {.before_bytes = bench_resident_bytes()};
    uint64_t now = 0;
    double seconds = 0;

    for (uint64_t done = 0; done < LOOKS; done++) {
        double start = bench_now(), share_of_hour = (double)(done % LOOKS_PER_HOUR) / LOOKS_PER_HOUR;
        size_t first = (size_t)(share_of_hour * (double)origins.count);
        while (run.operations < (done + 1) * per_look) {
            size_t index = first + bench_pick_index(bench_random_next(&random), window);
            begin_life(&run, &origins.all[index % origins.count], &random);
            while (now <= run.operations) {
                end_lives(&run, now++, false);
            }
        }
        seconds += bench_now() - start;
        look(&looks, &run, done / LOOKS_PER_HOUR);
    }

    report(&looks);
    uint64_t operations = run.operations;
    for (uint64_t slot = 0; slot < WHEEL_SLOTS; slot++) {
        end_lives(&run, slot, true);
    }
    bench_close(operations, seconds, bench_fold(bench_fold(steps.checksum, run.checksum), run.damaged_count));
    return 0;
}
