/* Stacks: against those of the compiler's own unwinder, in code that has no frame pointers; and stacks that were made
 * up. */
#include "unit.h"

#include <alloca.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <search.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "fake_os.h"
#include "observe/stack.h"
#include "os/modules.h"
#include "os/os.h"

#define ALONE __attribute__((noinline, noclone))

static uint32_t compared;

/* The other one begins in this function, or in a sanitizer's that it calls. */
ALONE static void compare(void) {
    uintptr_t own[HAK_STACK_MOST] = {0};
    void *theirs[HAK_STACK_MOST];
    uint32_t depth = hak_stack_walk(__builtin_frame_address(0), own);
    uint32_t their_depth = (uint32_t)backtrace(theirs, HAK_STACK_MOST), first = 1;
    while (first < their_depth && (uintptr_t)theirs[first] != own[0]) first++;
    assert_in_range(first, 1, 2);
    assert_int_equal(depth, their_depth - first);
    for (uint32_t i = 0; i < depth; i++) assert_int_equal(own[i], (uintptr_t)theirs[i + first]);
    compared++;
}

static volatile size_t some_bytes = 100;
static void touch(volatile char *bytes, size_t count) {
    for (size_t i = 0; i < count; i += 64) bytes[i] = 1;
}

ALONE static int plainly(int more) {
    volatile char room[200];
    touch(room, sizeof room);
    if (more > 0) return plainly(more - 1) + room[0];
    compare();
    return room[64];
}

/* Its frame has no fixed size. */
ALONE static int with_any_size(int more) {
    volatile char *room = alloca(some_bytes * (size_t)(more + 1));
    touch(room, some_bytes);
    return plainly(more) + room[0];
}

/* Its frame is aligned. */
ALONE static int aligned(int more) {
    volatile char room[256] __attribute__((aligned(64)));
    touch(room, sizeof room);
    return with_any_size(more) + room[0];
}

ALONE static int aligned_of_any_size(int more) {
    volatile char room[256] __attribute__((aligned(64)));
    volatile char *more_room = alloca(some_bytes);
    touch(room, sizeof room);
    touch(more_room, some_bytes);
    return aligned(more) + room[0] + more_room[0];
}

ALONE static int in_a_large_frame(int more) {
    volatile char *room = alloca(1000 * some_bytes);
    touch(room, some_bytes);
    return aligned_of_any_size(more) + room[0];
}

/* Called by the C library, which has no frame pointers. */
static int by_library(const void *one, const void *other) {
    (void)one, (void)other;
    in_a_large_frame(3);
    return 0;
}

static void all_ways(void) {
    int numbers[2] = {0};
    size_t count = 2;
    in_a_large_frame(0);
    lfind(numbers, numbers, &count, sizeof numbers[0], by_library);
    qsort(numbers, 2, sizeof numbers[0], by_library);
    in_a_large_frame(HAK_STACK_MOST / 2);
}

static void *in_thread(void *argument) {
    all_ways();
    return argument;
}

static void as_the_unwinder(void **state) {
    (void)state;
    hak_os_modules_begin();
    for (int i = 0; i < 2; i++) all_ways(); /* once by the tables, then as remembered; word by word */
    fake_os.stack_end = UINTPTR_MAX;
    all_ways();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, in_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(compared >= 12); /* sanitizers have functions compared more often */
}

/* Deeper ones than are told: as deep as it goes. */
ALONE static int down(int more, uintptr_t *addresses) {
    if (more == 0) return (int)hak_stack_walk(__builtin_frame_address(0), addresses);
    int depth = down(more - 1, addresses);
    return depth + (addresses[0] == 0);
}

static void too_deep(void **state) {
    (void)state;
    uintptr_t addresses[HAK_STACK_MOST];
    assert_int_equal(down(HAK_STACK_MOST + 10, addresses), HAK_STACK_MOST);
}

static volatile uint32_t depth_in_handler;
static void handler(int number) {
    uintptr_t addresses[HAK_STACK_MOST];
    depth_in_handler = hak_stack_walk(__builtin_frame_address(0), addresses) + (uint32_t)(number != SIGUSR1);
}

/* It ends with what has called the handler. */
static void in_a_handler(void **state) {
    (void)state;
    hak_os_modules_begin();
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    assert_true(depth_in_handler >= 1);
}

/* ---- Made up ----------------------------------------------------------------------------------------------------- */

