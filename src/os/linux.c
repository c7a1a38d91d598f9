/* os.h on Linux. */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/format.h"
#include "os/channel.h"
#include "os/os.h"

/* Constants newer than the oldest headers hakmem builds with. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

struct hak_os_counters hak_os_counters;

static void count_call(void) { hak_counter_add_shared(&hak_os_counters.system_calls, 1); }

size_t hak_os_page_bytes(void) {
    static HAK_ATOMIC(size_t) page_bytes;
    size_t known = hak_atomic_load(&page_bytes, relaxed);
    if (HAK_LIKELY(known != 0)) return known;
    known = getauxval(AT_PAGESZ);
    if (known == 0) known = 4096;
    hak_atomic_store(&page_bytes, known, relaxed);
    return known;
}

static void *map_anywhere(size_t bytes, int protection) {
    count_call();
    void *start = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    hak_counter_add_shared(&hak_os_counters.mapped_bytes, bytes);
    return start;
}

/* munmap without counting what was in it as purged: for address space that was never used. */
static bool unmap(void *start, size_t bytes) {
    if (bytes == 0) return true;
    count_call();
    if (munmap(start, bytes) != 0) return false;
    hak_counter_add_shared(&hak_os_counters.mapped_bytes, -(uint64_t)bytes);
    return true;
}

static void *map_aligned(size_t bytes, size_t alignment, int protection) {
    int saved_errno = errno;
    char *start = map_anywhere(bytes, protection);
    if (start != NULL && ((uintptr_t)start & (alignment - 1)) != 0) {
        unmap(start, bytes);
        size_t room = alignment - hak_os_page_bytes();
        start = bytes > SIZE_MAX - room ? NULL : map_anywhere(bytes + room, protection);
        if (start != NULL) {
            size_t before = hak_align_up((uintptr_t)start, alignment) - (uintptr_t)start;
            unmap(start, before);
            start += before;
            unmap(start + bytes, room - before);
        }
    }
    errno = saved_errno;
    return start;
}

void *hak_os_reserve(size_t bytes, size_t alignment) { return map_aligned(bytes, alignment, PROT_NONE); }

void *hak_os_map(size_t bytes, size_t alignment) { return map_aligned(bytes, alignment, PROT_READ | PROT_WRITE); }

void hak_os_name(void *start, size_t bytes, const char *name) {
    int saved_errno = errno;
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, start, bytes, name);
    errno = saved_errno;
}

bool hak_os_commit(void *start, size_t bytes) {
    int saved_errno = errno;
    count_call();
    bool done = mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0;
    errno = saved_errno;
    return done;
}

bool hak_os_unmap(void *start, size_t bytes) {
    int saved_errno = errno;
    bool done = unmap(start, bytes);
    if (done) hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    errno = saved_errno;
    return done;
}

bool hak_os_purge(void *start, size_t bytes) {
    int saved_errno = errno;
    count_call();
    bool done = madvise(start, bytes, MADV_DONTNEED) == 0;
    if (!done && errno == EINVAL) { /* locked in memory */
        count_call();
        done = madvise(start, bytes, MADV_DONTNEED_LOCKED) == 0;
    }
    if (done) hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    errno = saved_errno;
    return done;
}

/* The target of a refused remap is there still if the call never got as far as the kernel's memory management. */
static void drop_target(void *target, size_t bytes) {
    if (target != NULL && (errno == EPERM || errno == ENOSYS || errno == EINVAL)) unmap(target, bytes);
}

