/* dlopen and dlmopen without RTLD_DEEPBIND. A plug-in that is loaded with this flag takes malloc and free from the C
 * library, although the program has hakmem's: then one of them frees a block of the other's heap. Without the flag all
 * names are looked up in the usual order, which begins with the program.
 *
 * In the shared library only, and in programs of glibc: others don't know the flag. Each function ends in a jump to the
 * next function of its name. So libc finds the address of the caller, whose RUNPATH and namespace count.
 */
#include <dlfcn.h>

#include "front/process.h"
#include "os/libc.h"
#include "pool/heap.h"

#if defined(__GLIBC__) && !defined(HAK_NO_OVERRIDE)

#if defined(__has_attribute)
#if __has_attribute(musttail)
#define JUMP __attribute__((musttail))
#endif
#endif
#ifndef JUMP
#define JUMP /* gcc's optimiser makes one */
#endif

/* The function that the program would have without hakmem: another library's that is loaded behind it, or libc's.
 * Libraries' constructors may ask before hakmem's own. */
static uintptr_t next_function(HAK_ATOMIC(uintptr_t) *known, const char *name, uintptr_t own) {
    uintptr_t next = hak_atomic_load(known, relaxed);
    if (next != 0) return next;
    next = (uintptr_t)hak_os_find_behind((const void *)own, name);
    if (next == 0) next = (uintptr_t)hak_os_find_in_libc(name); /* hakmem itself was opened later */
    hak_atomic_store(known, next, relaxed);
    return next;
}

/* Where another malloc comes first, and never calls hakmem's, plug-ins are not hakmem's business. */
static bool serves_program(void) {
    return hak_heap_first() != NULL || hak_os_find_any("malloc") == (void *)(uintptr_t)hak_malloc;
}

static int without_deepbind(int flags) {
    bool may_stay = (flags & RTLD_DEEPBIND) == 0 || hak_process_keeps_deepbind() || !serves_program();
    return may_stay ? flags : flags & ~RTLD_DEEPBIND;
}

HAK_API void *dlopen(const char *file, int flags) {
    static HAK_ATOMIC(uintptr_t) known;
    uintptr_t next = next_function(&known, "dlopen", (uintptr_t)dlopen);
    flags = without_deepbind(flags);
    JUMP return ((void *(*)(const char *, int))next)(file, flags);
}

/* In a namespace of its own a plug-in has a C library of its own, too, and the flag does no harm. */
HAK_API void *dlmopen(Lmid_t where, const char *file, int flags) {
    static HAK_ATOMIC(uintptr_t) known;
    uintptr_t next = next_function(&known, "dlmopen", (uintptr_t)dlmopen);
    if (where == LM_ID_BASE) flags = without_deepbind(flags);
    JUMP return ((void *(*)(Lmid_t, const char *, int))next)(where, file, flags);
}

#endif
