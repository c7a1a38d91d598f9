/* Channel: how who may look into this process, by the kernel's rules, asks it something while it runs.
 *
 * Two pipes, which one thread serves. They have no name: who asks opens their ends by way of /proc/PID/task/TID/fd, the
 * request's to write a line to it, the answer's to read. So the kernel decides who may: the user the process runs as,
 * unless the process has made itself undumpable (as those that hold secrets or have changed their user do), and root;
 * whatever namespaces are between the two.
 *
 * A thread of hakmem's own makes it, starts the one that serves, and ends it: the maker, which is the background
 * thread.
 *
 *   C1  The program doesn't notice. Maker and server have a table of descriptors of their own, which begins empty: no
 *       descriptor of the program's is used up, kept open, written to or closed by them, or lost to closefrom(). After
 *       a fork the child has none of it. It keeps no file open, unless it watches: so /proc can be unmounted.
 *   C2  Nothing that a sandbox forbids is called. Between two requests the server is in read(), which every sandbox
 *       permits. Who asks says how many seccomp filters he sees on the thread; if they are not as many as when the
 *       channel was opened, it does no more. A server that also acts by itself watches: it has its own status open,
 *       which says that number whenever it is read. To end the wait takes a write() to a descriptor that the maker has.
 *   C3  Nobody makes it wait for ever, or kills it: it writes only as long as there is room in the pipe, waits for more
 *       until a deadline, and has all ends open itself, so that there is no SIGPIPE.
 *
 * Linux 5.9 or later.
 */
#ifndef HAK_OS_CHANNEL_H
#define HAK_OS_CHANNEL_H

#include "base/atomic.h"
#include "base/platform.h"

/* Descriptors of the serving thread, and its name: what the other side goes by. */
enum { HAK_CHANNEL_REQUEST_READ = 10, HAK_CHANNEL_REQUEST_WRITE, HAK_CHANNEL_ANSWER_READ, HAK_CHANNEL_ANSWER_WRITE };
#define HAK_CHANNEL_THREAD "hakmem-ctl"

/* The wish that a process without such a thread start one: who may write into its memory writes HAK_CHANNEL_WISHED
 * here, where HAK_CHANNEL_NO_WISH was, and nothing else (lab/hakmem/ctl.py). Relaxed; observe/landmarks.h says where
 * it lies. */
extern HAK_ATOMIC(uint64_t) hak_channel_wish;
#define HAK_CHANNEL_NO_WISH UINT64_C(0x687369776d6b6168)
#define HAK_CHANNEL_WISHED (HAK_CHANNEL_NO_WISH + 1)

/* Gives the calling thread, which ends by hak_os_channel_end, a table of descriptors of its own (os/descriptors.h), and
 * makes the pipes in it. Threads that it starts then have the same table. False where the kernel can't. */
bool hak_os_channel_make(void);

/* By a thread that the maker has started: it serves from now on. False where the kernel doesn't tell of filters: then
 * the thread is of no use. */
bool hak_os_channel_open(bool watches);

/* Waits for requests, at most so long (0: however long it takes), and reads what there is. 0: none came. */
size_t hak_os_channel_receive(char *buffer, size_t bytes, uint64_t most_ms);

/* False when the thread watches, and a filter has been installed since the channel was made (C2). To be asked after
 * each wait. */
bool hak_os_channel_may_answer(void);

/* True when there were so many filters when the channel was made. */
bool hak_os_channel_has_filters(uint64_t filters);

/* Writes all of `text`, if whoever asked reads it before hak_os_clock_ms() is `deadline_ms`. */
bool hak_os_channel_send(const char *text, size_t length, uint64_t deadline_ms);

/* Empties the answer's pipe: of what nobody has read. */
void hak_os_channel_drop(void);

/* By the maker: makes the server's wait end, now or the next time. */
void hak_os_channel_interrupt(void);

/* By the maker, which is about to end: nobody serves. Also where nothing was made. */
void hak_os_channel_end(void);

#endif
