/* Tests of the checker itself: litmus tests of the memory model, and small programs with and without a known fault.
 *
 * A harness here is expected to pass, or to fail with a given text; the table at the end says which. This file is
 * compiled with -fsanitize=thread, so plain accesses are seen without being announced.
 */
#include "base/atomic.h"
#include "base/platform.h"
#include "checker.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static HAK_ATOMIC(uint32_t) x, y, z;
static int data, counter;
static uint32_t r0, r1, r2, r3;

static void reset(void) {
    x = y = z = r0 = r1 = r2 = r3 = 0;
    data = counter = 0;
}

/* ---- message passing ---------------------------------------------------------------------------------------- */

#define MESSAGE_PASSING(name, write_order, read_order)                                                                 \
    static void name##_send(void) {                                                                                    \
        hak_atomic_store(&y, 1, relaxed);                                                                              \
        hak_atomic_store(&x, 1, write_order);                                                                          \
    }                                                                                                                  \
    static void name##_receive(void) {                                                                                 \
        if (hak_atomic_load(&x, read_order)) model_assert(hak_atomic_load(&y, relaxed) == 1, "the message is there");  \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, NULL, name##_send, name##_receive);

MESSAGE_PASSING(mp_release_acquire, release, acquire)
MESSAGE_PASSING(mp_seq_cst, seq_cst, seq_cst)
MESSAGE_PASSING(mp_relaxed_acquire, relaxed, acquire)
MESSAGE_PASSING(mp_release_relaxed, release, relaxed)

/* That an access is seq_cst orders it among its kind only. */
static void mp_seq_cst_data_send(void) {
    hak_atomic_store(&y, 1, seq_cst);
    hak_atomic_store(&x, 1, relaxed);
}

static void mp_seq_cst_data_receive(void) {
    if (hak_atomic_load(&x, acquire)) model_assert(hak_atomic_load(&y, seq_cst) == 1, "the message is there");
}

MODEL_HARNESS(mp_seq_cst_data, reset, NULL, mp_seq_cst_data_send, mp_seq_cst_data_receive);

#define MESSAGE_PASSING_PLAIN(name, write_order, read_order)                                                           \
    static void name##_send(void) {                                                                                    \
        data = 1;                                                                                                      \
        hak_atomic_store(&x, 1, write_order);                                                                          \
    }                                                                                                                  \
    static void name##_receive(void) {                                                                                 \
        model_await(hak_atomic_load(&x, read_order));                                                                  \
        model_assert(data == 1, "the data is there");                                                                  \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, NULL, name##_send, name##_receive);

MESSAGE_PASSING_PLAIN(mp_plain_release_acquire, release, acquire)
MESSAGE_PASSING_PLAIN(mp_plain_relaxed_acquire, relaxed, acquire)
MESSAGE_PASSING_PLAIN(mp_plain_release_relaxed, release, relaxed)

#define MESSAGE_PASSING_FENCES(name, first_fence, second_fence)                                                        \
    static void name##_send(void) {                                                                                    \
        data = 1;                                                                                                      \
        first_fence;                                                                                                   \
        hak_atomic_store(&x, 1, relaxed);                                                                              \
    }                                                                                                                  \
    static void name##_receive(void) {                                                                                 \
        model_await(hak_atomic_load(&x, relaxed));                                                                     \
        second_fence;                                                                                                  \
        model_assert(data == 1, "the data is there");                                                                  \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, NULL, name##_send, name##_receive);

MESSAGE_PASSING_FENCES(mp_fences, hak_atomic_fence(release), hak_atomic_fence(acquire))
MESSAGE_PASSING_FENCES(mp_fence_seq_cst, hak_atomic_fence(seq_cst), hak_atomic_fence(seq_cst))
MESSAGE_PASSING_FENCES(mp_no_release_fence, (void)0, hak_atomic_fence(acquire))
MESSAGE_PASSING_FENCES(mp_no_acquire_fence, hak_atomic_fence(release), (void)0)
MESSAGE_PASSING_FENCES(mp_wrong_fence, hak_atomic_fence(acquire), hak_atomic_fence(acquire))

/* ---- store buffering ---------------------------------------------------------------------------------------- */

#define STORE_BUFFERING(name, write_order, read_order, fence)                                                          \
    static void name##_0(void) {                                                                                       \
        hak_atomic_store(&x, 1, write_order);                                                                          \
        fence;                                                                                                         \
        r0 = hak_atomic_load(&y, read_order);                                                                          \
    }                                                                                                                  \
    static void name##_1(void) {                                                                                       \
        hak_atomic_store(&y, 1, write_order);                                                                          \
        fence;                                                                                                         \
        r1 = hak_atomic_load(&x, read_order);                                                                          \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, sb_check, name##_0, name##_1);

static void sb_check(void) { model_assert(r0 || r1, "one store is seen"); }

STORE_BUFFERING(sb_seq_cst, seq_cst, seq_cst, (void)0)
STORE_BUFFERING(sb_release_acquire, release, acquire, (void)0)
STORE_BUFFERING(sb_store_only, seq_cst, acquire, (void)0)
STORE_BUFFERING(sb_load_only, release, seq_cst, (void)0)
STORE_BUFFERING(sb_fence_seq_cst, relaxed, relaxed, hak_atomic_fence(seq_cst))
STORE_BUFFERING(sb_fence_acq_rel, relaxed, relaxed, hak_atomic_fence(acq_rel))

