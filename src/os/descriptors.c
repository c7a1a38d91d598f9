#include "os/descriptors.h"

#include <errno.h>
#include <unistd.h>

#include "base/atomic.h"
#include "os/kernel.h"

/* Numbers and constants newer than the oldest headers hakmem builds with; the numbers are the same on all
 * processors. */
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

static HAK_ATOMIC(uint32_t) taker, sharer; /* threads; 0: none */

bool hak_descriptors_take(uint32_t thread) {
    int saved_errno = errno;
    /* A new table without any of the descriptors, in one step; a sanitizer's is left. */
    unsigned first = HAK_DESCRIPTORS_KEEP_STDERR ? STDERR_FILENO + 1 : 0;
    bool done = HAK_SYSTEM_CALL(SYS_close_range, first, ~0U, CLOSE_RANGE_UNSHARE) == 0;
    if (HAK_DESCRIPTORS_KEEP_STDERR) done = done && HAK_SYSTEM_CALL(SYS_close_range, 0, STDERR_FILENO - 1, 0) == 0;
    if (done) hak_atomic_store(&taker, thread, relaxed);
    errno = saved_errno;
    return done;
}

void hak_descriptors_share(uint32_t thread) { hak_atomic_store(&sharer, thread, relaxed); }

void hak_descriptors_leave(void) {
    hak_atomic_store(&taker, 0, relaxed);
    hak_atomic_store(&sharer, 0, relaxed);
}

int hak_descriptors_borrow_stderr(uint32_t thread) {
    if (hak_atomic_load(&taker, relaxed) != thread && hak_atomic_load(&sharer, relaxed) != thread) return -1;
    int process = (int)HAK_SYSTEM_CALL(SYS_pidfd_open, getpid(), 0);
    if (process < 0) return -1;
    int descriptor = (int)HAK_SYSTEM_CALL(SYS_pidfd_getfd, process, STDERR_FILENO, 0);
    HAK_SYSTEM_CALL(SYS_close, process);
    return descriptor;
}