bool hak_os_remap(void *start, size_t old_bytes, size_t new_bytes, void *target) {
    int saved_errno = errno;
    count_call();
    void *moved = target == NULL ? mremap(start, old_bytes, new_bytes, 0)
                                 : mremap(start, old_bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    bool done = moved != MAP_FAILED;
    /* A move replaces the target, whose bytes were counted already. */
    if (done)
        hak_counter_add_shared(&hak_os_counters.mapped_bytes, (target == NULL ? new_bytes : 0) - (uint64_t)old_bytes);
    else drop_target(target, new_bytes);
    errno = saved_errno;
    return done;
}

bool hak_os_move_pages(void *start, size_t bytes, void *target) {
    int saved_errno = errno;
    count_call();
    bool done = mremap(start, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, target) != MAP_FAILED;
    if (!done) drop_target(target, bytes);
    errno = saved_errno;
    return done;
}

static bool advise(void *start, size_t bytes, int advice) {
    int saved_errno = errno;
    count_call();
    bool done = madvise(start, bytes, advice) == 0;
    errno = saved_errno;
    return done;
}

bool hak_os_purge_lazily(void *start, size_t bytes) {
    bool done = advise(start, bytes, MADV_FREE);
    if (done) hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    return done;
}

bool hak_os_populate(void *start, size_t bytes) { return advise(start, bytes, MADV_POPULATE_WRITE); }
bool hak_os_ask_for_huge_pages(void *start, size_t bytes) { return advise(start, bytes, MADV_HUGEPAGE); }
bool hak_os_refuse_huge_pages(void *start, size_t bytes) { return advise(start, bytes, MADV_NOHUGEPAGE); }

/* To free a part of a huge page lazily the kernel has to break it, while MADV_DONTNEED leaves the memory of the part with the
 * rest until there is none elsewhere. */
void hak_os_break_huge_page(void *page) { (void)advise(page, hak_os_page_bytes(), MADV_FREE); }

size_t hak_os_resident_bytes(void *start, size_t bytes) {
    unsigned char pages[512];
    size_t page = hak_os_page_bytes(), count = bytes / page, resident = 0;
    int saved_errno = errno;
    count_call();
    if (count > sizeof pages || mincore(start, bytes, pages) != 0) count = 0;
    for (size_t i = 0; i < count; i++) resident += pages[i] & 1;
    errno = saved_errno;
    return resident * page;
}

/* The beginning of a small file, as text. False when it can't be read. */
static bool read_file(const char *path, char *text, size_t capacity) {
    int saved_errno = errno, descriptor = hak_os_open_file(path);
    size_t length = descriptor < 0 ? 0 : hak_os_read(descriptor, text, capacity - 1);
    if (descriptor >= 0) hak_os_close(descriptor);
    errno = saved_errno;
    text[length] = '\0';
    return length > 0;
}

/* The number a text begins with. strtoul needs a locale, which there isn't before the program is relocated. */
static size_t number_in(const char *text) {
    size_t number = 0;
    for (; *text >= '0' && *text <= '9'; text++) number = number * 10 + (size_t)(*text - '0');
    return number;
}

bool hak_os_has_huge_pages(void) {
    enum { UNKNOWN, NO, YES };
    static HAK_ATOMIC(uint32_t) answer;
    uint32_t known = hak_atomic_load(&answer, relaxed);
    if (HAK_LIKELY(known != UNKNOWN)) return known == YES;
    char text[64];
    /* A huge page is what one page full of page-table entries maps. */
    size_t huge_bytes = hak_os_page_bytes() / sizeof(uint64_t) * hak_os_page_bytes();
    bool has = huge_bytes == 2 * HAK_MIB &&
               read_file("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) &&
               strstr(text, "[never]") == NULL && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 1;
    hak_atomic_store(&answer, has ? YES : NO, relaxed);
    return has;
}

size_t hak_os_mapping_limit(void) {
    enum { KERNEL_DEFAULT = 65530 };
    static HAK_ATOMIC(size_t) limit;
    size_t known = hak_atomic_load(&limit, relaxed);
    if (HAK_LIKELY(known != 0)) return known;
    char text[64];
    if (read_file("/proc/sys/vm/max_map_count", text, sizeof text)) known = number_in(text);
    if (known == 0) known = KERNEL_DEFAULT;
    hak_atomic_store(&limit, known, relaxed);
    return known;
}

size_t hak_os_address_space_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    return limit.rlim_cur;
}

static uint64_t read_clock_ns(clockid_t clock) {
    struct timespec now;
    int saved_errno = errno;
    if (clock_gettime(clock, &now) != 0) now.tv_sec = now.tv_nsec = 0;
    errno = saved_errno;
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t hak_os_clock_ms(void) { return read_clock_ns(CLOCK_MONOTONIC_COARSE) / 1000000; }
uint64_t hak_os_clock_ns(void) { return read_clock_ns(CLOCK_MONOTONIC); }
uint64_t hak_os_cpu_ns(void) { return read_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
uint64_t hak_os_own_cpu_ns(void) { return read_clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/* The clock of a thread, as linux/posix-timers.h has it: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED. */
uint64_t hak_os_thread_cpu_ns(uint32_t thread_id) { return read_clock_ns((clockid_t)(~thread_id << 3 | 6)); }

struct hak_os_usage hak_os_usage(void) {
    struct rusage usage;
    int saved_errno = errno;
    struct hak_os_usage answer = {0, 0};
    if (syscall(SYS_getrusage, RUSAGE_SELF, &usage) == 0) {
        answer.kernel_ns = (uint64_t)usage.ru_stime.tv_sec * 1000000000 + (uint64_t)usage.ru_stime.tv_usec * 1000;
        answer.cpu_ns =
            answer.kernel_ns + (uint64_t)usage.ru_utime.tv_sec * 1000000000 + (uint64_t)usage.ru_utime.tv_usec * 1000;
    }
    errno = saved_errno;
    return answer;
}

/* Looks for a note of GNU's in a part of the program that is mapped. */
static size_t find_build_id(uintptr_t at, uintptr_t end, unsigned char *id, size_t capacity) {
    while (end - at >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        uintptr_t name = at + sizeof *note, content = name + hak_align_up(note->n_namesz, 4);
        if (content + note->n_descsz > end) return 0;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp((const void *)name, "GNU", 4) == 0) {
            size_t bytes = note->n_descsz < capacity ? note->n_descsz : capacity;
            memcpy(id, (const void *)content, bytes);
            return bytes;
        }
        at = content + hak_align_up(note->n_descsz, 4);
    }
    return 0;
}

size_t hak_os_build_id(unsigned char *id, size_t capacity) {
    const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR);
    size_t count = getauxval(AT_PHNUM), bytes = 0;
    uintptr_t loaded_at = 0;
    for (size_t i = 0; headers != NULL && i < count; i++)
        if (headers[i].p_type == PT_PHDR) loaded_at = (uintptr_t)headers - headers[i].p_vaddr;
    for (size_t i = 0; headers != NULL && i < count && bytes == 0; i++)
        if (headers[i].p_type == PT_NOTE)
            bytes = find_build_id(loaded_at + headers[i].p_vaddr, loaded_at + headers[i].p_vaddr + headers[i].p_memsz,
                                  id, capacity);
    return bytes;
}

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer does not see what the system call orders, and would report every drained block. */
bool hak_fence_threads(void) { return false; }
#else
/* Numbers of linux/membarrier.h, which old headers lack. */
bool hak_fence_threads(void) {
    enum { PRIVATE_EXPEDITED = 1 << 3, REGISTER_PRIVATE_EXPEDITED = 1 << 4 };
    int saved_errno = errno;
    bool done = syscall(SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) == 0;
    if (!done && errno == EPERM)
        done = syscall(SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
               syscall(SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) == 0;
    errno = saved_errno;
    return done;
}
#endif

static sigset_t creators_mask; /* for the thread that begins next; it may start another itself */

static void *run_thread(void *run) {
    union {
        void *pointer;
        void (*function)(void);
    } start = {.pointer = run};
    sigset_t mask = creators_mask;
    prctl(PR_SET_NAME, "hakmem");
    start.function();
    /* If it is the last thread, the process exits now, and its exit handlers run here. */
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return NULL;
}

/* With the C library's own size of a stack for `stack_bytes` 0. */
static bool create_thread(pthread_t *thread, size_t stack_bytes, bool is_detached, void *run) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    if (is_detached) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack_bytes != 0) pthread_attr_setstacksize(&attributes, stack_bytes);
    bool created = pthread_create(thread, &attributes, run_thread, run) == 0;
    pthread_attr_destroy(&attributes);
    return created;
}

bool hak_os_start_thread(void (*run)(void), uintptr_t *joinable) {
    enum { STACK_BYTES = 256 << 10 }; /* touched as used: some 8 KiB */
    int saved_errno = errno;
    pthread_t thread;
    sigset_t all, mask;
    union {
        void (*function)(void);
        void *pointer;
    } start = {.function = run};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    creators_mask = mask;
    bool is_detached = joinable == NULL;
    /* What a program has in thread-local variables is on each thread's stack, and can be more. */
    bool started = create_thread(&thread, STACK_BYTES, is_detached, start.pointer) ||
                   create_thread(&thread, 0, is_detached, start.pointer);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (started && joinable != NULL) *joinable = (uintptr_t)thread;
    errno = saved_errno;
    return started;
}

void hak_os_join_thread(uintptr_t thread) { pthread_join((pthread_t)thread, NULL); }

/* Numbers of linux/futex.h, which musl-gcc does not find. */
enum { WAIT_PRIVATE = 0 | 128, WAKE_PRIVATE = 1 | 128 };

void hak_os_wait(HAK_ATOMIC(uint32_t) *word, uint32_t expected, uint64_t most_us) {
    int saved_errno = errno;
    struct timespec time = {.tv_sec = (time_t)(most_us / 1000000), .tv_nsec = (long)(most_us % 1000000) * 1000};
    syscall(SYS_futex, word, WAIT_PRIVATE, expected, most_us == 0 ? NULL : &time, NULL, 0);
    errno = saved_errno;
}

void hak_os_wake(HAK_ATOMIC(uint32_t) *word) {
    int saved_errno = errno;
    syscall(SYS_futex, word, WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = saved_errno;
}

void hak_os_yield(void) { sched_yield(); }

uint32_t hak_os_processor_count(void) {
    cpu_set_t set;
    int saved_errno = errno;
    bool done = sched_getaffinity(0, sizeof set, &set) == 0;
    errno = saved_errno;
    return done ? (uint32_t)CPU_COUNT(&set) : CPU_SETSIZE;
}

static bool write_all(int descriptor, const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(descriptor, text, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text += written;
        length -= (size_t)written;
    }
    return true;
}

void hak_os_write(int descriptor, const char *text, size_t length) {
    int saved_errno = errno;
    if (!write_all(descriptor, text, length) && descriptor == STDERR_FILENO && errno == EBADF) {
        int borrowed = hak_os_channel_stderr();
        if (borrowed >= 0) {
            write_all(borrowed, text, length);
            hak_os_close(borrowed);
        }
    }
    errno = saved_errno;
}

bool hak_os_replace_file(const char *path, const char *text, size_t length) {
    int saved_errno = errno;
    char buffer[4096];
    struct hak_text beside = hak_text_in(buffer, sizeof buffer);
    hak_text_add(&beside, "%s.%d.part", path, hak_os_process_id());
    unlink(beside.start); /* of a process that had this number before, and was killed */
    int descriptor = beside.truncated ? -1 : open(beside.start, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool done = descriptor >= 0 && write_all(descriptor, text, length);
    if (descriptor >= 0 && close(descriptor) != 0) done = false;
    done = done && rename(beside.start, path) == 0;
    if (!done && descriptor >= 0) unlink(beside.start);
    errno = saved_errno;
    return done;
}

int hak_os_create_file(const char *path) { return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }

/* These three are asked for in the middle of a malloc, which is no cancellation point; libc's functions are. */
int hak_os_open_file(const char *path) { return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); }

size_t hak_os_read(int descriptor, void *buffer, size_t bytes) {
    ssize_t length;
    do length = (ssize_t)syscall(SYS_read, descriptor, buffer, bytes);
    while (length < 0 && errno == EINTR);
    return length < 0 ? 0 : (size_t)length;
}

void hak_os_copy_file(const char *path, int to) {
    char part[4096];
    int saved_errno = errno, from = hak_os_open_file(path);
    size_t length;
    while (from >= 0 && (length = hak_os_read(from, part, sizeof part)) > 0) hak_os_write(to, part, length);
    if (from >= 0) hak_os_close(from);
    errno = saved_errno;
}

void hak_os_close(int descriptor) { syscall(SYS_close, descriptor); }

int hak_os_duplicate(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 100); }

bool hak_os_is_privileged(void) { return getauxval(AT_SECURE) != 0; }

int hak_os_process_id(void) { return (int)getpid(); }

uint32_t hak_os_thread_id(void) { return (uint32_t)syscall(SYS_gettid); }

bool hak_os_is_readable(const void *address) {
    enum { NO_SUCH_WAY = -1, SET_BYTES = 8 };
    int saved_errno = errno;
    /* The kernel reads the set before it looks at what is to be done with it. */
    bool readable = syscall(SYS_rt_sigprocmask, NO_SUCH_WAY, address, NULL, SET_BYTES) != 0 && errno != EFAULT;
    errno = saved_errno;
    return readable;
}

bool hak_os_has_thread_pointer(void) {
    uintptr_t pointer = 1;
#if defined(__x86_64__)
    enum { ARCH_PRCTL = 158, ARCH_GET_FS = 0x1003 };
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)ARCH_PRCTL), "D"((long)ARCH_GET_FS), "S"(&pointer)
                     : "rcx", "r11", "memory");
    if (result != 0) return false;
