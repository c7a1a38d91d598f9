/* clang's allocation tokens (-fsanitize=alloc-token): in place of each function that allocates, the compiler calls one
 * whose name begins with __alloc_token_, and passes a number more, by which an allocator may keep types apart. hakmem
 * doesn't: each calls the function it stands for, the program's own if it has one. */
#include "api/override.h"

#ifndef HAK_NO_OVERRIDE

#define TOKENED(name, result, parameters, arguments, ...)                                                              \
    extern result called_##name parameters __asm__(#name);                                                             \
    HAK_API result __alloc_token_##name(__VA_ARGS__, size_t token);                                                    \
    HAK_API result __alloc_token_##name(__VA_ARGS__, size_t token) {                                                   \
        (void)token;                                                                                                   \
        return called_##name arguments;                                                                                \
    }

struct nothrow; /* std::nothrow_t, passed by reference and never looked at */

TOKENED(malloc, void *, (size_t), (size), size_t size)
TOKENED(calloc, void *, (size_t, size_t), (count, size), size_t count, size_t size)
TOKENED(realloc, void *, (void *, size_t), (block, size), void *block, size_t size)
TOKENED(reallocarray, void *, (void *, size_t, size_t), (block, count, size), void *block, size_t count, size_t size)
TOKENED(aligned_alloc, void *, (size_t, size_t), (alignment, size), size_t alignment, size_t size)
TOKENED(memalign, void *, (size_t, size_t), (alignment, size), size_t alignment, size_t size)
TOKENED(posix_memalign, int, (void **, size_t, size_t), (block, alignment, size), void **block, size_t alignment,
        size_t size)
TOKENED(valloc, void *, (size_t), (size), size_t size)
TOKENED(pvalloc, void *, (size_t), (size), size_t size)
TOKENED(_Znwm, void *, (size_t), (size), size_t size)
TOKENED(_Znam, void *, (size_t), (size), size_t size)
TOKENED(_ZnwmRKSt9nothrow_t, void *, (size_t, const struct nothrow *), (size, tag), size_t size,
        const struct nothrow *tag)
TOKENED(_ZnamRKSt9nothrow_t, void *, (size_t, const struct nothrow *), (size, tag), size_t size,
        const struct nothrow *tag)
TOKENED(_ZnwmSt11align_val_t, void *, (size_t, size_t), (size, alignment), size_t size, size_t alignment)
TOKENED(_ZnamSt11align_val_t, void *, (size_t, size_t), (size, alignment), size_t size, size_t alignment)
TOKENED(_ZnwmSt11align_val_tRKSt9nothrow_t, void *, (size_t, size_t, const struct nothrow *), (size, alignment, tag),
        size_t size, size_t alignment, const struct nothrow *tag)
TOKENED(_ZnamSt11align_val_tRKSt9nothrow_t, void *, (size_t, size_t, const struct nothrow *), (size, alignment, tag),
        size_t size, size_t alignment, const struct nothrow *tag)

#endif
