#include "os/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/format.h"
#include "os/descriptors.h"
#include "os/kernel.h"
#include "os/os.h"

enum { STATUS_BYTES = 4096, ROOM_WAIT_MS = 100 };

HAK_ATOMIC(uint64_t) hak_channel_wish = HAK_CHANNEL_NO_WISH;

/* Of the server. */
static bool is_watching;
static int status =
    -1; /* its /proc/.../status, opened and not read yet: what is read is made then. -1 while not watching */
static uint64_t filters_at_opening; /* seccomp filters */

/* ---- Filters ----------------------------------------------------------------------------------------------------- */

static void open_status(void) {
    char buffer[64];
    struct hak_text path = hak_text_in(buffer, sizeof buffer);
    hak_text_add(&path, "/proc/self/task/%u/status", hak_os_thread_id());
    status = hak_os_open_file(path.start);
}

/* The number in a line of `text` that begins with `name`. False when there is none. */
static bool find_number(const char *text, const char *name, uint64_t *number) {
    const char *at = strstr(text, name);
    if (at == NULL) return false;
    *number = 0;
    for (at += strlen(name); *at >= '0' && *at <= '9'; at++) *number = *number * 10 + (uint64_t)(*at - '0');
    return true;
}

/* Reads the status to its end. False when it doesn't say how many filters there are. */
static bool count_filters(uint64_t *count) {
    char text[STATUS_BYTES];
    size_t length = 0, got = 0;
    if (status < 0) return false;
    while (length < sizeof text - 1 && (got = hak_os_read(status, text + length, sizeof text - 1 - length)) > 0)
        length += got;
    text[length] = '\0';
    if (length == 0 || (length == sizeof text - 1 && strstr(text, "\nSeccomp:\t") == NULL)) return false;
    uint64_t mode;
    *count = 0;
    if (!find_number(text, "\nSeccomp:\t", &mode) || mode == 0) return true;
    return find_number(text, "\nSeccomp_filters:\t", count);
}

static void close_status(void) {
    hak_os_close(status);
    status = -1;
}

static bool open_status_again(void) {
    close_status();
    open_status();
    return status >= 0;
}

bool hak_os_channel_may_answer(void) {
    uint64_t filters;
    if (!is_watching) return true;
    return count_filters(&filters) && filters == filters_at_opening && open_status_again();
}

bool hak_os_channel_has_filters(uint64_t filters) { return filters == filters_at_opening; }

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* As small as can be: what pipes of all of a user's processes may hold together is limited. */
static bool make_pipe(int read_end, int write_end, int flags) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | flags) != 0) return false;
    fcntl(ends[0], F_SETPIPE_SZ, (int)hak_os_page_bytes());
    bool done = dup3(ends[0], read_end, O_CLOEXEC) >= 0 && dup3(ends[1], write_end, O_CLOEXEC) >= 0;
    hak_os_close(ends[0]);
    hak_os_close(ends[1]);
    return done;
}

/* The numbers that a program's standard files have are taken by what can't be written to. So what a thread has to
 * complain of does not end up in a file of its own, and hak_os_write knows. */
static bool take_standard_files(void) {
    bool done = true;
    for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
        done = done && dup3(HAK_CHANNEL_REQUEST_READ, i, O_CLOEXEC) >= 0;
    return done;
}

static bool make_channel(void) {
    return hak_descriptors_take(hak_os_thread_id()) &&
           make_pipe(HAK_CHANNEL_REQUEST_READ, HAK_CHANNEL_REQUEST_WRITE, 0) &&
           fcntl(HAK_CHANNEL_REQUEST_WRITE, F_SETFL, O_NONBLOCK) == 0 && /* of this end: others open their own */
           make_pipe(HAK_CHANNEL_ANSWER_READ, HAK_CHANNEL_ANSWER_WRITE, O_NONBLOCK) && take_standard_files();
}

bool hak_os_channel_make(void) {
    int saved_errno = errno;
    bool done = make_channel();
    errno = saved_errno;
    return done;
}

bool hak_os_channel_open(bool watches) {
    int saved_errno = errno;
    hak_descriptors_share(hak_os_thread_id());
    is_watching = watches;
    open_status();
    bool done = count_filters(&filters_at_opening);
    if (done && is_watching) done = open_status_again();
    else close_status();
    if (done) prctl(PR_SET_NAME, HAK_CHANNEL_THREAD); /* last: who sees the name finds an open channel */
    else hak_descriptors_share(0);
    errno = saved_errno;
    return done;
}

/* ---- Serving ----------------------------------------------------------------------------------------------------- */

static bool wait_for(int descriptor, short event, uint64_t most_ms) {
    struct pollfd one = {.fd = descriptor, .events = event};
    struct timespec time = {.tv_sec = (time_t)(most_ms / 1000), .tv_nsec = (long)(most_ms % 1000) * 1000000};
    return HAK_SYSTEM_CALL(SYS_ppoll, &one, 1, &time, NULL, 0) > 0;
}

size_t hak_os_channel_receive(char *buffer, size_t bytes, uint64_t most_ms) {
    int saved_errno = errno;
    size_t length = 0;
    if (most_ms == 0 || wait_for(HAK_CHANNEL_REQUEST_READ, POLLIN, most_ms))
        length = hak_os_read(HAK_CHANNEL_REQUEST_READ, buffer, bytes);
    errno = saved_errno;
    return length;
}

bool hak_os_channel_send(const char *text, size_t length, uint64_t deadline_ms) {
    int saved_errno = errno;
    while (length > 0) {
        ssize_t written = write(HAK_CHANNEL_ANSWER_WRITE, text, length);
        if (written < 0 && (errno != EAGAIN || hak_os_clock_ms() >= deadline_ms)) break;
        if (written < 0) {
            wait_for(HAK_CHANNEL_ANSWER_WRITE, POLLOUT, ROOM_WAIT_MS);
        } else {
            text += written;
            length -= (size_t)written;
        }
    }
    errno = saved_errno;
    return length == 0;
}

void hak_os_channel_drop(void) {
    int saved_errno = errno;
    char buffer[4096];
    while (hak_os_read(HAK_CHANNEL_ANSWER_READ, buffer, sizeof buffer) > 0) {
    }
    errno = saved_errno;
}

/* Where there is no room, there is something to be read. Where a filter refuses to write, the end of the pipe is as
 * good. */
void hak_os_channel_interrupt(void) {
    int saved_errno = errno;
    if (HAK_SYSTEM_CALL(SYS_write, HAK_CHANNEL_REQUEST_WRITE, "\n", 1) < 0 && errno != EAGAIN)
        hak_os_close(HAK_CHANNEL_REQUEST_WRITE);
    errno = saved_errno;
}

void hak_os_channel_end(void) { hak_descriptors_leave(); }
