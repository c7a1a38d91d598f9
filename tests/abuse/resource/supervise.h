/* System calls seen and refused one by one. The program runs itself anew, and the kernel asks its first process, the
 * supervisor, about each call of those it watches (seccomp's user notification). The process that is supervised says which ones
 * are to be refused, and asks how many there were, by a system call that the kernel does not have. It may have threads,
 * and nothing here allocates.
 */
#ifndef HAKMEM_TESTS_SUPERVISE_H
#define HAKMEM_TESTS_SUPERVISE_H

#include "process.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define MEMORY_CALLS "mmap,munmap,mremap,mprotect,brk,madvise,mincore,process_madvise"

/* ---- The process that is supervised ---- */

enum { QUESTION_CALL = 9999 /* no system call */ };
enum { QUESTION_FORGET, QUESTION_COUNT, QUESTION_REFUSE, QUESTION_REFUSED };

__attribute__((unused)) static int is_supervised(void) { return is_watched(); }

/* Counts from now on. */
__attribute__((unused)) static void supervised_forget(void) { syscall(QUESTION_CALL, (long)QUESTION_FORGET); }

/* How often the call refusable[i] was made since then. */
__attribute__((unused)) static size_t supervised_count(size_t i) {
    return (size_t)syscall(QUESTION_CALL, (long)QUESTION_COUNT, i);
}

/* The calls named in the list, as bits. */
static uint64_t calls_by_names(const char *names) {
    uint64_t calls = 0;
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, ",");
        size_t i = 0;
        while (i < COUNT_OF(refusable) &&
               (strlen(refusable[i].name) != length || memcmp(refusable[i].name, at, length) != 0)) {
            i++;
        }
        EXPECT(i < COUNT_OF(refusable), "no call of the name %s", at);
        calls |= (uint64_t)1 << i;
        at += length + (at[length] == ',');
    }
    return calls;
}

/* Of the calls that are made from now on, together: number `first`, counted from 1, and every `step`th after it, up to
 * `last`, fail with the code. */
__attribute__((unused)) static void supervised_refuse(uint64_t calls, size_t first, size_t last, size_t step,
                                                      int code) {
    size_t first_and_step = first | step << 32;
    syscall(QUESTION_CALL, (long)QUESTION_REFUSE, calls, first_and_step, last, (long)code);
}

__attribute__((unused)) static void supervised_refuse_nothing(void) { supervised_refuse(0, 0, 0, 1, 0); }

/* How many were refused since the last supervised_refuse. */
__attribute__((unused)) static size_t supervised_refused(void) {
    return (size_t)syscall(QUESTION_CALL, (long)QUESTION_REFUSED);
}

/* How often the call of that name was made since then. */
__attribute__((unused)) static size_t supervised_count_of(const char *name) {
    return supervised_count((size_t)__builtin_ctzll(calls_by_names(name)));
}

/* Memory calls since supervised_forget. With `when`, each kind is told. */
__attribute__((unused)) static size_t count_memory_calls(const char *when) {
    uint64_t calls = calls_by_names(MEMORY_CALLS);
    size_t sum = 0;
    for (size_t i = 0; i < COUNT_OF(refusable); i++) {
        size_t count = (calls >> i & 1) ? supervised_count(i) : 0;
        if (count && when) {
            say("%s: %s was called %zu times\n", when, refusable[i].name, count);
        }
        sum += count;
    }
    return sum;
}

__attribute__((unused)) static void expect_no_memory_calls(const char *when) {
    EXPECT(count_memory_calls(when) == 0, "%s", when);
}

/* ---- The supervisor ---- */

static struct {
    uint64_t counts[COUNT_OF(refusable)];
    uint64_t calls; /* to be refused */
    size_t seen, first, last, step, refused;
    int code;
} supervision;

static int64_t answer_question(const uint64_t *arguments) {
    switch (arguments[0]) {
    case QUESTION_FORGET: memset(supervision.counts, 0, sizeof supervision.counts); return 0;
    case QUESTION_COUNT: return (int64_t)supervision.counts[arguments[1] % COUNT_OF(refusable)];
    case QUESTION_REFUSED: return (int64_t)supervision.refused;
    default:
        supervision.calls = arguments[1];
        supervision.first = arguments[2] & UINT32_MAX;
        supervision.step = arguments[2] >> 32;
        supervision.last = arguments[3];
        supervision.code = (int)arguments[4];
        supervision.seen = supervision.refused = 0;
        return 0;
    }
}

