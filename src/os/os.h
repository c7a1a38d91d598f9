/* The kernel, as hakmem needs it: address space, pages, messages, facts. No policy: who calls decides when and how
 * much.
 *
 * One contract for all: addresses and sizes are multiples of hak_os_page_bytes(); a refusal is returned, never fatal;
 * errno is left as it was, but by those that open, read, duplicate and close files; every function may be called from
 * any thread. Memory functions count themselves in hak_os_counters. Tests link tests/fakes/fake_os.c instead, which
 * records calls and fails on script.
 */
#ifndef HAK_OS_OS_H
#define HAK_OS_OS_H

#include "base/atomic.h"
#include "base/check.h"
#include "base/counters.h"
#include "base/platform.h"

struct hak_os_counters {
    HAK_ATOMIC(uint64_t) system_calls; /* memory system calls, failed ones too */
    HAK_ATOMIC(uint64_t) purged_bytes; /* given back by hak_os_purge and hak_os_unmap */
    HAK_ATOMIC(uint64_t) mapped_bytes; /* address space held now */
};

extern struct hak_os_counters hak_os_counters;

/* Size of a page in bytes: 4, 16 or 64 KiB. */
size_t hak_os_page_bytes(void);

/* Address space without memory: not accessible, not counted against commit limits. `alignment` is a power of two.
 * NULL on refusal. */
void *hak_os_reserve(size_t bytes, size_t alignment);

/* Address space that is readable, writable and zero. NULL on refusal. */
void *hak_os_map(size_t bytes, size_t alignment);

/* A page that is zero, and zero again in each child that is forked. NULL on refusal, or where the kernel doesn't know
 * this. */
void *hak_os_map_wiped(void);

/* Makes a part of what hak_os_reserve gave readable and writable. Doing it twice does no harm. False on refusal. */
bool hak_os_commit(void *start, size_t bytes);

/* Takes access away from such a part: whatever touches it faults, until it is committed again. Its memory stays. False
 * on refusal. */
bool hak_os_forbid(void *start, size_t bytes);

/* Addresses where the process has nothing, most likely, and gets nothing unless it asks for just these: `bytes` of
 * them, from a multiple of `alignment` (a power of two) on. Other ones for each `attempt`, and in each process. Nothing
 * is reserved. 0 when the address space is too small. */
uintptr_t hak_os_pick_addresses(size_t bytes, size_t alignment, uint32_t attempt);

/* A number that can't be guessed, another one for each `number` and process: a one-way function of the kernel's random
 * bytes, so that it tells nothing of them, nor of the other numbers. Those of addresses are numbered by attempts. The
 * first one is drawn before the process has threads. */
enum {
    HAK_RANDOM_CANARIES = 1 << 30,              /* three */
    HAK_RANDOM_LARGE = HAK_RANDOM_CANARIES + 3, /* two */
    HAK_RANDOM_ORDER = HAK_RANDOM_LARGE + 2,    /* two */
    HAK_RANDOM_QUARANTINE = HAK_RANDOM_ORDER + 2,
    HAK_RANDOM_SLACK,
    HAK_RANDOM_LENGTHS
};
uint64_t hak_os_random(uint32_t number);

/* From now on these, and the addresses above, are the same in each process that is given the same seed; 0: they differ
 * again. One thread at a time, which nobody draws beside. */
void hak_os_seed_random(uint64_t seed);

/* The same as hak_os_map at these addresses, and nowhere else. OCCUPIED: something is mapped there already; REFUSED:
 * the kernel gives none. */
enum hak_os_mapped { HAK_OS_REFUSED, HAK_OS_OCCUPIED, HAK_OS_MAPPED };
enum hak_os_mapped hak_os_map_at(void *start, size_t bytes);

/* Gives a part of any mapping back, for good. False on refusal: it is mapped still. */
bool hak_os_unmap(void *start, size_t bytes);

/* Gives the memory back and keeps the address space: pages read as zero afterwards. False on refusal: each page is
 * unchanged, or reads as zero. */
bool hak_os_purge(void *start, size_t bytes);

/* Address space that something is to be moved to, and the mark at its start. After a refused move nobody knows whether
 * it is there: the kernel unmaps it before it finds most reasons to refuse, and another thread may have the addresses
 * at once. The error doesn't tell, for each version finds other reasons at other moments; the mark does, which no other
 * mapping has. */
struct hak_os_target {
    void *start; /* NULL: the kernel has refused to reserve it */
    size_t bytes;
    uint64_t mark;
};
struct hak_os_target hak_os_reserve_target(size_t bytes, size_t alignment);

/* Gives a target back that nothing was moved to, if it is there still; nothing is done to what another thread has at
 * its addresses. False when it is there, and the kernel refuses. Where the kernel doesn't say what is there, its
 * addresses are lost. */
bool hak_os_drop_target(const struct hak_os_target *target);