#elif defined(__aarch64__)
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#endif
    return pointer != 0;
}

/* ---- base/check.h ----------------------------------------------------------------------------------------------- */

static _Noreturn void die(struct hak_text *message) {
    hak_os_write(STDERR_FILENO, message->start, message->length);
    abort();
}

static HAK_ATOMIC(uintptr_t) complaint;

uintptr_t hak_os_complaint(void) { return hak_atomic_load(&complaint, relaxed); }

void hak_misuse(enum hak_misuse_kind kind, const char *function, const void *address, size_t offset, size_t size) {
    hak_atomic_store(&complaint, (uintptr_t)address, relaxed);
    char buffer[256];
    struct hak_text message = hak_text_in(buffer, sizeof buffer);
    hak_text_add(&message, "hakmem: %s(%p): ", function, (void *)(uintptr_t)address);
    switch (kind) {
    case HAK_MISUSE_DOUBLE_FREE: hak_text_add(&message, "double free of a block of %zu bytes\n", size); break;
    case HAK_MISUSE_FOREIGN_POINTER: hak_text_add(&message, "invalid pointer: not a block of this heap\n"); break;
    case HAK_MISUSE_INTERIOR_POINTER:
        hak_text_add(&message, "invalid pointer: %zu bytes into a block of %zu bytes\n", offset, size);
        break;
    }
    die(&message);
}

void hak_assertion_failed(const char *condition, const char *file, int line) {
    char buffer[256];
    struct hak_text message = hak_text_in(buffer, sizeof buffer);
    hak_text_add(&message, "hakmem: invariant broken: %s (%s:%d)\n", condition, file, line);
    die(&message);
}
