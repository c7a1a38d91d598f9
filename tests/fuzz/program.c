#include "program.h"

#include <stdio.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Sizes at which something changes: classes, groups of classes, small to large, units, slabs, SuperSlabs, runs to
 * mappings, what is refused. */
static const size_t sizes[] = {0,
                               1,
                               8,
                               16,
                               24,
                               32,
                               48,
                               64,
                               80,
                               112,
                               128,
                               176,
                               240,
                               256,
                               288,
                               320,
                               448,
                               512,
                               640,
                               768,
                               1024,
                               1280,
                               1536,
                               1792,
                               2 * KIB,
                               2560,
                               3 * KIB,
                               4 * KIB,
                               5 * KIB,
                               6 * KIB,
                               8 * KIB,
                               10 * KIB,
                               12 * KIB,
                               16 * KIB,
                               20 * KIB,
                               24 * KIB,
                               28 * KIB,
                               32 * KIB,
                               36 * KIB,
                               48 * KIB,
                               64 * KIB,
                               65 * KIB,
                               96 * KIB,
                               128 * KIB,
                               192 * KIB,
                               256 * KIB,
                               384 * KIB,
                               512 * KIB,
                               640 * KIB,
                               MIB,
                               1088 * KIB,
                               1536 * KIB,
                               2 * MIB,
                               2112 * KIB,
                               3 * MIB,
                               4 * MIB,
                               6 * MIB,
                               8 * MIB,
                               16 * MIB,
                               32 * MIB,
                               33 * MIB,
                               40 * MIB,
                               64 * MIB,
                               MIB << 20,
                               PTRDIFF_MAX / 2,
                               PTRDIFF_MAX,
                               SIZE_MAX / 2 + 1,
                               SIZE_MAX};
static const long changes[] = {0, -1, 1, -16, 16, -4096, 4096, 7};

static const size_t alignments[] = {16,
                                    1,
                                    2,
                                    4,
                                    8,
                                    16,
                                    32,
                                    64,
                                    128,
                                    256,
                                    512,
                                    1024,
                                    2048,
                                    4096,
                                    8192,
                                    16 * KIB,
                                    32 * KIB,
                                    64 * KIB,
                                    128 * KIB,
                                    256 * KIB,
                                    MIB,
                                    2 * MIB,
                                    4 * MIB,
                                    16 * MIB,
                                    64 * MIB,
                                    0,
                                    3,
                                    24,
                                    48,
                                    MIB << 20,
                                    SIZE_MAX / 4 + 1,
                                    SIZE_MAX / 2 + 1};
static const unsigned counts[] = {1,  2,  3,   4,   7,   8,   9,   15,  16,  17,  31,  32,  33,  48,  63,   64,
                                  65, 96, 127, 128, 129, 200, 255, 256, 257, 300, 400, 511, 512, 513, 1000, 1024};

static const char *const kind_names[] = {
#define STEP_KIND(name, weight) #name,
    STEP_KINDS(STEP_KIND)
#undef STEP_KIND
};
static const unsigned weights[] = {
#define STEP_KIND(name, weight) weight,
    STEP_KINDS(STEP_KIND)
#undef STEP_KIND
};

#define STEP_KIND(name, weight) +weight
_Static_assert(0 STEP_KINDS(STEP_KIND) == 64, "each code of six bits is a kind");
#undef STEP_KIND
_Static_assert(COUNT_OF(alignments) == 32 && COUNT_OF(counts) == 32 && COUNT_OF(changes) == 8,
               "choices have five bits");

size_t program_alignment(unsigned choice) { return alignments[choice]; }
unsigned program_count(unsigned choice) { return counts[choice]; }
const char *program_kind_name(enum step_kind kind) { return kind_names[kind]; }

static enum step_kind kind_of(unsigned code) {
    unsigned kind = 0;
    while (code >= weights[kind]) code -= weights[kind++];
    return (enum step_kind)kind;
}

static void decode_step(struct step *step, const uint8_t *bytes) {
    step->kind = kind_of(bytes[0] & 63);
    step->thread = bytes[0] >> 6;
    step->slot = bytes[1] % PROGRAM_SLOTS;
    step->variant = bytes[1] >> 6;
    step->choice = bytes[3] & 31;
    step->change = bytes[3] >> 5;
    step->size = sizes[bytes[2] % COUNT_OF(sizes)] + (size_t)changes[step->change];
}