/* A seq_cst fence on one side and seq_cst accesses on the other. */
static void sb_mixed_0(void) {
    hak_atomic_store(&x, 1, relaxed);
    hak_atomic_fence(seq_cst);
    r0 = hak_atomic_load(&y, relaxed);
}

static void sb_mixed_1(void) {
    hak_atomic_store(&y, 1, seq_cst);
    r1 = hak_atomic_load(&x, seq_cst);
}

MODEL_HARNESS(sb_mixed, reset, sb_check, sb_mixed_0, sb_mixed_1);

/* Exchanges are no fences either. */
static void sb_exchange_0(void) {
    hak_atomic_exchange(&x, 1, acq_rel);
    r0 = hak_atomic_load(&y, acquire);
}

static void sb_exchange_1(void) {
    hak_atomic_exchange(&y, 1, acq_rel);
    r1 = hak_atomic_load(&x, acquire);
}

MODEL_HARNESS(sb_exchange, reset, sb_check, sb_exchange_0, sb_exchange_1);

/* ---- four threads ------------------------------------------------------------------------------------------- */

#define IRIW(name, write_order, read_order)                                                                            \
    static void name##_x(void) { hak_atomic_store(&x, 1, write_order); }                                               \
    static void name##_y(void) { hak_atomic_store(&y, 1, write_order); }                                               \
    static void name##_xy(void) {                                                                                      \
        r0 = hak_atomic_load(&x, read_order);                                                                          \
        r1 = hak_atomic_load(&y, read_order);                                                                          \
    }                                                                                                                  \
    static void name##_yx(void) {                                                                                      \
        r2 = hak_atomic_load(&y, read_order);                                                                          \
        r3 = hak_atomic_load(&x, read_order);                                                                          \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, iriw_check, name##_x, name##_y, name##_xy, name##_yx);

static void iriw_check(void) {
    model_assert(!(r0 == 1 && r1 == 0 && r2 == 1 && r3 == 0), "readers agree on the order of writes");
}

IRIW(iriw_seq_cst, seq_cst, seq_cst)
IRIW(iriw_release_acquire, release, acquire)

/* What one thread has read and passed on, a third sees. */
static void wrc_0(void) { hak_atomic_store(&x, 1, relaxed); }

static void wrc_1(void) {
    r0 = hak_atomic_load(&x, relaxed);
    hak_atomic_store(&y, 1, release);
}

static void wrc_2(void) {
    r1 = hak_atomic_load(&y, acquire);
    r2 = hak_atomic_load(&x, relaxed);
}

static void wrc_check(void) { model_assert(!(r0 == 1 && r1 == 1 && r2 == 0), "reads are passed on"); }

MODEL_HARNESS(wrc, reset, wrc_check, wrc_0, wrc_1, wrc_2);

/* ---- coherence ---------------------------------------------------------------------------------------------- */

static void coherence_write(void) {
    hak_atomic_store(&x, 1, relaxed);
    hak_atomic_store(&x, 2, relaxed);
}

static void coherence_read(void) {
    uint32_t first = hak_atomic_load(&x, relaxed);
    uint32_t second = hak_atomic_load(&x, relaxed);
    model_assert(second >= first, "reads do not go back");
}

static void coherence_write_read(void) {
    hak_atomic_store(&x, 3, relaxed);
    uint32_t seen = hak_atomic_load(&x, relaxed);
    r0 = seen;
    model_assert(seen != 0, "a thread sees its own write, or a later one");
}

static void coherence_check(void) {
    uint32_t last = hak_atomic_load(&x, relaxed);
    model_assert(last == 2 || last == 3, "writes of a thread keep their order");
    model_assert(!(r0 == 1 && last == 3), "what was read over one's own write is later");
}

MODEL_HARNESS(coherence, reset, coherence_check, coherence_write, coherence_read, coherence_read);
MODEL_HARNESS(coherence_writes, reset, coherence_check, coherence_write, coherence_write_read);

/* Both second writes lose: only if stores may take a place below the newest. */
#define TWO_WRITES(name, order)                                                                                        \
    static void name##_0(void) {                                                                                       \
        hak_atomic_store(&x, 1, order);                                                                                \
        hak_atomic_store(&y, 2, order);                                                                                \
    }                                                                                                                  \
    static void name##_1(void) {                                                                                       \
        hak_atomic_store(&y, 1, order);                                                                                \
        hak_atomic_store(&x, 2, order);                                                                                \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, two_writes_check, name##_0, name##_1);

static void two_writes_check(void) { model_assert(!(x == 1 && y == 1), "a second write is last"); }

TWO_WRITES(two_writes_relaxed, relaxed)
TWO_WRITES(two_writes_seq_cst, seq_cst)

/* A write that follows what it should overwrite. */
#define OVERWRITE(name, write_order, read_order)                                                                       \
    static void name##_0(void) {                                                                                       \
        hak_atomic_store(&x, 1, relaxed);                                                                              \
        hak_atomic_store(&y, 1, write_order);                                                                          \
    }                                                                                                                  \
    static void name##_1(void) {                                                                                       \
        model_await(hak_atomic_load(&y, read_order));                                                                  \
        hak_atomic_store(&x, 2, relaxed);                                                                              \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, overwrite_check, name##_0, name##_1);

