/* Atomics: the one door to memory shared between threads.
 *
 * In the library these are C11 atomics. In tests/model the same source lines run under a checker that explores
 * interleavings and stale reads, and weakens each memory order in turn; so every shared location is declared with
 * HAK_ATOMIC, touched only through this header, and every order stands at its call as a literal word:
 *
 *     HAK_ATOMIC(uint32_t) state;
 *     hak_atomic_store(&slab->state, STATE_FULL, seq_cst);
 *
 * Orders are relaxed, acquire, release, acq_rel and seq_cst. Each one that is not relaxed has a comment at its call
 * that names what it pairs with.
 */
#ifndef HAK_BASE_ATOMIC_H
#define HAK_BASE_ATOMIC_H

/* A location with one writer: the owner reads it as plain memory, which lets the compiler fold the load into its use;
 * others may peek at it, as relaxed atomics. There is no race: the owner's reads meet no other writer. */
#define HAK_OWNED(type) type
#define hak_owned_get(location) (*(location))
#define hak_owned_set(location, value) __atomic_store_n((location), (value), __ATOMIC_RELAXED)
#define hak_owned_peek(location) __atomic_load_n((location), __ATOMIC_RELAXED)

#ifdef HAK_MODEL
#include "model_atomic.h"
#else

#include <stdatomic.h>
#include <stdbool.h>

#define HAK_ATOMIC(type) _Atomic(type)

#define hak_atomic_load(location, order) atomic_load_explicit((location), memory_order_##order)
#define hak_atomic_store(location, value, order) atomic_store_explicit((location), (value), memory_order_##order)
#define hak_atomic_exchange(location, value, order) atomic_exchange_explicit((location), (value), memory_order_##order)
#define hak_atomic_fetch_add(location, value, order)                                                                   \
    atomic_fetch_add_explicit((location), (value), memory_order_##order)
#define hak_atomic_fetch_sub(location, value, order)                                                                   \
    atomic_fetch_sub_explicit((location), (value), memory_order_##order)
#define hak_atomic_fetch_or(location, value, order) atomic_fetch_or_explicit((location), (value), memory_order_##order)
#define hak_atomic_fetch_and(location, value, order)                                                                   \
    atomic_fetch_and_explicit((location), (value), memory_order_##order)

/* Strong compare-and-swap: true when *location was *expected and is now desired; else *expected holds what was found.
 * `failure` is the order of that read. */
#define hak_atomic_cas(location, expected, desired, success, failure)                                                  \
    atomic_compare_exchange_strong_explicit((location), (expected), (desired), memory_order_##success,                 \
                                            memory_order_##failure)

/* Keeps the order of accesses as a signal handler of this thread, or a child it forks, sees them. */
#define hak_signal_fence() atomic_signal_fence(memory_order_seq_cst)

#define hak_atomic_fence(order) atomic_thread_fence(memory_order_##order)

/* A sequentially consistent fence in every thread of the process, wherever it is: what each did before is seen here
 * afterwards, and what was done here before is seen there by what comes after. So the other side of a protocol needs
 * no more than hak_signal_fence, or nothing where the compiler has no choice. Takes a millisecond, in which the caller
 * sleeps. False when that can't be: then nothing was done. Provided by the os layer. */
bool hak_fence_threads(void);

/* *location < value, and *location > value, by a relaxed load: compilers do not fold those into a comparison, and an
 * instruction more is one too many on the hit path. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define HAK_ATOMIC_COMPARE(location, value, condition)                                                                 \
    (__extension__({                                                                                                   \
        bool hak_result;                                                                                               \
        __asm__("cmpq %[at], %[than]"                                                                                  \
                : "=@cc" condition(hak_result)                                                                         \
                : [at] "m"(*(__typeof__(value) const *)(const void *)(location)), [than] "r"(value));                  \
        hak_result;                                                                                                    \
    }))
#define hak_relaxed_below(location, value) HAK_ATOMIC_COMPARE(location, value, "a")
#define hak_relaxed_above(location, value) HAK_ATOMIC_COMPARE(location, value, "b")
#endif

#endif

#ifndef hak_relaxed_below
#define hak_relaxed_below(location, value) (hak_atomic_load(location, relaxed) < (value))
#define hak_relaxed_above(location, value) (hak_atomic_load(location, relaxed) > (value))
#endif

#endif