/* Grows or shrinks a mapping in its place. False on refusal: it has not changed. */
bool hak_os_remap(void *start, size_t old_bytes, size_t new_bytes);

/* Moves a mapping of at most as many bytes to a target; it has the target's bytes then. False on refusal: the mapping
 * has not changed, and the target is to be dropped. */
bool hak_os_move(void *start, size_t bytes, const struct hak_os_target *target);

/* Moves the pages of a part of one mapping to addresses that the kernel chooses, a mapping of its own. The addresses
 * they come from stay, and read as zero. NULL on refusal, or if the part is more than one mapping: nothing has moved.
 * To chosen addresses newer kernels (Linux 6.17) move one mapping after the other, and may stop between them. */
void *hak_os_move_pages(void *start, size_t bytes);

/* Puts guards into a part of a mapping, which stays one: its memory goes back, and whatever touches it faults. False
 * where the kernel doesn't know of guards (Linux 6.13), or refuses: each page is as it was, reads as zero, or has one.
 * The second takes guards away, if there are some: pages that had one read as zero. False on refusal. */
bool hak_os_guard(void *start, size_t bytes);
bool hak_os_unguard(void *start, size_t bytes);

/* False once the kernel has shown that it doesn't know of guards. */
bool hak_os_may_guard(void);

/* Whether the mapping that a page is in is locked in memory (mlock, mlockall). */
bool hak_os_is_locked(void *page);

/* Gives the memory back when the kernel needs it: until then pages are what they were, afterwards zero. False on
 * refusal. */
bool hak_os_purge_lazily(void *start, size_t bytes);

/* Gives a part that is readable and writable memory now, in place of a fault for each page. False on refusal, or where
 * the kernel doesn't know the call. */
bool hak_os_populate(void *start, size_t bytes);

/* True when the kernel gives transparent huge pages of 2 MiB to who asks for them, and this process may have some.
 * Reads a file at the first call. */
bool hak_os_has_huge_pages(void);

/* Asks for transparent huge pages in this part, or for none, from now on. False on refusal. */
bool hak_os_ask_for_huge_pages(void *start, size_t bytes);
bool hak_os_refuse_huge_pages(void *start, size_t bytes);

/* Writes to a page, and leaves its contents. Returns how long that took, in ms of hak_os_clock_ms: whole ticks, which
 * are right on the average. */
uint64_t hak_os_touch(void *page);

/* Breaks the huge page that `page` is in, if it is in one: a part of it can go back to the kernel then. The contents of
 * this one page may be lost. */
void hak_os_break_huge_page(void *page);

/* Time since some fixed moment, in ms, steady, as fine as the kernel's tick (1 to 10 ms). Cheap. */
uint64_t hak_os_clock_ms(void);

/* The same as fine as can be, in ns. */
uint64_t hak_os_clock_ns(void);

/* What the process has cost so far: time of processors, and what of it was the kernel's. With `may_ask` the kernel is
 * asked, by a system call that sandboxes may kill for. Else it is what can be known without: time, as if one processor
 * worked for the process all along, and what hakmem's memory calls, and pages that went back and came again, cost
 * typically. For who compares one way to allocate with another. */
struct hak_os_usage {
    uint64_t cpu_ns, kernel_ns;
};
struct hak_os_usage hak_os_usage(bool may_ask);

/* The build id of the program, as its linker wrote it, up to `capacity` bytes; returns how many, 0 for a program
 * without one. */
enum { HAK_BUILD_ID_BYTES = 32 };
size_t hak_os_build_id(unsigned char *id, size_t capacity);

/* Starts a thread with a small stack, which ends when `run` returns. All signals are blocked in it, but SIGSYS is as in
 * the caller. It is to be joined: by who starts it, if `thread` is given, else by whom it tells. False on refusal. */
bool hak_os_start_thread(void (*run)(void), uintptr_t *thread);
void hak_os_join_thread(uintptr_t thread);
bool hak_os_try_join_thread(uintptr_t thread); /* false: it has not ended yet */

/* The kernel counts a thread, by its number, for a moment after it was joined. Waits for a second at most. */
void hak_os_wait_until_gone(uint32_t thread);
uintptr_t hak_os_this_thread(void);

/* Where the calling thread's stack ends, if `place` is on the one that it began with: nobody unmaps what lies between
 * them. 0: it is on another one, as coroutines have. One that lies less than a GiB below is taken for the thread's. */
uintptr_t hak_os_stack_end(uintptr_t place);

/* By a thread that was started so: from now on it is named hakmem, has a table of descriptors of its own where the
 * kernel knows of that (hak_descriptors_take), and the main thread's processors and priority, but is never a
 * real-time one; and what it starts has them. BEGAN_FILTERED or FILTERED, and nothing is done, when its system calls
 * are filtered, since the process began or since some moment later: these may be forbidden. FOREIGN: its
 * rights, namespaces or folders aren't those of the process's first thread, and it should end. */