void program_decode(struct program *program, const uint8_t *bytes, size_t length) {
    memset(program, 0, sizeof *program);
    uint8_t header[HEADER_BYTES] = {0};
    memcpy(header, bytes, length < HEADER_BYTES ? length : HEADER_BYTES);
    program->is_free_running = (header[0] & 7) == 7;
    program->frees_last = header[0] >> 3 & 1;
    program->setting_count = header[1] % (PROGRAM_SETTINGS + 1);
    for (unsigned i = 0; i < program->setting_count; i++) {
        program->settings[i].knob = header[2 + 2 * i];
        program->settings[i].value = header[3 + 2 * i];
    }
    for (size_t at = HEADER_BYTES; at < length && program->step_count < PROGRAM_STEPS; at += STEP_BYTES) {
        uint8_t step[STEP_BYTES] = {0};
        memcpy(step, bytes + at, length - at < STEP_BYTES ? length - at : STEP_BYTES);
        decode_step(&program->steps[program->step_count++], step);
    }
}

/* ---- Text ------------------------------------------------------------------------------------------------------- */

static void print_step(const struct step *step) {
    unsigned slot = step->slot, group = step->slot % PROGRAM_GROUPS;
    size_t alignment = program_alignment(step->choice);
    switch (step->kind) {
    case STEP_MALLOC: printf("b[%u] = malloc(%#zx);", slot, step->size); break;
    case STEP_CALLOC:
        printf("b[%u] = calloc(%u, %#zx);", slot, step->variant + 1, step->size / (step->variant + 1));
        break;
    case STEP_REALLOC: printf("b[%u] = realloc(b[%u], %#zx);", slot, slot, step->size); break;
    case STEP_REALLOCARRAY:
        printf("b[%u] = reallocarray(b[%u], %u, %#zx);", slot, slot, step->variant + 1,
               step->size / (step->variant + 1));
        break;
    case STEP_FREE: printf("free(b[%u]);", slot); break;
    case STEP_ALIGNED_ALLOC: printf("b[%u] = aligned_alloc(%#zx, %#zx);", slot, alignment, step->size); break;
    case STEP_POSIX_MEMALIGN: printf("posix_memalign(&b[%u], %#zx, %#zx);", slot, alignment, step->size); break;
    case STEP_MEMALIGN: printf("b[%u] = memalign(%#zx, %#zx);", slot, alignment, step->size); break;
    case STEP_VALLOC: printf("b[%u] = valloc(%#zx);", slot, step->size); break;
    case STEP_PVALLOC: printf("b[%u] = pvalloc(%#zx);", slot, step->size); break;
    case STEP_USABLE:
        printf("%smemset(b[%u], pattern, malloc_usable_size(b[%u]));", step->variant & 1 ? "move the block; " : "",
               slot, slot);
        break;
    case STEP_FREE_SIZED: printf("free_sized(b[%u], its size);", slot); break;
    case STEP_FREE_ALIGNED_SIZED: printf("free_aligned_sized(b[%u], its alignment, its size);", slot); break;
    case STEP_FILL:
        printf("group %u: %u blocks more, %s(%#zx);", group, program_count(step->choice),
               step->variant == 0 ? "calloc" : "malloc", step->size);
        break;
    case STEP_EMPTY:
        printf("group %u: free %s;", group,
               step->variant == 0   ? "all, the oldest first"
               : step->variant == 1 ? "all, the newest first"
               : step->variant == 2 ? "every other block"
                                    : "the newest half");
        break;
    case STEP_TRIM: printf("malloc_trim(0);"); break;
    case STEP_PREWARM: printf("hak_thread_prewarm(%#zx);", step->size); break;
    case STEP_STATISTICS: printf("hak_stats(...);"); break;
    case STEP_OWNS: printf("hak_owns(b[%u]);", slot); break;
    case STEP_OVERFLOW:
        printf("calloc(SIZE_MAX / 2, 3); reallocarray(b[%u], SIZE_MAX / 2, 3); free(NULL);", slot);
        break;
    case STEP_END_THREAD:
        printf("pthread_exit();%s", step->variant & 1 ? " /* with destructors that allocate */" : "");
        break;
    case STEP_FORK: printf("if (fork() == 0) { the next %u steps; exit; }", step->choice); break;
    case STEP_REFUSE:
        printf("/* the kernel refuses: calls %#x, after %u, %u times */", step->slot, step->choice, 1u << step->change);
        break;
    case STEP_ALLOW: printf("/* the kernel refuses nothing */"); break;
    case STEP_KNOB: printf("/* knob %u: value %u */", step->slot, step->variant); break;
    case STEP_BACKGROUND: printf("/* background: part %u */", step->slot % 8); break;
    case STEP_PROFILE:
        printf("hak_profile_%s;", step->variant == 0 ? "stop()" : step->variant == 1 ? "save()" : "start(...)");
        break;
    case STEP_TIGHT: printf("/* memory is %s */", step->variant & 1 ? "tight" : "plentiful"); break;
    case STEP_KIND_COUNT: break;
    }
}