static void overwrite_check(void) { model_assert(x == 2, "the second write is last"); }

OVERWRITE(overwrite_release_acquire, release, acquire)
OVERWRITE(overwrite_relaxed, relaxed, relaxed)

/* ---- read-modify-write -------------------------------------------------------------------------------------- */

static void add_one(void) { hak_atomic_fetch_add(&x, 1, relaxed); }

static void add_three_check(void) { model_assert(x == 3, "no addition is lost"); }

MODEL_HARNESS(rmw_adds, reset, add_three_check, add_one, add_one, add_one);

static void load_then_store(void) { hak_atomic_store(&x, hak_atomic_load(&x, seq_cst) + 1, seq_cst); }

static void add_two_check(void) { model_assert(x == 2, "no addition is lost"); }

MODEL_HARNESS(load_store_adds, reset, add_two_check, load_then_store, load_then_store);

static void cas_adds(void) {
    uint32_t seen = hak_atomic_load(&x, relaxed);
    while (!hak_atomic_cas(&x, &seen, seen + 1, relaxed, relaxed))
        ;
}

MODEL_HARNESS(cas_loop_adds, reset, add_three_check, cas_adds, cas_adds, cas_adds);

/* A release sequence goes on through RMWs of others, not through their stores. */
static void sequence_head(void) {
    data = 1;
    hak_atomic_store(&x, 1, release);
}

static void sequence_rmw(void) { hak_atomic_fetch_add(&x, 1, relaxed); }

static void sequence_store(void) {
    if (hak_atomic_load(&x, relaxed) == 1) hak_atomic_store(&x, 2, relaxed);
}

static void sequence_end(void) {
    if (hak_atomic_load(&x, acquire) == 2) model_assert(data == 1, "the data is there");
}

MODEL_HARNESS(release_sequence_rmw, reset, NULL, sequence_head, sequence_rmw, sequence_end);
MODEL_HARNESS(release_sequence_store, reset, NULL, sequence_head, sequence_store, sequence_end);

/* An RMW reads what is just below it, which need not be the newest write. */
#define RMW_BELOW(name, write_order, read_order)                                                                       \
    static void name##_0(void) {                                                                                       \
        hak_atomic_store(&x, 4, relaxed);                                                                              \
        hak_atomic_store(&y, 1, write_order);                                                                          \
    }                                                                                                                  \
    static void name##_1(void) {                                                                                       \
        if (hak_atomic_load(&y, read_order))                                                                           \
            model_assert(hak_atomic_fetch_or(&x, 1, relaxed) == 4, "the RMW reads the write");                         \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, NULL, name##_0, name##_1);

RMW_BELOW(rmw_release_acquire, release, acquire)
RMW_BELOW(rmw_relaxed, relaxed, relaxed)

#define CAS_FAILURE(name, failure_order)                                                                               \
    static void name##_look(void) {                                                                                    \
        uint32_t expected = 0;                                                                                         \
        if (!hak_atomic_cas(&x, &expected, 2, relaxed, failure_order))                                                 \
            model_assert(expected == 1 && data == 1, "the data is there");                                             \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, NULL, sequence_head, name##_look);

CAS_FAILURE(cas_failure_acquire, acquire)
CAS_FAILURE(cas_failure_relaxed, relaxed)

/* Sizes, pointers, every operation. */
static struct wide {
    HAK_ATOMIC(uint8_t) byte;
    HAK_ATOMIC(bool) flag;
    HAK_ATOMIC(uint16_t) half;
    HAK_ATOMIC(int32_t) word;
    HAK_ATOMIC(uint64_t) bits;
    HAK_ATOMIC(struct wide *) link;
    HAK_ATOMIC(void (*)(void)) function;
} wide;

static void wide_reset(void) { memset(&wide, 0, sizeof(wide)); }

static void wide_operations(void) {
    const struct wide *reader = &wide;
    hak_atomic_store(&wide.byte, 255, relaxed);
    model_assert(hak_atomic_fetch_add(&wide.byte, 2, relaxed) == 255 && hak_atomic_load(&reader->byte, relaxed) == 1,
                 "a byte wraps");
    model_assert(!hak_atomic_exchange(&wide.flag, true, acq_rel) && hak_atomic_load(&wide.flag, relaxed), "a flag");
    model_assert(hak_atomic_fetch_sub(&wide.half, 1, relaxed) == 0 && hak_atomic_load(&wide.half, relaxed) == 65535,
                 "a half wraps");
    hak_atomic_store(&wide.word, -5, relaxed);
    model_assert(hak_atomic_load(&wide.word, relaxed) == -5, "a sign");
    model_assert(hak_atomic_fetch_or(&wide.bits, 1ull << 63 | 1, relaxed) == 0, "or");
    model_assert(hak_atomic_fetch_and(&wide.bits, ~1ull, relaxed) == (1ull << 63 | 1), "and");
    struct wide *expected = &wide;
    model_assert(!hak_atomic_cas(&wide.link, &expected, &wide, release, relaxed) && expected == NULL,
                 "a CAS that fails");
    model_assert(hak_atomic_cas(&wide.link, &expected, &wide, release, relaxed), "a CAS that succeeds");
    model_assert(hak_atomic_load(&hak_atomic_load(&wide.link, acquire)->bits, acquire) == 1ull << 63, "nested");
    hak_atomic_store(&wide.function, wide_reset, release);
    model_assert(hak_atomic_load(&wide.function, acquire) == wide_reset, "a function");
}

