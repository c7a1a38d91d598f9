/* Free memory stays, as it does in a program that has shown to use it again; region/allowance.h. For tests of what is free
 * that are not about giving it back. */
#ifndef ALLOWANCE_H
#define ALLOWANCE_H

#include "base/counters.h"
#include "front/tight.h"
#include "hakmem/hakmem.h"
#include "os/os.h"
#include "region/allowance.h"

static inline void allow_free_memory(void) {
    uint64_t bytes = (uint64_t)1 << 40, pages = bytes / hak_os_page_bytes();
    hak_allowance_gave(bytes);
    hak_count_reuse(pages);
    hak_allowance_look(0);
}

/* The same where the background thread's rules are there, which bound it. */
static inline void allow_free_memory_of_programs(void) {
    hak_atomic_store(&hak_allowance_limit_bytes, HAK_ALLOWANCE_OF_ALL, relaxed);
    allow_free_memory();
}

#endif
