#include "observe/stack.h"

#include <string.h>

#include "base/atomic.h"
#include "base/bits.h"
#include "observe/unwind.h"
#include "os/inspect.h"
#include "os/os.h"

static const uintptr_t least_code_address = 4096, largest_frame_bytes = 1 << 20, largest_record_bytes = 128 << 10;

/* User space has 48 bits; above them, processors of ARM sign return addresses. */
static const uintptr_t address_mask = ((uintptr_t)1 << 48) - 1;

/* ---- What the tables said ---------------------------------------------------------------------------------------- */

enum { KNOWN_BITS = 12 };

/* A rule for an address, and both in one word: two threads that write the same entry may leave the halves of two. */
static struct { HAK_ATOMIC(uint64_t) rule, code_and_rule; } known_rules[1 << KNOWN_BITS];

static struct hak_unwind_rule rule_at(uintptr_t code) {
    uint32_t slot = (uint32_t)((code * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - KNOWN_BITS));
    uint64_t word = hak_atomic_load(&known_rules[slot].rule, relaxed);
    struct hak_unwind_rule rule;
    if ((hak_atomic_load(&known_rules[slot].code_and_rule, relaxed) ^ word) == code) {
        memcpy(&rule, &word, sizeof rule);
        return rule;
    }
    rule = hak_unwind_rule_at(code);
    memcpy(&word, &rule, sizeof word);
    hak_atomic_store(&known_rules[slot].rule, word, relaxed);
    hak_atomic_store(&known_rules[slot].code_and_rule, code ^ word, relaxed);
    return rule;
}

/* ---- From function to function ----------------------------------------------------------------------------------- */

struct walk {
    struct hak_stack_place place;
    uintptr_t end;    /* of the stack; 0: it isn't known */
    uintptr_t page;   /* can be read */
    bool knows_stack; /* else place.stack is only a bound from below */
};

HAK_UNCHECKED static uintptr_t word_at(uintptr_t at) { return *(const uintptr_t *)at; }

static bool read_word(struct walk *walk, uintptr_t at, uintptr_t *word) {
    if (at % sizeof *word != 0) return false;
    if (walk->end == 0) return hak_os_peek_memory(at, word, sizeof *word);
    if (at >= walk->end || !hak_unwind_can_read(&walk->page, at, sizeof *word)) return false;
    *word = word_at(at);
    return true;
}

/* By what a function begins its frame with, on x86-64 and aarch64: the caller's frame pointer, then the return
 * address. */
static bool step_by_record(struct walk *walk) {
    uintptr_t at = walk->place.frame, frame, code;
    if (at - walk->place.stack > largest_record_bytes) return false; /* nor below it */
    if (!read_word(walk, at, &frame) || !read_word(walk, at + sizeof at, &code)) return false;
    walk->place = (struct hak_stack_place){code & address_mask, at + 2 * sizeof at, frame};
#if defined(__aarch64__)
    walk->knows_stack = false; /* there the record lies at the frame's lower end */
#endif
    return walk->place.code >= least_code_address;
}

static bool step_by_rule(struct walk *walk, struct hak_unwind_rule rule) {
    const struct hak_stack_place *from = &walk->place;
    uintptr_t base = rule.kind == HAK_UNWIND_BY_STACK ? from->stack : from->frame;
    uintptr_t end = base + (uintptr_t)(rule.words * 8), frame = from->frame, code;
    if (rule.kind == HAK_UNWIND_AT_FRAME && (!read_word(walk, end, &end) || !read_word(walk, from->frame, &frame)))
        return false;
    if (end <= from->stack || end - from->stack > largest_frame_bytes) return false;
    if (!read_word(walk, end + (uintptr_t)(rule.caller_words * 8), &code)) return false;
    if (rule.frame_words != 0 && !read_word(walk, end + (uintptr_t)(rule.frame_words * 8), &frame)) return false;
    walk->place = (struct hak_stack_place){code & address_mask, end, frame};
    walk->knows_stack = true;
    return walk->place.code >= least_code_address;
}

static bool step(struct walk *walk) {
    struct hak_unwind_rule rule = rule_at(walk->place.code - 1); /* in the call, not behind it */
    if (rule.kind == HAK_UNWIND_END) return false;
    bool tells = rule.kind != HAK_UNWIND_UNKNOWN && (walk->knows_stack || rule.kind != HAK_UNWIND_BY_STACK);
    return tells ? step_by_rule(walk, rule) : step_by_record(walk);
}

static uint32_t go_up(struct walk *walk, uintptr_t *addresses) {
    uint32_t depth = 0;
    do {
        addresses[depth++] = walk->place.code;
    } while (depth < HAK_STACK_MOST && step(walk));
    return depth;
}

/* ---- Where it begins --------------------------------------------------------------------------------------------- */

/* This function itself, in the middle of it. */
#if defined(__x86_64__)
#define HERE(place)                                                                                                    \
    __asm__ volatile("leaq 0(%%rip), %0\n\tmovq %%rsp, %1\n\tmovq %%rbp, %2"                                           \
                     : "=&r"((place).code), "=&r"((place).stack), "=&r"((place).frame))
#elif defined(__aarch64__)
#define HERE(place)                                                                                                    \
    __asm__ volatile("adr %0, .+4\n\tmov %1, sp\n\tmov %2, x29"                                                        \
                     : "=&r"((place).code), "=&r"((place).stack), "=&r"((place).frame))
#else
#define HERE(place) ((place) = (struct hak_stack_place){1, 0, 0})
#endif

uint32_t hak_stack_walk(const void *frame, uintptr_t *addresses) {
    uintptr_t begin = (uintptr_t)frame;
    struct walk walk = {
        .end = hak_os_stack_end(begin), .page = hak_align_down(begin, hak_os_page_bytes()), .knows_stack = true};
    HERE(walk.place);
    while (walk.place.stack <= begin) {
        struct hak_unwind_rule rule = rule_at(walk.place.code - 1);
        bool tells = rule.kind != HAK_UNWIND_UNKNOWN && rule.kind != HAK_UNWIND_END;
        if (tells && step_by_rule(&walk, rule)) continue;
        /* Code of this library without tables. */
        walk.place = (struct hak_stack_place){0, begin, begin};
        if (!step_by_record(&walk)) return 0;
    }
    return go_up(&walk, addresses);
}

uint32_t hak_stack_walk_from(struct hak_stack_place place, uintptr_t *addresses) {
    struct walk walk = {.place = place, .end = hak_os_stack_end(place.stack), .knows_stack = true};
    return go_up(&walk, addresses);
}
