/* os/channel.h on the kernel that is there: who makes a channel leaves the program's descriptors; answers stop at a deadline; a
 * wait can be ended; filters are noticed. What others see of it: tests/abuse/outside. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "os/channel.h"
#include "os/os.h"

/* Runs `body` in a thread that has a channel. */
static void in_channel(void *(*body)(void *), void *context) {
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, body, context), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_null(result); /* else what went wrong, in words */
}

static const char *open_it(bool watches) {
    return hak_os_channel_make() && hak_os_channel_open(watches) ? NULL : "it can't be opened";
}

static bool has_open_in_proc(void) {
    struct statfs system;
    bool found = false;
    for (int i = 0; i < 64; i++) found = found || (fstatfs(i, &system) == 0 && system.f_type == PROC_SUPER_MAGIC);
    return found;
}

static void *look_at_descriptors(void *pipe_end) {
    const char *wrong = open_it(false);
    if (wrong == NULL && has_open_in_proc()) wrong = "/proc can't be unmounted";
    if (wrong == NULL && fcntl(*(int *)pipe_end, F_GETFD) >= 0) wrong = "a descriptor of the program's is there";
    if (wrong == NULL && (write(STDERR_FILENO, "x", 1) >= 0 || errno != EBADF))
        wrong = "standard error can be written to";
    if (wrong == NULL) hak_os_write(STDERR_FILENO, "said", 4);
    return (void *)(uintptr_t)wrong;
}

static void own_descriptors(void **state) {
    (void)state;
    int ends[2], kept = dup(STDERR_FILENO);
    char text[16] = "";
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    in_channel(look_at_descriptors, &ends[0]);
    dup2(kept, STDERR_FILENO);
    close(ends[1]);
    assert_int_equal(read(ends[0], text, sizeof text), 4); /* by way of the program's own */
    assert_string_equal(text, "said");
    assert_int_equal(read(ends[0], text, sizeof text), 0); /* nobody has it open */
}

static void *fill_and_drop(void *unused) {
    static char page[4096];
    const char *wrong = open_it(false);
    uint64_t begin_ms = hak_os_clock_ms();
    if (wrong != NULL) return (void *)(uintptr_t)wrong;
    while (hak_os_channel_send(page, sizeof page, begin_ms + 300)) {
    }
    if (hak_os_clock_ms() - begin_ms < 200) wrong = "it did not wait for room";
    hak_os_channel_drop();
    if (!hak_os_channel_send(page, sizeof page, 0)) wrong = "there is no room after a drop";
    (void)unused;
    return (void *)(uintptr_t)wrong;
}

static void nobody_reads(void **state) {
    (void)state;
    in_channel(fill_and_drop, NULL);
}

static HAK_ATOMIC(uint32_t) is_waiting;

static void *wait_for_end(void *unused) {
    char text[8];
    const char *wrong = hak_os_channel_open(true) ? NULL : "it can't be served";
    (void)unused;
    if (wrong == NULL && hak_os_channel_receive(text, sizeof text, 20) != 0) wrong = "something came from nowhere";
    /* Release pairs with interrupted. */
    hak_atomic_store(&is_waiting, 1, release);
    if (wrong == NULL && hak_os_channel_receive(text, sizeof text, 0) != 1) wrong = "not one character";
    if (wrong == NULL && !hak_os_channel_may_answer()) wrong = "it may not answer";
    return (void *)(uintptr_t)wrong;
}

static void *serve_and_interrupt(void *unused) {
    pthread_t server;
    void *wrong;
    (void)unused;
    if (!hak_os_channel_make()) return (void *)(uintptr_t) "it can't be made";
    if (pthread_create(&server, NULL, wait_for_end, NULL) != 0) return (void *)(uintptr_t) "no thread";
    /* Acquire pairs with wait_for_end. */
    while (hak_atomic_load(&is_waiting, acquire) == 0) usleep(1000);
    hak_os_channel_interrupt();
    pthread_join(server, &wrong);
    return wrong;
}

static void interrupted(void **state) {
    (void)state;
    in_channel(serve_and_interrupt, NULL);
}

/* Others have filled the pipe: who interrupts does not wait. */
static void *fill_and_interrupt(void *unused) {
    static char page[4096];
    const char *wrong = open_it(false);
    (void)unused;
    if (wrong != NULL) return (void *)(uintptr_t)wrong;
    while (write(HAK_CHANNEL_REQUEST_WRITE, page, sizeof page) > 0) {
    }
    if (errno != EAGAIN) wrong = "it is not full";
    hak_os_channel_interrupt();
    if (hak_os_channel_receive(page, sizeof page, 0) != sizeof page) wrong = "nothing is to be read";
    return (void *)(uintptr_t)wrong;
}

static void interrupted_when_full(void **state) {
    (void)state;
    in_channel(fill_and_interrupt, NULL);
}

static bool add_filter(void) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = 1, .filter = all};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

static void *be_filtered(void *unused) {
    (void)unused;
    if (prctl(PR_GET_SECCOMP) > 0) return NULL; /* as this test is: nothing to be seen */
    const char *wrong = open_it(true);
    if (wrong == NULL && (!hak_os_channel_has_filters(0) || hak_os_channel_has_filters(1))) wrong = "a wrong number";
    for (int i = 0; i < 3; i++)
        if (wrong == NULL && !hak_os_channel_may_answer()) wrong = "it may not answer";
    if (wrong == NULL && !add_filter()) return NULL;
    if (wrong == NULL && hak_os_channel_may_answer()) wrong = "it may answer";
    return (void *)(uintptr_t)wrong;
}

/* A filter that was there before is no reason to stop; the next one is. */
static void *be_filtered_twice(void *unused) {
    (void)unused;
    if (!add_filter()) return NULL;
    const char *wrong = open_it(true);
    if (wrong == NULL && hak_os_channel_has_filters(0)) wrong = "it has none";
    if (wrong == NULL && !hak_os_channel_may_answer()) wrong = "it may not answer";
    if (wrong == NULL && add_filter() && hak_os_channel_may_answer()) wrong = "it may answer";
    return (void *)(uintptr_t)wrong;
}

static void filtered(void **state) {
    (void)state;
    in_channel(be_filtered, NULL);
    in_channel(be_filtered_twice, NULL);
}

UNIT_MAIN(cmocka_unit_test(own_descriptors), cmocka_unit_test(nobody_reads), cmocka_unit_test(interrupted),
          cmocka_unit_test(interrupted_when_full), cmocka_unit_test(filtered))