enum hak_os_settled { HAK_OS_SETTLED, HAK_OS_BEGAN_FILTERED, HAK_OS_FILTERED, HAK_OS_FOREIGN };
enum hak_os_settled hak_os_settle_thread(void);

/* True when system calls were filtered before main. */
bool hak_os_began_filtered(void);

/* Sleeps while *word is `expected`, until it is woken or the time is over (0: however long it takes); perhaps less. Who
 * wakes, wakes all that sleep so. */
void hak_os_wait(HAK_ATOMIC(uint32_t) *word, uint32_t expected, uint64_t most_us);
void hak_os_wake(HAK_ATOMIC(uint32_t) *word);

/* False once a sandbox has refused that a thread sleeps: no thread of hakmem's may be here then, nor in children. */
bool hak_os_may_wait(void);

/* Lets another thread run. */
void hak_os_yield(void);

/* Processors that the process's first thread could run on when this was first asked, 1 or more; 1024 when the kernel
 * doesn't tell. Before main, reads a file. */
uint32_t hak_os_processor_count(void);

/* Writes all of `text` to a file descriptor, as far as that is possible. */
void hak_os_write(int descriptor, const char *text, size_t length);

/* The same, for what nobody but a setting has asked for: a pipe that nobody reads any more sends no SIGPIPE, a limit of
 * files' sizes no SIGXFSZ. False when not all of it was written. */
bool hak_os_write_quietly(int descriptor, const char *text, size_t length);

/* Writes a line that nobody waits for to standard error as it was at the start, where that is kept (below): not at all
 * where it would have to wait, or the program has closed what was kept; of a long one the beginning. */
void hak_os_write_line(const char *text, size_t length);

/* Writes what the first descriptor has from here on, as far as it can be read, to the second, and closes the first,
 * which may be -1: it has nothing. */
bool hak_os_copy_file(int from, int to);

/* Opens `path` for writing, emptied, closed on exec; waits for nobody: a named pipe must have a reader. Returns a
 * descriptor, or -1. */
int hak_os_create_file(const char *path);

/* Puts a file with this text in the place of `path`, whoever reads it meanwhile: he sees the old one or this one,
 * whole. False when that can't be: `path` is as it was. */
bool hak_os_replace_file(const char *path, const char *text, size_t length);

/* Opens `path` for reading, closed on exec. Returns a descriptor, or -1. */
int hak_os_open_file(const char *path);

/* Opens a file of the process's own in /proc, such as maps, as above: the calling thread's, which is there also when
 * the first thread has ended. Leaves errno. */
int hak_os_open_own(const char *name);

/* Opens a regular file as above, of 1 to `most_bytes` bytes, with `is_own` of one that belongs to root or to the user
 * whose process this is; waits for nobody. -1 for any other: `problem` says why, and is NULL where there is none, or
 * none that the caller can reach; errno tells these apart. */
int hak_os_open_regular_file(const char *path, size_t most_bytes, bool is_own, const char **problem);

/* Reads up to `bytes`; returns how many, 0 at the end of the file and when it can't be read. */
size_t hak_os_read(int descriptor, void *buffer, size_t bytes);
void hak_os_close(int descriptor);

/* Keeps a descriptor for standard error, out of the way of the program's, for when it has been closed. One in a
 * process; a child of fork drops it. */
void hak_os_keep_stderr(void);
void hak_os_drop_stderr(void);

/* Whether hak_os_replace_file may do so, as far as what is there and its folder go. */
bool hak_os_may_replace(const char *path);

/* The kept descriptor, if it is there and the same file's still, else the program's own under the same condition,
 * else -1: whatever has its number now is the program's. */
int hak_os_kept_stderr(void);

/* True when the process runs with more rights than its caller (setuid, capabilities). */
bool hak_os_is_privileged(void);

int hak_os_process_id(void);

/* The name of the host, or of the container that has one of its own (its UTS namespace). False: there is none. */
enum { HAK_OS_HOST_NAME_BYTES = 65 };
bool hak_os_host_name(char name[HAK_OS_HOST_NAME_BYTES]);
uint32_t hak_os_thread_id(void); /* of the caller, as the kernel counts; no system call. 0 when it is not known */

/* The address of the misuse that this process has reported and is to be aborted for; 0 for none. Where there is one,
 * its kind, and how far from the address something was written. */
uintptr_t hak_os_complaint(void);
enum hak_misuse_kind hak_os_complaint_kind(void);
ptrdiff_t hak_os_complaint_offset(void);

/* True when the word at a multiple of 8 can be read, and the kernel says so. Signal handlers may call it. */
bool hak_os_is_readable(const void *address);

/* True when thread-local variables can be written: false only at the very start of a static program. Calls nothing: it
 * works before relocation is complete. */
bool hak_os_has_thread_pointer(void);

#endif
