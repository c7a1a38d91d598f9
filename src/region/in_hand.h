/* In hand: free memory that nobody can find for a moment, because somebody has taken it and will give it back: a
 * purger while the kernel takes its pages, a thread without a heap that takes one block of a slab, whoever gives an
 * empty slab up, a drainer.
 *
 * Nobody waits for such memory but an allocation that has found nothing anywhere, and so would fail:
 *
 *   I1  Whoever takes free memory to give it back says so before (begin), and afterwards that he has given it back
 *       (end), or that he has found none or keeps it (keep).
 *   I2  A search that found nothing has seen all free memory if nobody had any in hand at its end, and nobody has
 *       given any back since its beginning. Otherwise it looks again.
 *   I3  It waits for a bounded time, and not at all in a thread that has memory in hand itself: in a handler of a
 *       signal that has interrupted it there. A forked child knows of nobody but its own thread.
 *
 * A forked child has to know what other threads were in the middle of, without a look at all that there is. So an
 * operation of a thread that has a heap notes it, in a *hand*: there is one for slow paths of the heap, and one for
 * changes of large objects, which a signal handler's slow path may interrupt.
 *
 *   I4  An operation notes the unit that it is about to take, give back, mark or hand on, before it does, and the run
 *       that it changes. All that it has left half done is in the SuperSlab of that unit, in hints of its group and
 *       around it, and in the run. What it has taken out of everybody's sight before, and not noted since, it has to
 *       itself.
 *   I5  An operation that has no hand is counted as memory in hand: of a thread without a heap, or of a signal handler
 *       that interrupted one of the same kind.
 *
 * All of it is lock-free but for I3. */
#ifndef HAK_REGION_IN_HAND_H
#define HAK_REGION_IN_HAND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/platform.h"

/* How many have memory in hand, in the low half; times that memory was given back, in the high one. */
extern HAK_ATOMIC(uint64_t) hak_in_hand;

/* How often the calling thread has begun and not ended. */
extern __thread uint32_t hak_in_hand_own __attribute__((tls_model("initial-exec")));

/* A hand, in a heap. Written by its thread, read by a forked child. Relaxed. */
struct hak_slab;
struct hak_hand {
    HAK_ATOMIC(uint32_t) in_hand;       /* how many of hak_in_hand are its */
    HAK_ATOMIC(uint32_t) is_in_use;     /* of the one for large objects: a change goes on */
    HAK_ATOMIC(struct hak_slab *) unit; /* I4; the last ones, or NULL */
    HAK_ATOMIC(struct hak_slab *) run;
};

/* The calling thread's, for the operation that goes on; NULL without a hand, and between operations. */
extern __thread struct hak_hand *hak_own_hand __attribute__((tls_model("initial-exec")));

/* The one in which it notes changes of large objects; NULL without a heap. */
extern __thread struct hak_hand *hak_large_hand __attribute__((tls_model("initial-exec")));

/* I4 */
HAK_INLINE void hak_hand_note(struct hak_slab *unit) {
    if (HAK_LIKELY(hak_own_hand != NULL)) hak_atomic_store(&hak_own_hand->unit, unit, relaxed);
    hak_signal_fence(); /* before the unit is touched */
}
HAK_INLINE void hak_hand_note_run(struct hak_slab *run) {
    if (HAK_LIKELY(hak_own_hand != NULL)) hak_atomic_store(&hak_own_hand->run, run, relaxed);
    hak_signal_fence();
}

/* An operation begins that has this hand, or none, and returns what it is to take up at its end: the hand of the
 * operation that it is a part of, or that it has interrupted. */
HAK_INLINE struct hak_hand *hak_hand_take_up(struct hak_hand *hand) {
    struct hak_hand *outer = hak_own_hand;
    hak_signal_fence();
    hak_own_hand = hand;
    hak_signal_fence();
    return outer;
}

/* What is in hand counts in the hand last, and first no more: a child that is forked in between finds more in hand than
 * the hands tell of (I5), never less, which would hide another's that has no hand. */
HAK_INLINE void hak_hand_count(uint32_t change) {
    hak_signal_fence();
    if (hak_own_hand != NULL)
        hak_atomic_store(&hak_own_hand->in_hand, hak_atomic_load(&hak_own_hand->in_hand, relaxed) + change, relaxed);
    hak_signal_fence();
}