static void wide_check(void) {
    model_assert(wide.byte == 1 && wide.flag && wide.half == 65535 && wide.word == -5 && wide.link == &wide &&
                     wide.bits == 1ull << 63,
                 "memory holds the newest values");
    wide_reset();
    wide_operations(); /* outside of threads they are plain */
}

MODEL_HARNESS(operations, wide_reset, wide_check, wide_operations);

/* ---- plain data --------------------------------------------------------------------------------------------- */

static void write_data(void) { data = 1; }

static void read_data(void) { r0 = (uint32_t)data; }

static void read_data_too(void) { r1 = (uint32_t)data; }

MODEL_HARNESS(race_write_read, reset, NULL, write_data, read_data);
MODEL_HARNESS(race_write_write, reset, NULL, write_data, write_data);
MODEL_HARNESS(no_race_reads, reset, NULL, read_data, read_data_too);

/* Neighbours in one word are different data. */
static struct {
    uint8_t first, second;
    uint16_t third;
} packed;

static void write_first(void) { packed.first = 1; }

static void write_second(void) {
    packed.second = 1;
    packed.third = 1;
}

static void packed_check(void) {
    model_assert(packed.first == 1 && packed.second == 1 && packed.third == 1, "all were written");
}

MODEL_HARNESS(no_race_neighbours, reset, packed_check, write_first, write_second);

/* More than a word at once. */
static struct record { uint64_t words[5]; } from, to;

static void copy_record(void) { to = from; }

static void change_record(void) { from.words[3]++; }

static void check_record(void) { model_assert(to.words[0] == 0 && to.words[3] <= from.words[3], "it was copied"); }

static void clear_record(void) { memset(&from, 0, sizeof(from)); }

static void reset_record(void) { memset(&from, 0, sizeof(from)); }

MODEL_HARNESS(race_copy, reset_record, check_record, copy_record, change_record);
MODEL_HARNESS(race_clear, reset_record, check_record, change_record, clear_record);

/* Code that the compiler does not instrument announces its accesses. */
__attribute__((no_sanitize("thread"))) static void announced_write(void) {
    model_plain_write(&data);
    data = 1;
}

__attribute__((no_sanitize("thread"))) static void announced_read(void) {
    model_plain_read(&data);
    r0 = (uint32_t)data;
}

MODEL_HARNESS(race_announced, reset, NULL, announced_write, announced_read);

