/* Words for the compiler and the processor. Nothing here costs an instruction that is not written. */
#ifndef HAK_BASE_PLATFORM_H
#define HAK_BASE_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAK_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define HAK_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* The compiler computes a pointer once, in full, instead of parts of it wherever it is used. */
#define HAK_IN_REGISTER(pointer) __asm__("" : "+r"(pointer))

#define HAK_INLINE static inline __attribute__((always_inline))
/* Whoever called the function that this stands in: a public one, or one that is inlined into it, or called as its last
 * act (-foptimize-sibling-calls in cmake/options.cmake). */
#define HAK_CALLER() __builtin_return_address(0)

/* Reads memory that no variable here owns: checkers of memory are not to look. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAK_UNCHECKED __attribute__((no_sanitize("address"), no_sanitize("thread"), noinline))
#else
#define HAK_UNCHECKED
#endif

/* Not what a hit does, but all programs do it. */
#define HAK_MISS __attribute__((noinline))
/* What most programs never do: in pages of its own, which they don't touch, and as small as can be. */
#define HAK_COLD __attribute__((cold, noinline))
/* A function whose hit is to be in as few lines as it can be, whatever lies before it. */
#define HAK_HIT __attribute__((aligned(64)))
#define HAK_CACHE_ALIGNED __attribute__((aligned(64)))

/* What threads write all the time: each lies in a cache line of its own, so that nobody who reads something else waits
 * for it. */
#define HAK_WRITTEN_BY_MANY __attribute__((aligned(64), section(".data.hak_written")))
#define HAK_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))

/* A spinning thread tells the core that it waits. Under the model checker it gives way to the other threads. */
#ifdef HAK_MODEL
void model_yield(void);
#define hak_cpu_relax() model_yield()
#elif defined(__x86_64__) || defined(__i386__)
#define hak_cpu_relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define hak_cpu_relax() __asm__ volatile("yield")
#else
#define hak_cpu_relax() ((void)0)
#endif

/* Asks for the line of an address, to write it. A hint: it never fails, and processors that don't know it do
 * nothing. */
#if defined(__x86_64__) && !defined(HAK_MODEL) /* compilers take the one for reading, if the processor isn't named */
#define hak_prefetch_for_write(address) __asm__ volatile("prefetchw %0" : : "m"(*(const char *)(address)))
#else
#define hak_prefetch_for_write(address) __builtin_prefetch(address, 1)
#endif

/* A time stamp that costs next to nothing, in ticks of the processor's own: steady on one core, next to it on all. 0
 * where there is none. */
#if defined(__x86_64__) && !defined(HAK_MODEL)
#define hak_ticks() __builtin_ia32_rdtsc()
#elif defined(__aarch64__) && !defined(HAK_MODEL)
#define hak_ticks()                                                                                                    \
    (__extension__({                                                                                                   \
        uint64_t hak_now;                                                                                              \
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(hak_now));                                                        \
        hak_now;                                                                                                       \
    }))
#else
#define hak_ticks() ((uint64_t)0)
#endif

/* Amount of self-checking: 0 misuse and corruption only, 1 also invariants in O(1), 2 also walks over structures. */
/* The secure build, libhakmem-secure.so: what finds and prevents misuse on the hit path, too. */
#ifndef HAK_SECURE
#define HAK_SECURE 0
#endif

#ifndef HAK_CHECK_LEVEL
#define HAK_CHECK_LEVEL 0
#endif

#endif
