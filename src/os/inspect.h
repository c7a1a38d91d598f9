/* The process as the kernel sees it: what is mapped where, what can be read, who its threads are. For crash reports and
 * statistics.
 *
 * All of it is safe in a signal handler: buffers on the stack, at most 1 KiB, no lock, nothing of libc but system
 * calls; errno is left as it was. Where there is no /proc the answers are empty.
 */
#ifndef HAK_OS_INSPECT_H
#define HAK_OS_INSPECT_H

#include "base/platform.h"

/* A line of /proc/thread-self/maps. */
struct hak_os_mapping {
    uintptr_t start, end;
    uint64_t offset; /* of `start` in the file */
    char rights[5];  /* as in "r-xp" */
    const char
        *name; /* the file, or what the kernel calls it; empty where it has no name. Cut off when it is very long. */
};

/* Calls `visit` for every mapping, from the lowest on, until it returns false. False when /proc can't be read. */
HAK_COLD bool hak_os_for_each_mapping(bool (*visit)(const struct hak_os_mapping *mapping, void *context),
                                      void *context);

/* Copies memory that may not be there. False, with `to` in any state, when it can't be read. */
bool hak_os_read_memory(uintptr_t from, void *to, size_t bytes);

/* The same for up to a page from a multiple of 8 on, without descriptors: malloc may call it. A sandbox that refuses it
 * takes from it that memory may go meanwhile, by another thread. */
bool hak_os_peek_memory(uintptr_t from, void *to, size_t bytes);

/* The build id of the ELF file that is mapped with its header from `start` on, as its linker wrote it, up to `capacity`
 * bytes; returns how many, 0: there is none. `memory` is /proc/thread-self/mem. */
HAK_COLD size_t hak_os_build_id_at(int memory, uintptr_t start, unsigned char *id, size_t capacity);

/* What a thread of this process is called; empty when that can't be told. */
enum { HAK_THREAD_NAME_BYTES = 16 }; /* with the terminating NUL */
HAK_COLD void hak_os_thread_name(int thread, char name[HAK_THREAD_NAME_BYTES]);

#endif
