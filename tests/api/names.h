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
#ifdef __cplusplus
}
#endif
#define HAS_SIZED_FREE (free_sized && free_aligned_sized)
#endif

#endif
