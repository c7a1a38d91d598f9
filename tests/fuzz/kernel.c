#include "kernel.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic unsigned refused_calls;
static _Atomic long to_pass, to_refuse;
static _Atomic int refused_error;
static _Atomic uint64_t refused, mapped_bytes;

void kernel_refuse(unsigned calls, unsigned after, unsigned count, int error) {
    atomic_store(&refused_calls, 0);
    atomic_store(&to_pass, (long)after);
    atomic_store(&to_refuse, (long)count);
    atomic_store(&refused_error, error);
    atomic_store(&refused_calls, calls);
}

uint64_t kernel_refused(void) { return atomic_load(&refused); }
uint64_t kernel_mapped_bytes(void) { return atomic_load(&mapped_bytes); }

#ifdef FUZZ_WRAPPED

int kernel_is_wrapped(void) { return 1; }

/* The target that the last refused move has lost; 0 bytes when that was looked at, or addresses were given since. */
static _Atomic uintptr_t lost_start;
static _Atomic size_t lost_bytes;

/* Of linux/futex.h, which musl-gcc does not find. */
enum { FUTEX_COMMANDS = 127, FUTEX_WAITS = 0 };

static int is_refused(unsigned call) {
    if ((atomic_load(&refused_calls) & call) == 0) return 0;
    if (atomic_fetch_sub(&to_pass, 1) > 0 || atomic_fetch_sub(&to_refuse, 1) <= 0) return 0;
    atomic_fetch_add(&refused, 1);
    errno = atomic_load(&refused_error);
    return 1;
}

void *__real_mmap(void *, size_t, int, int, int, off_t);
void *__wrap_mmap(void *, size_t, int, int, int, off_t);
int __real_munmap(void *, size_t);
int __wrap_munmap(void *, size_t);
void *__real_mremap(void *, size_t, size_t, int, ...);
void *__wrap_mremap(void *, size_t, size_t, int, ...);
int __real_madvise(void *, size_t, int);
int __wrap_madvise(void *, size_t, int);
int __real_mprotect(void *, size_t, int);
int __wrap_mprotect(void *, size_t, int);
long __real_syscall(long, ...);
long __wrap_syscall(long, ...);

/* No two threads map or move at once: what a refused move leaves is looked at before another mapping can lie there. */
static _Atomic int is_locked;

static void lock(void) {
    while (atomic_exchange(&is_locked, 1) != 0) sched_yield();
}
static void unlock(void) { atomic_store(&is_locked, 0); }

__attribute__((constructor(101))) static void unlock_in_children(void) { pthread_atfork(NULL, NULL, unlock); }

void *__wrap_mmap(void *start, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    if (is_refused(KERNEL_MMAP)) return MAP_FAILED;
    lock();
    void *mapped = __real_mmap(start, bytes, protection, flags, descriptor, offset);
    unlock();
    atomic_store(&lost_bytes, 0);
    if (mapped != MAP_FAILED && (flags & MAP_FIXED) == 0) atomic_fetch_add(&mapped_bytes, bytes);
    return mapped;
}

int __wrap_munmap(void *start, size_t bytes) {
    if (is_refused(KERNEL_MUNMAP)) return -1;
    int result = __real_munmap(start, bytes);
    if (result == 0) atomic_fetch_sub(&mapped_bytes, bytes);
    return result;
}

static void count_lost(void *target, size_t bytes) {
    atomic_fetch_sub(&mapped_bytes, bytes);
    atomic_store(&lost_start, (uintptr_t)target);
    atomic_store(&lost_bytes, bytes);
}

/* As the kernel does it, the target of a move is gone when memory or a limit is the reason to refuse. */
static void lose_target(void *target, size_t bytes) {
    if (__real_munmap(target, bytes) == 0) count_lost(target, bytes);
}

/* The kernel itself has refused a move: it may have unmapped the target before it did. */
static void look_for_target(void *target, size_t bytes) {
    void *found = __real_mmap(target, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (found == MAP_FAILED) return; /* it is there */
    __real_munmap(found, 1);
    if (found == target) count_lost(target, bytes);
}

/* Who may not look whether a target went has to hold it for mapped, from then on. */
static void hide_loss(uintptr_t word) {
    if (word == atomic_load(&lost_start)) atomic_fetch_add(&mapped_bytes, atomic_exchange(&lost_bytes, 0));
}

void *__wrap_mremap(void *start, size_t bytes, size_t new_bytes, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    void *target = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void *) : NULL;
    va_end(arguments);
    if (is_refused(KERNEL_MREMAP)) {
        if (target != NULL && (errno == ENOMEM || errno == EAGAIN)) lose_target(target, new_bytes);
        errno = atomic_load(&refused_error);
        return MAP_FAILED;
    }
    lock();
    void *moved = __real_mremap(start, bytes, new_bytes, flags, target);
    int error = errno;
    if (moved == MAP_FAILED && target != NULL) look_for_target(target, new_bytes);
    unlock();
    errno = error;
    int keeps_old = (flags & (1 << 2)) != 0; /* MREMAP_DONTUNMAP */
    if (moved != MAP_FAILED)
        atomic_fetch_add(&mapped_bytes, (target == NULL ? new_bytes : 0) - (keeps_old ? 0 : bytes));
    return moved;
}

int __wrap_madvise(void *start, size_t bytes, int advice) {
    return is_refused(KERNEL_MADVISE) ? -1 : __real_madvise(start, bytes, advice);
}

int __wrap_mprotect(void *start, size_t bytes, int protection) {
    return is_refused(KERNEL_MPROTECT) ? -1 : __real_mprotect(start, bytes, protection);
}

/* No kernel is out of memory for a wait: a filter forbids it. */
static int is_wait_refused(long number, const long *words) {
    if (number != SYS_futex || (words[1] & FUTEX_COMMANDS) != FUTEX_WAITS || !is_refused(KERNEL_WAIT)) return 0;
    hide_loss((uintptr_t)words[0]);
    errno = EPERM;
    return 1;
}

/* hakmem makes some memory calls so, past whatever else is called mmap. Reads six words, whatever the caller gave. */
__attribute__((no_sanitize_address)) long __wrap_syscall(long number, ...) {
    long words[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) words[i] = va_arg(arguments, long);
    va_end(arguments);
    void *start = (void *)words[0];
    size_t bytes = (size_t)words[1];
    int third = (int)words[2];
    if (number == SYS_mmap) return (long)__wrap_mmap(start, bytes, third, (int)words[3], (int)words[4], words[5]);
    if (number == SYS_munmap) return __wrap_munmap(start, bytes);
    if (number == SYS_madvise) return __wrap_madvise(start, bytes, third);
    if (number == SYS_mprotect) return __wrap_mprotect(start, bytes, third);
    if (is_wait_refused(number, words)) return -1;
    return __real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

#else

int kernel_is_wrapped(void) { return 0; }

#endif
