/* What src/base/atomic.h includes under HAK_MODEL: the same macros, each a call into the checker.
 *
 * A shared location is plain memory here; its history lives in the checker. Every use of a macro is a site: a static
 * description (file, line, operation, orders) that the linker gathers into one section, so that all sites of the
 * program are known before any of them runs, and each can be weakened at run time.
 */
#ifndef MODEL_ATOMIC_H
#define MODEL_ATOMIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

enum model_order {
    MODEL_ORDER_relaxed,
    MODEL_ORDER_acquire,
    MODEL_ORDER_release,
    MODEL_ORDER_acq_rel,
    MODEL_ORDER_seq_cst,
};

enum model_operation {
    MODEL_LOAD,
    MODEL_STORE,
    MODEL_EXCHANGE,
    MODEL_FETCH_ADD,
    MODEL_FETCH_SUB,
    MODEL_FETCH_OR,
    MODEL_FETCH_AND,
    MODEL_CAS,
    MODEL_FENCE,
};

struct model_site {
    const char *file;
    const char *unit; /* the file given to the compiler: the same header line exists once in each */
    int line;
    int counter; /* tells apart sites of one line, */
    int ordinal; /* whose number it is, from 1; 0: alone */
    enum model_operation operation;
    enum model_order order, failure; /* as written; those in force are the entry's */
    struct model_entry *entry;       /* this and the ordinal are set when the registry is built */
};

uint64_t model_load(struct model_site *site, const volatile void *address, unsigned size);
void model_store(struct model_site *site, volatile void *address, unsigned size, uint64_t value);
uint64_t model_rmw(struct model_site *site, volatile void *address, unsigned size, uint64_t operand);
bool model_cas(struct model_site *site, volatile void *address, unsigned size, void *expected, uint64_t desired);
void model_fence(struct model_site *site);

/* A fence in all threads: each of the others runs one at some moment of the call. Weakened, it is one of the caller's. False
 * when model_refuses_fences is set. */
bool model_fence_threads(struct model_site *site);
extern bool model_refuses_fences;

/* What memory holds, whoever writes there at the same time. */
uint64_t model_peek(const volatile void *address, unsigned size);

/* One turn of a loop that waits, and what hak_cpu_relax() is here: the thread does not run again before a location it
 * has read since its last yield holds another value. */
void model_yield(void);

/* Code compiled with -fsanitize=thread announces its plain accesses; that it copies and clears, too, by this. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MODEL_WATCHES_PLAIN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define MODEL_WATCHES_PLAIN 1
#endif
#ifdef MODEL_WATCHES_PLAIN
__asm__(".set memcpy, __tsan_memcpy\n.set memmove, __tsan_memmove\n.set memset, __tsan_memset");
#endif

#define HAK_ATOMIC(type) __typeof__(type)

/* Locations of one writer are plain here, so that a second writer, or a reader who believes what he reads, is found out. */
#undef hak_owned_set
#undef hak_owned_peek
#define hak_owned_set(location, value) ((void)(*(location) = (value)))
#define hak_owned_peek(location)                                                                                       \
    (__extension__({                                                                                                   \
        __auto_type model_at_peek = (location);                                                                        \
        MODEL_VALUE(model_at_peek, model_peek(model_at_peek, sizeof(*model_at_peek)));                                 \
    }))

#define hak_signal_fence() ((void)0)

