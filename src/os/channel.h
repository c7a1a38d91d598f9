/* Channel: how who may look into this process, by the kernel's rules, asks it something while it runs.
 *
 * Two pipes, which one thread serves. They have no name: who asks opens their ends by way of /proc/PID/task/TID/fd, the request's to write
 * a line to it, the answer's to read. So the kernel decides who may: the user the process runs as, unless the process
 * has made itself undumpable (as those that hold secrets or have changed their user do), and root; whatever
 * namespaces are between the two.
 *
 *   C1  The program doesn't notice. The serving thread has a table of descriptors of its own, which begins empty: no descriptor of the
 *       program's is used up, kept open or closed by it, or lost to closefrom(). After a fork the child has none of it.
 *   C2  Nothing that a sandbox forbids is called. Between two requests the thread is in read(), which every sandbox permits, and then reads from a
 *       descriptor opened before whether a seccomp filter has been installed since. If so, it does no more.
 *   C3  Nobody makes it wait for ever, or kills it: it writes only as long as there is room in the pipe, waits for more until a deadline, and has all ends
 *       open itself, so that there is no SIGPIPE.
 *
 * Linux 5.9 or later.
 */
#ifndef HAK_OS_CHANNEL_H
#define HAK_OS_CHANNEL_H

#include "base/platform.h"

/* Descriptors of the serving thread, and its name: what the other side goes by. */
enum { HAK_CHANNEL_REQUEST_READ = 10, HAK_CHANNEL_REQUEST_WRITE, HAK_CHANNEL_ANSWER_READ, HAK_CHANNEL_ANSWER_WRITE };
#define HAK_CHANNEL_THREAD "hakmem-ctl"

/* True when system calls of the calling thread are filtered. */
bool hak_os_is_filtered(void);

/* Gives the calling thread a table of descriptors of its own, for ever, and makes the channel. False where the kernel can't: then the
 * thread is of no use. */
bool hak_os_channel_open(void);

/* Waits for requests, at most so long (0: however long it takes), and reads what there is. 0: none came. */
size_t hak_os_channel_receive(char *buffer, size_t bytes, uint64_t most_ms);

/* True as long as no filter has been installed since the channel was made (C2). To be asked after each wait. */
bool hak_os_channel_may_answer(void);

/* Writes all of `text`, if whoever asked reads it before hak_os_clock_ms() is `deadline_ms`. */
bool hak_os_channel_send(const char *text, size_t length, uint64_t deadline_ms);

/* Empties the answer's pipe: of what nobody has read. */
void hak_os_channel_drop(void);

/* Called by another thread: makes the wait end. */
void hak_os_channel_interrupt(void);

/* If the calling thread is the serving one: a descriptor for the program's standard error, to be closed. Else, or where there is none, -1. */
int hak_os_channel_stderr(void);

#endif
