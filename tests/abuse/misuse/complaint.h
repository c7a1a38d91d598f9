/* The message of a detected misuse is a contract. A victim that misuses the heap says on stdout which address it is
 * about to misuse, and then must be aborted after this one line on stderr:
 *
 *     hakmem: FUNCTION(0xADDRESS): WHAT
 *
 * WHAT is "double free of a block of N bytes", "invalid pointer: not a block of this heap" or
 * "invalid pointer: N bytes into a block of M bytes".
 */
#ifndef HAK_TEST_COMPLAINT_H
#define HAK_TEST_COMPLAINT_H

#include "case.h"

#define DOUBLE_FREE "double free of a block of "
#define NOT_A_BLOCK "invalid pointer: not a block of this heap"

static inline void *complaint_announce(const volatile void *address) {
    case_print(1, "%#lx", (unsigned long)(uintptr_t)address);
    return hidden(address);
}

static inline bool complaint_matches(const struct case_end *end, const char *function, const char *what) {
    char wanted[256];
    size_t address_length = strcspn(end->output, "\n");
    snprintf(wanted, sizeof wanted, "%s(%.*s): %s", function, (int)address_length, end->output, what);
    return address_length > 0 && strncmp(end->error, "hakmem: ", 8) == 0 && strstr(end->error, wanted) &&
           strchr(end->error, '\n') == end->error + strlen(end->error) - 1;
}

/* Runs the victim of the current case: it must die of a complaint by this function ("" for any) in either of these
 * words (or_what may be NULL). */
static inline void complaint_expect(const char *argument, const char *function, const char *what, const char *or_what) {
    struct case_end end = case_watch(argument);
    expect(end.status != -1, "%s: it hung", argument);
    expect(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT, "%s: wait status %#x; it said: %s%s", argument,
           (unsigned)end.status, end.output, end.error);
    expect(complaint_matches(&end, function, what) || (or_what && complaint_matches(&end, function, or_what)),
           "%s: \"%s(ADDRESS): %s\" is not what it said: %s%s", argument, function, what, end.output, end.error);
}

/* Many blocks of one size, in the order of their making. Only some of them are ever freed, so none of their slabs
 * becomes empty. */
enum { HERD_MAX = 20000, HERD_BYTES = 64 << 20 };

struct herd {
    void *blocks[HERD_MAX];
    unsigned count;
};

static inline void herd_make(struct herd *herd, size_t size) {
    size_t count = HERD_BYTES / (size + 16);
    herd->count = count < HERD_MAX ? (unsigned)count : HERD_MAX;
    for (unsigned i = 0; i < herd->count; i++) {
        herd->blocks[i] = malloc(size);
        expect(herd->blocks[i], "no memory");
    }
}

/* Frees the odd blocks of one of two halves: enough to make every cache overflow. */
static inline void herd_free_odd(struct herd *herd, int half) {
    unsigned middle = herd->count / 2;
    for (unsigned i = half == 0 ? 1 : middle | 1; i < (half == 0 ? middle : herd->count); i += 2) free(herd->blocks[i]);
}

/* A block that herd_free_odd leaves alone. */
static inline void *herd_victim(const struct herd *herd) { return herd->blocks[(herd->count / 4) & ~1u]; }

#endif