#define MODEL_SITE(operation_word, order_word, failure_word)                                                           \
    (__extension__({                                                                                                   \
        static struct model_site model_site_here = {.file = __FILE__,                                                  \
                                                    .unit = __BASE_FILE__,                                             \
                                                    .line = __LINE__,                                                  \
                                                    .counter = __COUNTER__,                                            \
                                                    .operation = operation_word,                                       \
                                                    .order = MODEL_ORDER_##order_word,                                 \
                                                    .failure = MODEL_ORDER_##failure_word};                            \
        static struct model_site *const model_site_listed __attribute__((section("model_sites"), used)) =              \
            &model_site_here;                                                                                          \
        &model_site_here;                                                                                              \
    }))

/* Between a value of the type `at` points to and the 64 bits the checker sees (little-endian machines). */
#define MODEL_RAW(at, value)                                                                                           \
    (((union {                                                                                                         \
         __typeof__(*at) model_value;                                                                                  \
         uint64_t model_raw;                                                                                           \
     }){.model_value = (value)})                                                                                       \
         .model_raw)
#define MODEL_VALUE(at, raw)                                                                                           \
    (((union {                                                                                                         \
         uint64_t model_raw;                                                                                           \
         __typeof__(*at) model_value;                                                                                  \
     }){.model_raw = (raw)})                                                                                           \
         .model_value)

/* The location is evaluated once, into a variable of a name no nested use has. */
#define MODEL_JOIN(a, b) a##b
#define MODEL_NAME(counter) MODEL_JOIN(model_at_, counter)
#define MODEL_AT MODEL_NAME(__COUNTER__)

#define MODEL_LOAD_AT(at, location, order)                                                                             \
    (__extension__({                                                                                                   \
        __auto_type at = (location);                                                                                   \
        MODEL_VALUE(at, model_load(MODEL_SITE(MODEL_LOAD, order, relaxed), at, sizeof(*at)));                          \
    }))

#define MODEL_STORE_AT(at, location, value, order)                                                                     \
    (__extension__({                                                                                                   \
        __auto_type at = (location);                                                                                   \
        model_store(MODEL_SITE(MODEL_STORE, order, relaxed), at, sizeof(*at), MODEL_RAW(at, value));                   \
    }))

#define MODEL_RMW_AT(at, operation_word, location, value, order)                                                       \
    (__extension__({                                                                                                   \
        __auto_type at = (location);                                                                                   \
        MODEL_VALUE(at, model_rmw(MODEL_SITE(operation_word, order, relaxed), at, sizeof(*at), MODEL_RAW(at, value))); \
    }))

#define MODEL_CAS_AT(at, location, expected, desired, success, failure)                                                \
    (__extension__({                                                                                                   \
        __auto_type at = (location);                                                                                   \
        model_cas(MODEL_SITE(MODEL_CAS, success, failure), at, sizeof(*at), 1 ? (expected) : (__typeof__(*at) *)0,     \
                  MODEL_RAW(at, desired));                                                                             \
    }))

#define hak_atomic_load(location, order) MODEL_LOAD_AT(MODEL_AT, location, order)
#define hak_atomic_store(location, value, order) MODEL_STORE_AT(MODEL_AT, location, value, order)
#define hak_atomic_exchange(location, value, order) MODEL_RMW_AT(MODEL_AT, MODEL_EXCHANGE, location, value, order)
#define hak_atomic_fetch_add(location, value, order) MODEL_RMW_AT(MODEL_AT, MODEL_FETCH_ADD, location, value, order)
#define hak_atomic_fetch_sub(location, value, order) MODEL_RMW_AT(MODEL_AT, MODEL_FETCH_SUB, location, value, order)
#define hak_atomic_fetch_or(location, value, order) MODEL_RMW_AT(MODEL_AT, MODEL_FETCH_OR, location, value, order)
#define hak_atomic_fetch_and(location, value, order) MODEL_RMW_AT(MODEL_AT, MODEL_FETCH_AND, location, value, order)
#define hak_atomic_cas(location, expected, desired, success, failure)                                                  \
    MODEL_CAS_AT(MODEL_AT, location, expected, desired, success, failure)
#define hak_fence_threads() model_fence_threads(MODEL_SITE(MODEL_FENCE, seq_cst, relaxed))
#define hak_atomic_fence(order) model_fence(MODEL_SITE(MODEL_FENCE, order, relaxed))

#endif
