/* os/descriptors.h on the kernel that is there: who has taken a table finds it empty, and can say what it has to say until it
 * leaves. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "os/descriptors.h"
#include "os/os.h"

static bool can_borrow(uint32_t thread) {
    int borrowed = hak_descriptors_borrow_stderr(thread);
    bool can = borrowed >= 0 && write(borrowed, "", 0) == 0;
    if (borrowed >= 0) hak_os_close(borrowed);
    return can;
}

/* In words what went wrong, or NULL. */
static const char *wrong_in_thread(int programs) {
    uint32_t self = hak_os_thread_id();
    errno = EXDEV;
    if (!hak_descriptors_take(self)) return "no table";
    if (errno != EXDEV) return "errno is changed";
    if (fcntl(programs, F_GETFD) >= 0 || fcntl(STDIN_FILENO, F_GETFD) >= 0) return "it is not empty";
    if ((fcntl(STDERR_FILENO, F_GETFD) >= 0) != HAK_DESCRIPTORS_KEEP_STDERR) return "wrong standard error";
    if (!can_borrow(self)) return "who has taken it can't say anything";
    if (can_borrow(self + 1)) return "another thread's standard error is borrowed";
    hak_descriptors_share(self + 1);
    if (!can_borrow(self + 1)) return "who shares it can't say anything";
    hak_descriptors_share(0);
    if (can_borrow(self + 1)) return "it is shared still";
    hak_descriptors_leave();
    return can_borrow(self) ? "it was not left" : NULL;
}

static void *in_thread(void *end_of_pipe) { return (void *)(uintptr_t)wrong_in_thread(*(int *)end_of_pipe); }

static void own_table(void **state) {
    (void)state;
    int ends[2];
    pthread_t thread;
    void *wrong;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(hak_descriptors_borrow_stderr(hak_os_thread_id()), -1);
    assert_int_equal(pthread_create(&thread, NULL, in_thread, &ends[0]), 0);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    assert_null(wrong);
    assert_true(fcntl(ends[0], F_GETFD) >= 0); /* the program's are as they were */
    assert_int_equal(hak_descriptors_borrow_stderr(hak_os_thread_id()), -1);
}

UNIT_MAIN(cmocka_unit_test(own_table))