/* An atomic may be initialised by a plain write, by who alone can reach it. */
#define INITIALISE(name, write_order)                                                                                  \
    static void name##_0(void) {                                                                                       \
        hak_atomic_store(&x, 1, relaxed);                                                                              \
        x = 5;                                                                                                         \
        x = 7;                                                                                                         \
        hak_atomic_store(&y, 1, write_order);                                                                          \
    }                                                                                                                  \
    static void name##_1(void) {                                                                                       \
        model_await(hak_atomic_load(&y, acquire));                                                                     \
        model_assert(hak_atomic_load(&x, relaxed) == 7, "the value is there");                                         \
    }                                                                                                                  \
    MODEL_HARNESS(name, reset, NULL, name##_0, name##_1);

INITIALISE(plain_initialisation, release)
INITIALISE(plain_initialisation_race, relaxed)

static void plain_after_atomic(void) {
    model_await(hak_atomic_load(&x, relaxed));
    x = 2;
}

MODEL_HARNESS(race_plain_on_atomic, reset, NULL, add_one, plain_after_atomic);

__attribute__((no_sanitize("thread"))) static void behind(void) {
    hak_atomic_store(&x, 1, relaxed);
    x = 2;
    hak_atomic_store(&x, 3, relaxed);
}

MODEL_HARNESS(changed_behind, reset, NULL, behind);

/* ---- locks -------------------------------------------------------------------------------------------------- */

static HAK_ATOMIC(uint32_t) lock, other_lock;

static void reset_locks(void) {
    reset();
    lock = other_lock = 0;
    model_name(&lock, "lock");
    model_name(&other_lock, "other_lock");
}

static void spin_acquire(HAK_ATOMIC(uint32_t) *at) {
    uint32_t expected = 0;
    while (!hak_atomic_cas(at, &expected, 1, acquire, relaxed)) {
        expected = 0;
        hak_cpu_relax();
    }
}

static void spin_release(HAK_ATOMIC(uint32_t) *at) { hak_atomic_store(at, 0, release); }

static void count_under_lock(void) {
    spin_acquire(&lock);
    counter++;
    spin_release(&lock);
}

static void count_by_exchange(void) {
    while (hak_atomic_exchange(&lock, 1, acquire)) hak_cpu_relax();
    counter++;
    hak_atomic_store(&lock, 0, release);
}

static void check_two(void) { model_assert(counter == 2, "both counted"); }

static void check_three(void) { model_assert(counter == 3, "all three counted"); }

MODEL_HARNESS(spinlock, reset_locks, check_two, count_under_lock, count_under_lock);
MODEL_HARNESS(spinlock_three, reset_locks, check_three, count_under_lock, count_under_lock, count_under_lock);
MODEL_HARNESS(spinlock_exchange, reset_locks, check_three, count_by_exchange, count_by_exchange, count_by_exchange);

/* The ticket of a ticket lock needs no order, its turn does. */
static void count_by_ticket(void) {
    uint32_t mine = hak_atomic_fetch_add(&lock, 1, relaxed);
    model_await(hak_atomic_load(&other_lock, acquire) == mine);
    counter++;
    hak_atomic_store(&other_lock, mine + 1, release);
}

MODEL_HARNESS(ticket_lock, reset_locks, check_three, count_by_ticket, count_by_ticket, count_by_ticket);

/* Peterson's lock stands on seq_cst alone. */
static HAK_ATOMIC(uint32_t) wants[2];

static void reset_peterson(void) {
    reset_locks();
    wants[0] = wants[1] = 0;
}

static void count_by_peterson(void) {
    unsigned self = model_thread(), other = 1 - self;
    hak_atomic_store(&wants[self], 1, seq_cst);
    hak_atomic_store(&lock, other, seq_cst);
    model_await(!hak_atomic_load(&wants[other], seq_cst) || hak_atomic_load(&lock, seq_cst) == self);
    counter++;
    hak_atomic_store(&wants[self], 0, release);
}

MODEL_HARNESS(peterson, reset_peterson, check_two, count_by_peterson, count_by_peterson);

static void lock_both(void) {
    spin_acquire(&lock);
    spin_acquire(&other_lock);
    spin_release(&other_lock);
    spin_release(&lock);
}

static void lock_both_backwards(void) {
    spin_acquire(&other_lock);
    spin_acquire(&lock);
    spin_release(&lock);
    spin_release(&other_lock);
}

MODEL_HARNESS(two_locks, reset_locks, NULL, lock_both, lock_both);
MODEL_HARNESS(deadlock, reset_locks, NULL, lock_both, lock_both_backwards);

/* A lock that sleeps: 0 free, 1 taken, 2 taken and somebody may sleep. */
static void sleep_acquire(void) {
    uint32_t expected = 0;
    if (hak_atomic_cas(&lock, &expected, 1, acquire, relaxed)) return;
    while (hak_atomic_exchange(&lock, 2, acquire) != 0) model_futex_wait(&lock, 2);
}

static void count_sleeping(void) {
    sleep_acquire();
    counter++;
    if (hak_atomic_exchange(&lock, 0, release) == 2) model_futex_wake(&lock, 1);
}

static void count_sleeping_forgetful(void) {
    sleep_acquire();
    counter++;
    bool somebody_sleeps = hak_atomic_load(&lock, relaxed) == 2;
    hak_atomic_store(&lock, 0, release);
    if (somebody_sleeps) model_futex_wake(&lock, 1);
}

MODEL_HARNESS(futex_lock, reset_locks, check_three, count_sleeping, count_sleeping, count_sleeping);
MODEL_HARNESS(futex_lost_wake, reset_locks, check_two, count_sleeping_forgetful, count_sleeping_forgetful);

/* ---- the address space -------------------------------------------------------------------------------------- */

static uint64_t page[8];
static HAK_ATOMIC(uint32_t) page_state;

static void reserve_page(void) {
    page_state = 0;
    model_area(page, sizeof(page), MODEL_RESERVE);
}
static void commit_page(void) {
    reserve_page();
    model_area(page, sizeof(page), MODEL_COMMIT);
}
#define COMMIT_AND_USE(name, store_order, load_order, setup)                                                           \
    static void name##_commit(void) {                                                                                  \
        model_area(page, sizeof(page), MODEL_COMMIT);                                                                  \
        hak_atomic_store(&page_state, 1, store_order);                                                                 \
    }                                                                                                                  \
    static void name##_use(void) {                                                                                     \
        if (hak_atomic_load(&page_state, load_order) == 1) page[3]++;                                                  \
    }                                                                                                                  \
    MODEL_HARNESS(name, setup, NULL, name##_commit, name##_use)
COMMIT_AND_USE(area_commit, release, acquire, reserve_page);
COMMIT_AND_USE(area_commit_relaxed, release, relaxed, reserve_page);
COMMIT_AND_USE(area_committed_before, relaxed, relaxed, commit_page);

static void use_page(void) { page[3]++; }
static void purge_page(void) { model_area(page, sizeof(page), MODEL_PURGE); }
static void unmap_page(void) { model_area(page, sizeof(page), MODEL_UNMAP); }
static void use_and_hand_over(void) {
    page[3]++;
    hak_atomic_store(&page_state, 1, release);
}
static void purge_when_free(void) {
    if (hak_atomic_load(&page_state, acquire) == 1) {
        purge_page();
        page[3]++;
    }
}
static void use_after_unmap(void) {
    unmap_page();
    page[3]++;
}
MODEL_HARNESS(area_purge, commit_page, NULL, use_and_hand_over, purge_when_free);
MODEL_HARNESS(area_purge_race, commit_page, NULL, use_page, purge_page);
MODEL_HARNESS(area_unmap_race, commit_page, NULL, use_page, unmap_page);
MODEL_HARNESS(area_use_after_unmap, commit_page, NULL, use_after_unmap);

/* ---- fork ----------------------------------------------------------------------------------------------------- */

static HAK_ATOMIC(uint32_t) first_half, second_half;
static uint32_t plain_half;

static void reset_halves(void) { first_half = second_half = plain_half = 0; }
static void set_halves(void) {
    hak_atomic_store(&first_half, 1, relaxed);
    plain_half = 1;
    hak_atomic_store(&second_half, 1, relaxed);
}
static void fork_and_look(void) {
    model_fork();
    uint32_t first = hak_atomic_load(&first_half, relaxed), second = hak_atomic_load(&second_half, relaxed);
    model_assert(first >= second && first >= plain_half && plain_half >= second, "a child sees one moment");
}
static void fork_and_expect_all(void) {
    model_fork();
    uint32_t first = hak_atomic_load(&first_half, relaxed), second = hak_atomic_load(&second_half, relaxed);
    model_assert(first == second, "both halves are there");
}
MODEL_HARNESS(fork_moment, reset_halves, NULL, fork_and_look, set_halves);
MODEL_HARNESS(fork_between, reset_halves, NULL, fork_and_expect_all, set_halves);

/* ---- lost wake-up: bits with a flag that says somebody must look --------------------------------------------- */

static HAK_ATOMIC(uint32_t) bits, pending, taken;

static void reset_bits(void) {
    bits = 1;
    pending = 1;
    taken = 0;
    model_name(&bits, "bits");
    model_name(&pending, "pending");
}

static void give_bit(void) {
    hak_atomic_fetch_or(&bits, 2, relaxed);
    hak_atomic_exchange(&pending, 1, release);
}

static void drain(void) {
    hak_atomic_exchange(&pending, 0, acquire);
    hak_atomic_fetch_and(&bits, ~hak_atomic_load(&bits, relaxed), relaxed);
}

static void drain_after_store(void) {
    hak_atomic_store(&pending, 0, seq_cst);
    hak_atomic_fetch_and(&bits, ~hak_atomic_load(&bits, acquire), relaxed);
}

static void check_bits(void) { model_assert(bits == 0 || pending, "a bit without a flag is stranded"); }

MODEL_HARNESS(wake_up, reset_bits, check_bits, give_bit, drain);
MODEL_HARNESS(wake_up_lost, reset_bits, check_bits, give_bit, drain_after_store);

/* ---- a stack of nodes: ABA ---------------------------------------------------------------------------------- */

enum { TAG_SHIFT = 32, NODES = 4 };
static HAK_ATOMIC(uint64_t) head; /* node number, and above it how often it was changed */
static HAK_ATOMIC(uint32_t) below[NODES];
static HAK_ATOMIC(uint32_t) owners[NODES]; /* only to assert */

static void reset_stack(void) {
    head = 1;
    below[1] = 2;
    below[2] = 3;
    below[3] = 0;
    memset(owners, 0, sizeof(owners));
    model_name(&head, "head");
}

static void reset_tagged_stack(void) {
    reset_stack();
    model_tag(&head, ~0ull << TAG_SHIFT, "head");
}

static uint64_t with_tag(uint32_t node, uint64_t old, bool tagged) {
    return node | (tagged ? ((old >> TAG_SHIFT) + 1) << TAG_SHIFT : 0);
}

static uint32_t pop(bool tagged) {
    uint64_t seen = hak_atomic_load(&head, acquire);
    uint32_t node;
    do {
        node = (uint32_t)seen;
        if (node == 0) return 0;
    } while (!hak_atomic_cas(&head, &seen, with_tag(hak_atomic_load(&below[node], relaxed), seen, tagged), relaxed,
                             acquire));
    model_assert(hak_atomic_fetch_add(&owners[node], 1, relaxed) == 0, "a node has one owner");
    return node;
}

static void push(uint32_t node, bool tagged) {
    hak_atomic_fetch_sub(&owners[node], 1, relaxed);
    uint64_t seen = hak_atomic_load(&head, relaxed);
    do hak_atomic_store(&below[node], (uint32_t)seen, relaxed);
    while (!hak_atomic_cas(&head, &seen, with_tag(node, seen, tagged), release, relaxed));
}

static void pop_one(void) { pop(false); }

static void pop_two_push_one(void) {
    uint32_t first = pop(false);
    pop(false);
    if (first) push(first, false);
}

static void tagged_pop_one(void) { pop(true); }

static void tagged_pop_two_push_one(void) {
    uint32_t first = pop(true);
    pop(true);
    if (first) push(first, true);
}

static void check_stack(void) {
    unsigned free_count = 0, owned_count = 0;
    for (uint32_t node = (uint32_t)head; node != 0 && free_count <= NODES; node = below[node]) {
        model_assert(owners[node] == 0, "a free node has no owner");
        free_count++;
    }
    for (unsigned i = 1; i < NODES; i++) owned_count += owners[i];
    model_assert(free_count + owned_count == NODES - 1, "no node is lost");
}

MODEL_HARNESS(stack_aba, reset_stack, check_stack, pop_one, pop_two_push_one);
MODEL_HARNESS(stack_tagged, reset_tagged_stack, check_stack, tagged_pop_one, tagged_pop_two_push_one);

/* ---- the checker's own guards ------------------------------------------------------------------------------- */

static void spin_silently(void) {
    while (!hak_atomic_load(&x, relaxed))
        ;
}

MODEL_HARNESS(loop_without_relax, reset, NULL, spin_silently, add_one);

static void hang(void) {
    hak_atomic_store(&x, 1, relaxed);
    for (volatile int *forever = &data;; *forever = 0)
        ;
}

MODEL_HARNESS(hang, reset, NULL, hang);

static int *volatile nowhere;

static void crash(void) {
    hak_atomic_store(&x, 1, relaxed);
    *nowhere = 1;
}

MODEL_HARNESS(crash, reset, NULL, crash);

static void give_up(void) {
    hak_atomic_store(&x, 1, relaxed);
    abort();
}

MODEL_HARNESS(aborts, reset, NULL, give_up);

static int never_reset;

__attribute__((no_sanitize("thread"))) static void misbehave(void) {
    if (never_reset++ % 7 == 0) hak_atomic_fetch_add(&y, 1, relaxed);
    hak_atomic_fetch_add(&x, 1, relaxed);
    hak_atomic_fetch_add(&y, 1, relaxed);
}

MODEL_HARNESS(not_deterministic, reset, NULL, misbehave, misbehave);

/* Setup is thread 0's, whichever thread ended the last execution. */
static unsigned setup_thread;

static void note_thread(void) {
    reset();
    setup_thread = model_thread();
}
static void setup_was_first(void) { model_assert(setup_thread == 0, "setup is thread 0's"); }

MODEL_HARNESS(setup_in_first_thread, note_thread, setup_was_first, add_one, add_one);

static int mine;

static void reset_mine(void) {
    reset();
    mine = 10;
    model_thread_local(&mine, sizeof(mine));
}

static void use_mine(void) {
    mine += (int)model_thread() + 1;
    hak_atomic_fetch_add(&x, 1, relaxed);
    model_await(hak_atomic_load(&x, relaxed) == 3);
    model_assert(mine == 11 + (int)model_thread(), "each thread has its own");
}

static void check_mine(void) { model_assert(mine == 10, "and setup another"); }

MODEL_HARNESS(thread_local_data, reset_mine, check_mine, use_mine, use_mine, use_mine);

static void setup_fails(void) { model_assert(false, "a fault in setup"); }

MODEL_HARNESS(setup_failure, setup_fails, NULL, add_one);

/* Memory at other addresses each time: the search must not rely on them. */
static struct moving { HAK_ATOMIC(uint32_t) value; } * moving;

static void reset_moving(void) {
    static char arena[1 << 20];
    static size_t used;
    used = (used + 64) % sizeof(arena);
    moving = (struct moving *)(void *)(arena + used);
    moving->value = 0;
}

static void move_on(void) {
    hak_atomic_fetch_add(&moving->value, 1, relaxed);
    hak_atomic_fetch_add(&moving->value, 1, relaxed);
}

static void check_moving(void) { model_assert(moving->value == 4, "no addition is lost"); }

MODEL_HARNESS(moving_memory, reset_moving, check_moving, move_on, move_on);

/* ---- what is expected --------------------------------------------------------------------------------------- */

/* Harnesses not named here pass. */
static const struct {
    const char *harness, *failure;
} faults[] = {
    {"mp_relaxed_acquire", "the message is there"},
    {"mp_release_relaxed", "the message is there"},
    {"mp_seq_cst_data", "the message is there"},
    {"mp_plain_relaxed_acquire", "data race"},
    {"mp_plain_release_relaxed", "data race"},
    {"mp_no_release_fence", "data race"},
    {"mp_no_acquire_fence", "data race"},
    {"mp_wrong_fence", "data race"},
    {"sb_release_acquire", "one store is seen"},
    {"sb_store_only", "one store is seen"},
    {"sb_load_only", "one store is seen"},
    {"sb_fence_acq_rel", "one store is seen"},
    {"sb_exchange", "one store is seen"},
    {"iriw_release_acquire", "readers agree"},
    {"two_writes_relaxed", "a second write is last"},
    {"overwrite_relaxed", "the second write is last"},
    {"load_store_adds", "no addition is lost"},
    {"release_sequence_store", "data race"},
    {"rmw_relaxed", "the RMW reads the write"},
    {"cas_failure_relaxed", "data race"},
    {"race_write_read", "data race"},
    {"race_write_write", "data race"},
    {"race_copy", "data race"},
    {"race_clear", "data race"},
    {"race_announced", "data race"},
    {"plain_initialisation_race", "data race"},
    {"race_plain_on_atomic", "data race"},
    {"changed_behind", "was changed behind"},
    {"deadlock", "deadlock: T0 waits after selftest.c:"},
    {"futex_lost_wake", "sleeps after selftest.c:"},
    {"area_commit_relaxed", "is committed"},
    {"area_purge_race", "data race"},
    {"area_unmap_race", "data race"},
    {"area_use_after_unmap", "unmapped memory"},
    {"fork_between", "both halves are there"},
    {"wake_up_lost", "is stranded"},
    {"stack_aba", "node"},
    {"loop_without_relax", "no end after"},
    {"hang", "hang"},
    {"crash", "crash: Segmentation fault"},
    {"aborts", "crash: Aborted"},
    {"not_deterministic", "not deterministic"},
    {"setup_failure", "a fault in setup"},
};

/* How many mutants each has, so that one that is not made is missed; and that some harness here catches it. */
static const struct {
    const char *harness;
    size_t mutants;
} mutated[] = {
    {"mp_plain_release_acquire", 2},
    {"mp_fences", 2},
    {"sb_seq_cst", 4},
    {"sb_fence_seq_cst", 2},
    {"spinlock", 2},
    {"spinlock_exchange", 2},
    {"ticket_lock", 2},
    {"overwrite_release_acquire", 2},
    {"cas_failure_acquire", 2},
    {"futex_lock", 3},
    {"wake_up", 2},
    {"area_commit", 2},
    {"area_purge", 2},
    {"stack_tagged", 4},
};

static const char *expected_failure(const char *name) {
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        if (strcmp(faults[i].harness, name) == 0) return faults[i].failure;
    return NULL;
}

static int fault_count;

static void report(bool passed, const char *what, const char *name, const char *detail) {
    if (!passed) fault_count++;
    printf("%-4s %-28s %s %s\n", passed ? "ok" : "FAIL", name, what, detail);
}

static void test_harness(const struct model_harness *harness) {
    const char *failure = expected_failure(harness->name);
    struct model_result result = model_explore(harness, MODEL_BOUNDS);
    char detail[500];
    snprintf(detail, sizeof(detail), "%ju executions%s%s", (uintmax_t)result.executions, result.failed ? ": " : "",
             result.message);
    bool passed = failure ? result.failed && strstr(result.message, failure) : !result.failed && result.complete;
    report(passed, failure ? "fails as it must:" : "passes:", harness->name, detail);
    if (!passed && result.failed) model_print_schedule(stdout);
}

static const struct model_harness *find_harness(const char *name) {
    for (const struct model_harness *h = model_harnesses(); h; h = h->next)
        if (strcmp(h->name, name) == 0) return h;
    printf("no harness %s\n", name);
    exit(2);
}

static void test_mutants(const char *name, size_t expected_count) {
    struct model_entry *entries;
    const struct model_harness *harness = find_harness(name);
    size_t entry_count = model_entries(&entries), mutant_count = 0;
    for (size_t i = 0; i < entry_count; i++) entries[i].touched = false;
    model_explore(harness, MODEL_BOUNDS);
    entry_count = model_entries(&entries);
    bool *touched = calloc(entry_count, sizeof(bool));
    for (size_t i = 0; touched && i < entry_count; i++) touched[i] = entries[i].touched;
    for (size_t i = 0; touched && i < entry_count; i++) {
        struct model_mutant mutants[4];
        size_t count = touched[i] ? model_mutants_of(&entries[i], mutants) : 0;
        for (size_t m = 0; m < count; m++) {
            char mutant_name[120];
            model_mutant_name(&mutants[m], mutant_name, sizeof(mutant_name));
            model_mutant_apply(&mutants[m]);
            struct model_result result = model_explore(harness, MODEL_BOUNDS);
            model_mutant_revert(&mutants[m]);
            report(result.failed, mutant_name, name, result.failed ? "caught" : "survives");
            mutant_count++;
        }
    }
    free(touched);
    if (mutant_count != expected_count) {
        printf("FAIL %-28s has %zu mutants, not %zu\n", name, mutant_count, expected_count);
        fault_count++;
    }
}

static void test_bounds(void) {
    struct model_bounds bounds = MODEL_BOUNDS;
    bounds.executions = 10;
    struct model_result result = model_explore(find_harness("spinlock"), bounds);
    report(!result.failed && !result.complete && result.executions == 10, "says when it did not see all", "bounds", "");

    bounds = MODEL_BOUNDS;
    bounds.stale = 0;
    result = model_explore(find_harness("sb_release_acquire"), bounds);
    report(!result.failed && result.complete && !result.unbounded, "no stale reads: sequentially consistent", "bounds",
           "");

    bounds = MODEL_BOUNDS;
    bounds.preemptions = 0;
    result = model_explore(find_harness("load_store_adds"), bounds);
    report(result.failed && result.preemptions == 0, "a stale read stands in for a preemption", "bounds", "");
    bounds.stale = 0;
    result = model_explore(find_harness("load_store_adds"), bounds);
    report(!result.failed && !result.unbounded, "with neither, nothing is lost", "bounds", "");
    bounds.preemptions = 1;
    result = model_explore(find_harness("load_store_adds"), bounds);
    report(result.failed && result.preemptions == 1, "one preemption is enough", "bounds", "");
}

/* Not an assertion: machines differ. */
static void measure(const char *name, unsigned preemptions) {
    struct model_bounds bounds = MODEL_BOUNDS;
    bounds.preemptions = preemptions;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    struct model_result result = model_explore(find_harness(name), bounds);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
    printf("     %-28s %u preemptions: %ju executions in %.2f s, %.0f per second%s\n", name, preemptions,
           (uintmax_t)result.executions, seconds, (double)result.executions / seconds,
           result.unbounded ? ", all there are" : "");
}

int main(void) {
    for (const struct model_harness *h = model_harnesses(); h; h = h->next) test_harness(h);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) find_harness(faults[i].harness);
    for (size_t i = 0; i < sizeof(mutated) / sizeof(mutated[0]); i++)
        test_mutants(mutated[i].harness, mutated[i].mutants);
    test_bounds();
    measure("sb_seq_cst", 2);
    measure("spinlock_three", 2);
    measure("ticket_lock", 3);
    measure("stack_tagged", 3);
    printf("%d faults\n", fault_count);
    return fault_count == 0 ? 0 : 1;
}
