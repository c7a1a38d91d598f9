/* Stacks of code without frame pointers, from functions with several kinds of frames to the program's beginning. Compiled
 * together with the library's sources. Exit status 0 when all holds.
 */
#include <alloca.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "observe/stack.h"

#define ALONE __attribute__((noinline))
enum { MOST = 100 };

extern char _start[];
static uintptr_t callers[MOST]; /* where each function here returns to, the outermost first */
static int caller_count;
static volatile size_t some_bytes = 100;

#define ENTER() (callers[caller_count++] = (uintptr_t)__builtin_extract_return_addr(__builtin_return_address(0)))

/* musl has no tables: a stack ends where it has called main. */
#ifdef __GLIBC__
static const bool goes_through_libc = true;
#else
static const bool goes_through_libc = false;
#endif

/* Functions of the C library may lie between those that are known. */
ALONE static int check(void) {
    enum { START_BYTES = 128 };
    uintptr_t addresses[HAK_STACK_MOST];
    ENTER();
    uint32_t depth = hak_stack_walk(__builtin_frame_address(0), addresses), next = 0;
    int left = caller_count--;
    while (left > 0 && next < depth) left -= addresses[next++] == callers[left - 1];
    bool is_whole = !goes_through_libc || addresses[depth - 1] - (uintptr_t)_start < START_BYTES;
    if (left == 0 && is_whole) return 0;
    fprintf(stderr, "stacks: %d of %d callers not found, %u addresses\n", left, caller_count + 1, depth);
    exit(1);
}

ALONE static int plainly(int more) {
    volatile char room[200];
    ENTER();
    room[more] = 0;
    int sum = more > 0 ? plainly(more - 1) : check();
    caller_count--;
    return sum + room[more];
}

ALONE static int with_any_size(int more) {
    volatile char *room = alloca(some_bytes);
    ENTER();
    room[0] = 0;
    int sum = plainly(more);
    caller_count--;
    return sum + room[0];
}

ALONE static int aligned(int more) {
    volatile char room[256] __attribute__((aligned(64)));
    ENTER();
    room[0] = 0;
    int sum = with_any_size(more);
    caller_count--;
    return sum + room[0];
}

ALONE static int in_a_large_frame(int more) {
    volatile char room[300000], *more_room = alloca(some_bytes);
    ENTER();
    more_room[0] = 0;
    room[0] = 0;
    int sum = aligned(more);
    caller_count--;
    return sum + room[0];
}

static int by_library(const void *one, const void *other) {
    return in_a_large_frame(*(const int *)one - *(const int *)other > 0 ? 3 : 0);
}

int main(void) {
    int numbers[] = {3, 1, 2};
    for (int i = 0; i < 2; i++) { /* once by the tables, then as remembered */
        in_a_large_frame(5);
        if (goes_through_libc) qsort(numbers, 3, sizeof numbers[0], by_library);
    }
    return 0;
}
