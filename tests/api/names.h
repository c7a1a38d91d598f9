/* The names a test calls the allocator by: M(malloc) is malloc, or hak_malloc when compiled with API_HAK. */
#ifndef HAKMEM_TESTS_NAMES_H
#define HAKMEM_TESTS_NAMES_H

#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>

#if defined(API_HAK) || defined(API_LINKED)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* in C++, of a struct and a function that share their name */
#include "hakmem/hakmem.h"
#pragma GCC diagnostic pop
#endif

#ifdef API_HAK
#define M(name) hak_##name
#define HAS_SIZED_FREE 1
#else
#define M(name) name
/* C23 names, which older C libraries don't have. */
#ifdef __cplusplus
extern "C" {
#endif
void free_sized(void *block, size_t size) __attribute__((weak));
void free_aligned_sized(void *block, size_t alignment, size_t size) __attribute__((weak));
/* What no C library has: jemalloc's functions with flags, clang's allocation tokens, tcmalloc's operators that tell the
 * size. */
size_t nallocx(size_t size, int flags) __attribute__((weak));
void *mallocx(size_t size, int flags) __attribute__((weak));
void *rallocx(void *block, size_t size, int flags) __attribute__((weak));
size_t xallocx(void *block, size_t size, size_t extra, int flags) __attribute__((weak));
size_t sallocx(const void *block, int flags) __attribute__((weak));
void dallocx(void *block, int flags) __attribute__((weak));
void sdallocx(void *block, size_t size, int flags) __attribute__((weak));
void *__alloc_token_malloc(size_t size, size_t token) __attribute__((weak));
void *__alloc_token_calloc(size_t count, size_t size, size_t token) __attribute__((weak));
void *__alloc_token_realloc(void *block, size_t size, size_t token) __attribute__((weak));
void *__alloc_token_reallocarray(void *block, size_t count, size_t size, size_t token) __attribute__((weak));
void *__alloc_token_aligned_alloc(size_t alignment, size_t size, size_t token) __attribute__((weak));
void *__alloc_token_memalign(size_t alignment, size_t size, size_t token) __attribute__((weak));
int __alloc_token_posix_memalign(void **block, size_t alignment, size_t size, size_t token) __attribute__((weak));
void *__alloc_token_valloc(size_t size, size_t token) __attribute__((weak));
void *__alloc_token_pvalloc(size_t size, size_t token) __attribute__((weak));
void *__alloc_token__Znwm(size_t size, size_t token) __attribute__((weak));
void *__alloc_token__Znam(size_t size, size_t token) __attribute__((weak));
void *__alloc_token__ZnwmRKSt9nothrow_t(size_t size, const void *tag, size_t token) __attribute__((weak));
void *__alloc_token__ZnamRKSt9nothrow_t(size_t size, const void *tag, size_t token) __attribute__((weak));
void *__alloc_token__ZnwmSt11align_val_t(size_t size, size_t alignment, size_t token) __attribute__((weak));
void *__alloc_token__ZnamSt11align_val_t(size_t size, size_t alignment, size_t token) __attribute__((weak));
void *__alloc_token__ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t alignment, const void *tag, size_t token)
    __attribute__((weak));
void *__alloc_token__ZnamSt11align_val_tRKSt9nothrow_t(size_t size, size_t alignment, const void *tag, size_t token)
    __attribute__((weak));
struct __sized_ptr_t {
    void *p;
    size_t n;
};
struct __sized_ptr_t __size_returning_new(size_t size) __attribute__((weak));
struct __sized_ptr_t __size_returning_new_hot_cold(size_t size, unsigned char hint) __attribute__((weak));
struct __sized_ptr_t __size_returning_new_aligned(size_t size, size_t alignment) __attribute__((weak));
struct __sized_ptr_t __size_returning_new_aligned_hot_cold(size_t size, size_t alignment, unsigned char hint)
    __attribute__((weak));
#ifdef __cplusplus
}
#endif
#define HAS_SIZED_FREE (free_sized && free_aligned_sized)
#endif

#endif