static int is_to_be_refused(size_t i) {
    supervision.counts[i]++;
    if (!(supervision.calls >> i & 1)) {
        return 0;
    }
    size_t number = ++supervision.seen;
    int refused = number >= supervision.first && number <= supervision.last &&
                  (number - supervision.first) % supervision.step == 0;
    supervision.refused += (size_t)refused;
    return refused;
}

/* Answers what the kernel asks. False when it doesn't take the answer. */
static int answer(int listener) {
    struct seccomp_notif notice;
    memset(&notice, 0, sizeof notice);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notice)) {
        return 1; /* who called has been killed */
    }
    struct seccomp_notif_resp response = {.id = notice.id};
    size_t i = 0;
    while (i < COUNT_OF(refusable) && refusable[i].number != notice.data.nr) {
        i++;
    }
    if (i == COUNT_OF(refusable)) {
        uint64_t arguments[6];
        for (size_t j = 0; j < COUNT_OF(arguments); j++) {
            arguments[j] = notice.data.args[j];
        }
        response.val = answer_question(arguments);
    } else if (!is_to_be_refused(i)) {
        response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    } else if (refusable[i].number != SYS_brk) { /* which returns the break, here 0: a refusal */
        response.error = -supervision.code;
    }
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response) == 0 || errno != EINVAL;
}

static int exit_code_of(int status) {
    if (WIFSIGNALED(status)) {
        say("ended by signal %d\n", WTERMSIG(status));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_EXPECTATION;
}

static int supervise(pid_t child, int listener, size_t memory_bytes) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)child);
    for (size_t answers = 0;;) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) {
            return exit_code_of(status);
        }
        struct pollfd polled = {.fd = listener, .events = POLLIN};
        int ready = poll(&polled, 1, 10);
        if (ready > 0 && (polled.revents & POLLIN)) {
            if (!answer(listener)) {
                kill(child, SIGKILL);
                SKIP("the kernel can't go on with a call it asked about");
            }
            answers++;
        } else if (ready > 0) { /* there is nobody left to ask about */
            struct timespec pause = {.tv_nsec = 1000000};
            nanosleep(&pause, NULL);
        }
        if ((ready <= 0 || answers % 256 == 0) && statm_bytes(path, 1) > memory_bytes) {
            say("ran away: more than %zu MiB resident\n", memory_bytes / MIB);
            kill(child, SIGKILL);
        }
    }
}

/* Installs the filter. Returns the descriptor to be asked through, or -1. */
static int install_filter(uint64_t calls) {
    struct sock_filter filter[6 + 2 * COUNT_OF(refusable)];
    size_t length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCHITECTURE, 1, 0);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i <= COUNT_OF(refusable); i++) {
        if (i < COUNT_OF(refusable) && !(calls >> i & 1)) {
            continue;
        }
        unsigned number = i < COUNT_OF(refusable) ? (unsigned)refusable[i].number : QUESTION_CALL;
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)length, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
        return -1;
    }
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

union descriptor_message {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static void send_descriptor(int channel, int descriptor) {
    char byte = 0;
    struct iovec vector = {&byte, 1};
    union descriptor_message control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    EXPECT(sendmsg(channel, &message, 0) == 1, "sendmsg");
}

/* -1: the other side has ended without one. */
static int receive_descriptor(int channel) {
    char byte;
    int descriptor = -1;
    struct iovec vector = {&byte, 1};
    union descriptor_message control;
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) == 1) {
        memcpy(&descriptor, CMSG_DATA(&control.header), sizeof descriptor);
    }
    return descriptor;
}

/* Starts this program anew with the same arguments, and answers for the calls in the list until it ends. Returns its exit
 * code. */
__attribute__((unused)) static int run_supervised(char **argv, const char *names, size_t memory_bytes) {
    uint64_t calls = calls_by_names(names);
    int channel[2];
    EXPECT(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel), "socketpair");
    pid_t child = fork();
    EXPECT(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv(WATCHED_VARIABLE, "1", 1);
        close(channel[0]);
        int listener = install_filter(calls);
        if (listener < 0) {
            SKIP("no seccomp that asks another process: errno %d", errno);
        }
        send_descriptor(channel[1], listener);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(channel[1]);
    int listener = receive_descriptor(channel[0]);
    if (listener < 0) {
        int status;
        waitpid(child, &status, 0);
        return exit_code_of(status);
    }
    return supervise(child, listener, memory_bytes);
}

#endif