/* For a caller that takes the memory by a change that is a release. */
HAK_INLINE void hak_in_hand_begin_before_release(void) {
    hak_in_hand_own++;
    hak_signal_fence();
    hak_atomic_fetch_add(&hak_in_hand, 1, relaxed);
    hak_hand_count(1);
}

HAK_INLINE void hak_in_hand_begin(void) {
    hak_in_hand_begin_before_release();
    /* Before the memory is taken. Pairs with the fence in hak_search_again: who does not find it sees that somebody
     * has it. */
    hak_atomic_fence(release);
}

HAK_INLINE void hak_in_hand_end(void) {
    hak_hand_count(UINT32_MAX);
    /* One less, and one more time. Release pairs with hak_search_begin and hak_search_again: who sees this finds the
     * memory. */
    hak_atomic_fetch_add(&hak_in_hand, UINT32_MAX, release);
    hak_signal_fence();
    hak_in_hand_own--;
}

HAK_INLINE void hak_in_hand_keep(void) {
    hak_hand_count(UINT32_MAX);
    hak_atomic_fetch_sub(&hak_in_hand, 1, relaxed);
    hak_signal_fence();
    hak_in_hand_own--;
}

/* The same for an operation that has no hand. */
HAK_INLINE struct hak_hand *hak_in_hand_begin_without(void) {
    struct hak_hand *outer = hak_hand_take_up(NULL);
    hak_in_hand_begin();
    return outer;
}
HAK_INLINE void hak_in_hand_end_without(struct hak_hand *outer) {
    hak_in_hand_end();
    hak_hand_take_up(outer);
}
HAK_INLINE void hak_in_hand_keep_without(struct hak_hand *outer) {
    hak_in_hand_keep();
    hak_hand_take_up(outer);
}

/* A change of a large object. */
struct hak_change {
    struct hak_hand *hand, *outer; /* NULL without a hand */
};

HAK_INLINE struct hak_change hak_change_begin(void) {
    struct hak_hand *hand = hak_large_hand;
    if (HAK_UNLIKELY(hand == NULL) || HAK_UNLIKELY(hak_atomic_load(&hand->is_in_use, relaxed) != 0))
        return (struct hak_change){NULL, hak_in_hand_begin_without()};
    hak_atomic_store(&hand->is_in_use, 1, relaxed);
    return (struct hak_change){hand, hak_hand_take_up(hand)};
}

/* `gives_back` says that memory may have been freed. */
HAK_INLINE void hak_change_end(struct hak_change change, bool gives_back) {
    if (HAK_LIKELY(change.hand != NULL)) {
        hak_hand_take_up(change.outer);
        hak_atomic_store(&change.hand->is_in_use, 0, relaxed);
    } else if (gives_back) {
        hak_in_hand_end_without(change.outer);
    } else {
        hak_in_hand_keep_without(change.outer);
    }
}

/* How many have memory in hand. */
HAK_INLINE uint32_t hak_in_hand_count(void) { return (uint32_t)hak_atomic_load(&hak_in_hand, relaxed); }

/* True when somebody has memory in hand. */
HAK_INLINE bool hak_in_hand_is_some(void) { return (uint32_t)hak_atomic_load(&hak_in_hand, relaxed) != 0; }

/* In a child after fork: nobody has anything in hand but its thread. */
void hak_in_hand_recover_after_fork(void);

/* A search for free memory:
 *
 *     struct hak_search search = hak_search_begin();
 *     do found = look_everywhere();
 *     while (found == NULL && hak_search_again(&search));
 */
struct hak_search {
    uint64_t seen;        /* hak_in_hand at its beginning */
    uint64_t deadline_ms; /* 0: not known yet */
};

HAK_INLINE struct hak_search hak_search_begin(void) {
    /* Acquire pairs with hak_in_hand_end: what was given back until now is found. */
    return (struct hak_search){hak_atomic_load(&hak_in_hand, acquire), 0};
}

/* What the searcher itself has given back since its last look is no reason to look again: it had it in hand once. */
HAK_INLINE void hak_search_forget_own(struct hak_search *search) { search->seen += (uint64_t)1 << 32; }

/* Nothing was found. True when it is to be looked for again (I2), after a while. */
HAK_MISS bool hak_search_again(struct hak_search *search);

#endif