/* Code that no table tells of has frame pointers: as deep as it is, or until a frame leads nowhere. */
static void records(void **state) {
    (void)state;
    enum { FRAMES = HAK_STACK_MOST + 50 };
    static uintptr_t frames[FRAMES * 2 + 2];
    uintptr_t addresses[HAK_STACK_MOST];
    struct hak_stack_place place = {0xffff, (uintptr_t)frames, (uintptr_t)frames};
    for (int i = 0; i < FRAMES; i++) {
        frames[2 * i] = (uintptr_t)&frames[2 * i + 2];
        frames[2 * i + 1] = 0x10000 + (uintptr_t)i;
    }
    assert_int_equal(hak_stack_walk_from(place, addresses), HAK_STACK_MOST);
    for (int i = 0; i < HAK_STACK_MOST; i++) assert_int_equal(addresses[i], 0xffff + i);
    frames[9] = 0; /* no code */
    assert_int_equal(hak_stack_walk_from(place, addresses), 5);
    frames[4] = (uintptr_t)frames; /* down the stack */
    assert_int_equal(hak_stack_walk_from(place, addresses), 4);
    frames[2] = (uintptr_t)frames + (1 << 20); /* too far */
    assert_int_equal(hak_stack_walk_from(place, addresses), 3);
    frames[0] = (uintptr_t)&frames[2] + 1; /* no frame begins there */
    assert_int_equal(hak_stack_walk_from(place, addresses), 2);
    frames[1] |= (uintptr_t)0xabcd << 48; /* signed, on aarch64 */
    assert_int_equal(hak_stack_walk_from(place, addresses), 2);
    assert_int_equal(addresses[1], 0x10000);
    place.frame = 0;
    assert_int_equal(hak_stack_walk_from(place, addresses), 1);
}

static void unreadable(void **state) {
    (void)state;
    uintptr_t addresses[HAK_STACK_MOST];
    size_t page = fake_os.page_bytes;
    char *pages = hak_os_map(3 * page, page);
    assert_true(hak_os_unmap(pages + 2 * page, page));
    uintptr_t *frame = (uintptr_t *)(void *)(pages + page - 16), *next = (uintptr_t *)(void *)(pages + 2 * page - 16);
    struct hak_stack_place place = {0x10000, (uintptr_t)pages, (uintptr_t)frame};
    frame[0] = (uintptr_t)next;
    frame[1] = next[1] = 0x10000;
    next[0] = (uintptr_t)pages + 2 * page; /* not there */
    assert_int_equal(hak_stack_walk_from(place, addresses), 3);
    next[0] = UINTPTR_MAX - 7;
    assert_int_equal(hak_stack_walk_from(place, addresses), 3);
}

/* A frame that another thread may unmap is none of the stack's. */
static void beyond_the_stack(void **state) {
    (void)state;
    static uintptr_t frames[6];
    uintptr_t addresses[HAK_STACK_MOST];
    struct hak_stack_place place = {0xffff, (uintptr_t)frames, (uintptr_t)frames};
    for (int i = 0; i < 6; i += 2) {
        frames[i] = (uintptr_t)&frames[i + 2];
        frames[i + 1] = 0x10000;
    }
    fake_os.stack_end = (uintptr_t)(frames + 6);
    assert_int_equal(hak_stack_walk_from(place, addresses), 4);
    fake_os.stack_end = (uintptr_t)(frames + 5);
    assert_int_equal(hak_stack_walk_from(place, addresses), 3);
    fake_os.stack_end = (uintptr_t)(frames + 2);
    assert_int_equal(hak_stack_walk_from(place, addresses), 2);
}

/* Code that has a table, on a stack that is not there, or is not its own. */
static void wrong_stacks(void **state) {
    (void)state;
    uintptr_t addresses[HAK_STACK_MOST], zeros[64] = {0};
    hak_os_modules_begin();
    uintptr_t codes[] = {(uintptr_t)compare + 8, (uintptr_t)aligned_of_any_size + 40,
                         (uintptr_t)dlsym(RTLD_DEFAULT, "qsort") + 8};
    uintptr_t stacks[] = {0, 8, UINTPTR_MAX - 7, (uintptr_t)zeros, (uintptr_t)zeros + 1};
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 25; k++)
            assert_int_equal(
                hak_stack_walk_from((struct hak_stack_place){codes[i], stacks[k % 5], stacks[k / 5]}, addresses), 1);
}

UNIT_MAIN(cmocka_unit_test(as_the_unwinder), cmocka_unit_test(too_deep), cmocka_unit_test(in_a_handler),
          cmocka_unit_test(records), cmocka_unit_test(unreadable), cmocka_unit_test(beyond_the_stack),
          cmocka_unit_test(wrong_stacks))