void program_print(const struct program *program, const char *first_line) {
    printf("%s/* %s%s */\n", first_line, program->is_free_running ? "threads run freely" : "a step at a time",
           program->frees_last ? ", threads end before the last frees" : "");
    for (unsigned i = 0; i < program->setting_count; i++)
        printf("%s/* knob %u: value %u */\n", first_line, program->settings[i].knob, program->settings[i].value % 4);
    for (unsigned i = 0; i < program->step_count; i++) {
        printf("%s%3u  thread %u: ", first_line, i, program->steps[i].thread);
        print_step(&program->steps[i]);
        printf("\n");
    }
}

/* ---- Mutation --------------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static unsigned below(uint64_t *state, size_t limit) { return limit == 0 ? 0 : (unsigned)(next_random(state) % limit); }

static size_t steps_in(size_t length) { return length <= HEADER_BYTES ? 0 : (length - HEADER_BYTES) / STEP_BYTES; }
static uint8_t *step_at(uint8_t *bytes, size_t step) { return bytes + HEADER_BYTES + step * STEP_BYTES; }

/* Makes room for `count` steps before step `at`; returns how many there is room for. */
static size_t open_gap(uint8_t *bytes, size_t *steps, size_t most, size_t at, size_t count) {
    if (count > most - *steps) count = most - *steps;
    memmove(step_at(bytes, at + count), step_at(bytes, at), (*steps - at) * STEP_BYTES);
    *steps += count;
    return count;
}

static void close_gap(uint8_t *bytes, size_t *steps, size_t at, size_t count) {
    memmove(step_at(bytes, at), step_at(bytes, at + count), (*steps - at - count) * STEP_BYTES);
    *steps -= count;
}

static void change_once(uint8_t *bytes, size_t *steps, size_t most, const uint8_t *other, size_t other_steps,
                        uint64_t *random) {
    size_t at = below(random, *steps + 1), count = 1 + below(random, below(random, 4) == 0 ? 16 : 3);
    unsigned what = below(random, 10);
    if (*steps == 0) what = 0;
    switch (what) {
    case 0:
    case 1: /* new steps */
        count = open_gap(bytes, steps, most, at, count);
        for (size_t i = 0; i < count * STEP_BYTES; i++) step_at(bytes, at)[i] = (uint8_t)next_random(random);
        break;
    case 2: /* fewer */
        at = below(random, *steps);
        close_gap(bytes, steps, at, count < *steps - at ? count : *steps - at);
        break;
    case 3: { /* some once more */
        uint8_t copy[16 * STEP_BYTES];
        size_t from = below(random, *steps);
        if (count > *steps - from) count = *steps - from;
        memcpy(copy, step_at(bytes, from), count * STEP_BYTES);
        count = open_gap(bytes, steps, most, at, count);
        memcpy(step_at(bytes, at), copy, count * STEP_BYTES);
        break;
    }
    case 4: { /* of the other, which may be the same one */
        if (other_steps == 0) break;
        size_t from = below(random, other_steps);
        count = 1 + below(random, 40);
        if (count > other_steps - from) count = other_steps - from;
        count = open_gap(bytes, steps, most, at, count);
        memmove(step_at(bytes, at), other + HEADER_BYTES + from * STEP_BYTES, count * STEP_BYTES);
        break;
    }
    case 5: /* the header */ bytes[below(random, HEADER_BYTES)] = (uint8_t)next_random(random); break;
    case 6: { /* another thread */
        uint8_t *step = step_at(bytes, below(random, *steps));
        step[0] = (uint8_t)((step[0] & 63) | below(random, PROGRAM_THREADS) << 6);
        break;
    }
    case 7: { /* the slot of another step */
        size_t from = below(random, *steps);
        step_at(bytes, below(random, *steps))[1] = step_at(bytes, from)[1];
        break;
    }
    default: step_at(bytes, below(random, *steps))[below(random, STEP_BYTES)] = (uint8_t)next_random(random); break;
    }
}

size_t program_mutate(uint8_t *bytes, size_t length, size_t capacity, const uint8_t *other, size_t other_length,
                      uint64_t seed) {
    uint64_t random = seed;
    size_t most = steps_in(capacity), steps = steps_in(length);
    if (capacity < HEADER_BYTES) return 0;
    if (length < HEADER_BYTES) memset(bytes + length, 0, HEADER_BYTES - length);
    if (most > PROGRAM_STEPS) most = PROGRAM_STEPS;
    if (steps > most) steps = most;
    for (unsigned i = 1 + below(&random, 5); i > 0; i--)
        change_once(bytes, &steps, most, other, steps_in(other_length), &random);
    return HEADER_BYTES + steps * STEP_BYTES;
}
