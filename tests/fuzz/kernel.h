/* The kernel as the allocator meets it here: its memory calls go through the linker's --wrap to kernel.c, which counts
 * address space, and refuses calls when a program says so. */
#ifndef HAKMEM_FUZZ_KERNEL_H
#define HAKMEM_FUZZ_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum kernel_call {
    KERNEL_MMAP = 1,
    KERNEL_MUNMAP = 2,
    KERNEL_MREMAP = 4,
    KERNEL_MADVISE = 8,
    KERNEL_MPROTECT = 16,
    KERNEL_WAIT = 32, /* by futex; it is how a fence in all threads is made, and how a word is looked at */
};

/* From now on, after `after` calls of these, `count` of them fail. 0 for `calls` refuses nothing. */
void kernel_refuse(unsigned calls, unsigned after, unsigned count, int error);

/* Calls refused so far. */
uint64_t kernel_refused(void);

/* Address space that the allocator has got and not given back. */
uint64_t kernel_mapped_bytes(void);

/* 0 when calls go by other ways: then nothing is refused, and nothing counted. */
int kernel_is_wrapped(void);

#endif
