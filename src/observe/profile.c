#include "observe/profile.h"

#include <errno.h>
#include <string.h>

#include "base/bits.h"
#include "base/floating.h"
#include "base/format.h"
#include "observe/probes.h"
#include "observe/profile_tables.h"
#include "observe/python.h"
#include "observe/stack.h"
#include "observe/stats.h"
#include "os/inspect.h"
#include "os/os.h"
#include "pool/pool.h"
#include "pool/ration.h"

enum {
    SITE_PROBES = 64,
    SAMPLE_PROBES = 32,
    PEAK_SHARE = 64 /* a peak is noted when it is higher by this part of itself */
};

HAK_ATOMIC(uint64_t) hak_profile_interval;

HAK_ATOMIC(struct hak_profile_tables *) hak_profile_tables;
static HAK_ATOMIC(uint64_t) random_state;

static struct hak_profile_tables *known_tables(void) {
    /* Acquire pairs with make_tables. */
    return hak_atomic_load(&hak_profile_tables, acquire);
}

bool hak_profile_is_metadata(uintptr_t address) {
    const struct hak_profile_tables *known = known_tables();
    return known != NULL && address - (uintptr_t)known < known->bytes;
}

/* ---- Chance ------------------------------------------------------------------------------------------------------ */

void hak_profile_seed(uint64_t seed) { hak_atomic_store(&random_state, seed, relaxed); }

void hak_profile_seed_child(void) {
    hak_atomic_fetch_add(&random_state, (uint64_t)hak_os_process_id() * UINT64_C(0xD1342543DE82EF95), relaxed);
}

void hak_profile_seed_once(void) {
    if (hak_atomic_load(&random_state, relaxed) == 0)
        hak_profile_seed(hak_os_clock_ns() ^ (uint64_t)hak_os_process_id() << 32);
}

/* SplitMix64: any thread takes the next number. */
uint64_t hak_profile_random(void) {
    uint64_t mixed = hak_atomic_fetch_add(&random_state, UINT64_C(0x9E3779B97F4A7C15), relaxed);
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

/* -ln(n / 2^53) for n of 1 to 2^53, to nine digits: n = 2^power * m with m of 1 to 2, and ln m = 2 artanh((m - 1) / (m
 * + 1)). */
static double minus_log(uint64_t n) {
    uint32_t power = hak_highest_bit(n);
    double m = (double)n / (double)((uint64_t)1 << power), s = (m - 1) / (m + 1), sum = 0;
    for (int term = 17; term >= 1; term -= 2) sum = sum * s * s + 1.0 / term;
    return (53 - (double)power) * 0.69314718055994531 - 2 * s * sum;
}

static __attribute__((noinline)) int64_t draw(uint64_t interval_bytes) {
    static const double most = (double)((uint64_t)1 << 62);
    double bytes = minus_log((hak_profile_random() >> 11) + 1) * (double)interval_bytes;
    return (int64_t)(bytes < most ? bytes : most) + 1;
}

int64_t hak_profile_draw(uint64_t interval_bytes) {
    struct hak_floating programs = hak_floating_begin();
    int64_t bytes = draw(interval_bytes);
    hak_floating_end(programs);
    return bytes;
}

/* 1 - exp(-x) for x >= 0: a series where x is small, and to there by halving: 1 - exp(-2x) = y (2 - y) for y = 1 -
 * exp(-x). */
static double chance_of(double x) {
    int halvings = 0;
    if (x > 50) return 1;
    while (x > 1.0 / 64) {
        x /= 2;
        halvings++;
    }
    double y = x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5))));
    for (; halvings > 0; halvings--) y *= 2 - y;
    return y;
}

static __attribute__((noinline)) uint64_t weight_of(uint64_t bytes, uint64_t interval_bytes) {
    double weight = HAK_PROFILE_WEIGHT_ONE / chance_of((double)bytes / (double)interval_bytes);
    return weight < 0x1p63 ? (uint64_t)(weight + 0.5) : (uint64_t)1 << 63;
}

uint64_t hak_profile_weight(uint64_t bytes, uint64_t interval_bytes) {
    struct hak_floating programs = hak_floating_begin();
    uint64_t weight = weight_of(bytes, interval_bytes);
    hak_floating_end(programs);
    return weight;
}

/* A few pages, each filled by what was asked for one after the other. */
enum { RUN_BYTES = 16 << 10, MOST_SLOTS = UINT16_MAX };

HAK_ATOMIC(bool) hak_profile_in_runs;

struct hak_profile_runs hak_profile_runs_of(uint64_t block_bytes) {
    uint64_t interval_bytes = hak_atomic_load(&hak_profile_interval, relaxed), slots = interval_bytes / RUN_BYTES;
    return (struct hak_profile_runs){.are_on = hak_atomic_load(&hak_profile_in_runs, relaxed),
                                     .interval_bytes = interval_bytes,
                                     .run_bytes = block_bytes > RUN_BYTES ? block_bytes : RUN_BYTES,
                                     .slot_count = slots == 0           ? 1
                                                   : slots < MOST_SLOTS ? slots
                                                                        : MOST_SLOTS};
}

int64_t hak_profile_begin_runs(const struct hak_profile_runs *runs, uint16_t *slot) {
    *slot = (uint16_t)(hak_profile_random() % runs->slot_count);
    return (int64_t)(*slot * runs->run_bytes);
}

int64_t hak_profile_next_run(const struct hak_profile_runs *runs, int64_t to_run, uint16_t *slot) {
    while (to_run <= -(int64_t)runs->run_bytes) {
        to_run += (int64_t)((runs->slot_count - *slot) * runs->run_bytes);
        to_run += hak_profile_begin_runs(runs, slot);
    }
    return to_run;
}

uint64_t hak_profile_run_weight(const struct hak_profile_runs *runs) {
    return runs->slot_count * HAK_PROFILE_WEIGHT_ONE;
}

/* ---- Sites ------------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const uintptr_t *addresses, uint32_t depth) {
    uint64_t hash = depth;
    for (uint32_t i = 0; i < depth; i++) {
        hash = (hash ^ addresses[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    return hash;
}

static struct hak_profile_site *site_at(struct hak_profile_tables *known, uint32_t where) {
    return (struct hak_profile_site *)(void *)&known->words[where];
}

static bool is_of(const struct hak_profile_site *site, uint64_t hash, const uintptr_t *addresses, uint32_t depth) {
    if (site->hash != hash || site->depth != depth) return false;
    for (uint32_t i = 0; i < depth; i++)
        if (site->addresses[i] != addresses[i]) return false;
    return true;
}

/* Where a new site is; 0 when there is no room. */
static uint32_t make_site(struct hak_profile_tables *known, uint64_t hash, const uintptr_t *addresses, uint32_t depth) {
    uint32_t need = (uint32_t)(sizeof(struct hak_profile_site) / sizeof(uint64_t)) + depth;
    uint32_t where = hak_atomic_load(&known->words_used, relaxed);
    do {
        if (where + need > HAK_PROFILE_SITE_WORDS) return 0;
    } while (!hak_atomic_cas(&known->words_used, &where, where + need, relaxed, relaxed));
    struct hak_profile_site *site = site_at(known, where);
    site->hash = hash;
    site->depth = depth;
    for (uint32_t i = 0; i < depth; i++) site->addresses[i] = addresses[i];
    return where;
}

/* Returns where the site is. */
static uint32_t add_to_list(struct hak_profile_tables *known, struct hak_profile_index *index, uint32_t where) {
    struct hak_profile_site *site = site_at(known, where);
    uint32_t newest = hak_atomic_load(&index->newest, relaxed);
    do {
        site->next = newest;
        /* Release pairs with hak_profile_write: who reads the list sees the sites. */
    } while (!hak_atomic_cas(&index->newest, &newest, where, release, relaxed));
    return where;
}

/* Where the site of a stack is, made now if it is new; 0 when there is no room. */
static uint32_t find_site(struct hak_profile_tables *known, struct hak_profile_index *index, const uintptr_t *addresses,
                          uint32_t depth) {
    uint64_t hash = hash_of(addresses, depth);
    uint32_t made = 0;
    for (uint32_t i = 0; i < SITE_PROBES; i++) {
        HAK_ATOMIC(uint32_t) *slot = &index->slots[(hash + i) % HAK_PROFILE_SITE_SLOTS];
        /* Acquire pairs with the release below: the site can be read. */
        uint32_t where = hak_atomic_load(slot, acquire);
        if (where == 0) {
            if (made == 0) made = make_site(known, hash, addresses, depth);
            if (made == 0) return 0;
            /* Release pairs with the acquire loads of slots; acquire, as above: another thread may have been faster.
             * What was made in vain is in no slot then, and lost. */
            if (hak_atomic_cas(slot, &where, made, release, acquire)) return add_to_list(known, index, made);
        }
        if (is_of(site_at(known, where), hash, addresses, depth)) return where;
    }
    return 0;
}

/* ---- Functions of a Python program (P8) -------------------------------------------------------------------------- */

enum { LINE_BITS = 24, FUNCTION_BITS = 38 };
static const uintptr_t is_innermost_bit = HAK_PROFILE_IN_PYTHON >> 1;

/* A function is kept as a site is. */
static uint32_t intern_function(struct hak_profile_tables *known, const char *name) {
    uintptr_t words[HAK_PYTHON_TEXT_BYTES / sizeof(uintptr_t)] = {0};
    size_t length = strlen(name);
    memcpy(words, name, length);
    return find_site(known, &known->functions, words, (uint32_t)(length / sizeof words[0] + 1));
}

/* The word for the place in a function, but for whether it is innermost: 0 when there is none. */
static uintptr_t place_of_function(struct hak_profile_tables *known, struct hak_python_walk *walk,
                                   struct hak_python_frame *function) {
    struct hak_profile_place *place = &known->places[function->identity % HAK_PROFILE_PLACES];
    uint64_t word = hak_atomic_load(&place->word, relaxed);
    if (word != 0 && (hak_atomic_load(&place->identity_and_word, relaxed) ^ word) == function->identity) return word;
    if (!hak_python_describe(walk, function)) return 0;
    uintptr_t line = function->line < 1U << LINE_BITS ? function->line : 0;
    word = HAK_PROFILE_IN_PYTHON | (uintptr_t)intern_function(known, function->text) << LINE_BITS | line;
    hak_atomic_store(&place->word, word, relaxed);
    hak_atomic_store(&place->identity_and_word, function->identity ^ word, relaxed);
    return word;
}

/* Apart: what it takes of the stack, programs in other languages don't. */
static HAK_COLD uint32_t walk_python(struct hak_profile_tables *known, uintptr_t *words) {
    uint32_t depth = 0;
    struct hak_python_walk walk = hak_python_begin();
    struct hak_python_frame function;
    uintptr_t word;
    while (depth < HAK_PROFILE_PYTHON_MOST && hak_python_step(&walk, &function) &&
           (word = place_of_function(known, &walk, &function)) != 0)
        words[depth++] = word | (function.is_innermost ? is_innermost_bit : 0);
    return depth;
}

uint32_t hak_profile_walk(const void *frame, uintptr_t *addresses) {
    uint32_t depth = hak_stack_walk(frame, addresses);
    struct hak_profile_tables *known = known_tables();
    return known != NULL && hak_python_is_there() ? depth + walk_python(known, addresses + depth) : depth;
}

const char *hak_profile_python_function(uintptr_t word) {
    uint32_t where = (uint32_t)(word >> LINE_BITS & (((uintptr_t)1 << FUNCTION_BITS) - 1));
    return where == 0 ? "?\t?" : (const char *)site_at(known_tables(), where)->addresses;
}

uint32_t hak_profile_python_line(uintptr_t word) { return word & ((1U << LINE_BITS) - 1); }

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* Where a block may be, one place after the other: first among single samples, then among those in runs. A
 * multiplication spreads addresses that differ in few bits. */
static uint32_t sample_slot(uintptr_t block, uint32_t probe) {
    uint32_t at = (uint32_t)((block * UINT64_C(0x9E3779B97F4A7C15)) >> 40) + probe % SAMPLE_PROBES;
    return probe < SAMPLE_PROBES ? at % HAK_PROFILE_SINGLE_SLOTS
                                 : HAK_PROFILE_SINGLE_SLOTS + at % HAK_PROFILE_RUN_SLOTS;
}

static uint32_t probes_of(const struct hak_profile_tables *known) {
    return hak_atomic_load(&known->had_runs, relaxed) ? 2 * SAMPLE_PROBES : SAMPLE_PROBES;
}

static void set_origin(struct hak_profile_last *origin, uintptr_t block, uint64_t size, uint32_t site) {
    hak_atomic_store(&origin->block, 0, relaxed);
    /* Releases pair with find_origin: who sees one of these sees that the address is gone; */
    hak_atomic_store(&origin->size, size, release);
    hak_atomic_store(&origin->site, site, release);
    /* Release pairs with find_origin: and who sees the address sees these. */
    hak_atomic_store(&origin->block, block, release);
}

/* Takes a slot for a block that has none. */
static struct hak_profile_entry *add_sample(struct hak_profile_tables *known, uintptr_t block, uint64_t size,
                                            uint32_t site) {
    uint32_t first = hak_atomic_load(&hak_profile_in_runs, relaxed) ? SAMPLE_PROBES : 0;
    for (uint32_t i = 0; i < SAMPLE_PROBES; i++) {
        uint32_t slot = sample_slot(block, first + i);
        uintptr_t none = 0;
        if (hak_atomic_load(&known->blocks[slot], relaxed) != 0) continue;
        /* Acquire pairs with hak_profile_forget: who had the slot has read all of it. */
        if (!hak_atomic_cas(&known->blocks[slot], &none, block, acquire, relaxed)) continue;
        set_origin(&known->origins[slot], block, size, site);
        return &known->samples[slot];
    }
    return NULL;
}

static void add(HAK_ATOMIC(uint64_t) *figure, uint64_t amount) { hak_atomic_fetch_add(figure, amount, relaxed); }

static void add_size(struct hak_profile_site *site, uint64_t size) {
    uint64_t least = hak_atomic_load(&site->least_size, relaxed),
             largest = hak_atomic_load(&site->largest_size, relaxed);
    while ((least == 0 || size < least) && !hak_atomic_cas(&site->least_size, &least, size, relaxed, relaxed)) {
    }
    while (size > largest && !hak_atomic_cas(&site->largest_size, &largest, size, relaxed, relaxed)) {
    }
}

static uint64_t live_of(uint64_t all, uint64_t freed) { return freed < all ? all - freed : 0; }

/* Where others change figures meanwhile, one may be below 0 for a moment. */
static uint64_t at_least_none(int64_t figure) { return figure > 0 ? (uint64_t)figure : 0; }

/* Estimates of what a class has live, of what was sampled. */
static uint64_t live_weight(const struct hak_profile_class *sums) {
    uint64_t weight = hak_atomic_load(&sums->weight, relaxed);
    return live_of(weight, hak_atomic_load(&sums->freed_weight, relaxed));
}

static uint64_t live_bytes(const struct hak_profile_class *sums) {
    uint64_t bytes = hak_atomic_load(&sums->bytes, relaxed);
    return live_of(bytes, hak_atomic_load(&sums->freed_bytes, relaxed));
}

/* What each class has live, and how many bytes that is in all. */
struct live {
    int64_t blocks[HAK_SMALL_CLASS_COUNT + 1];
    int64_t large_bytes, bytes;
    bool is_sure;
};

static struct live count_live_now(struct hak_profile_tables *known) {
    struct live live;
    live.is_sure = hak_pool_count_live(live.blocks);
    live.blocks[0] = hak_atomic_load(&known->live_large, relaxed);
    live.bytes = live.large_bytes = hak_atomic_load(&known->live_large_bytes, relaxed);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        live.bytes += live.blocks[i] * (int64_t)hak_size_classes[i].block_bytes;
    return live;
}

/* A drain takes a moment. */
static struct live count_surely(struct hak_profile_tables *known) {
    enum { TRIES = 100 };
    struct live live = count_live_now(known);
    for (int i = 0; i < TRIES && !live.is_sure; i++) {
        hak_os_yield();
        live = count_live_now(known);
    }
    return live;
}

/* What is live now is the peak, as far as anybody has looked (P5). */
static void note_peak(struct hak_profile_tables *known, const struct live *live) {
    uint32_t process = (uint32_t)hak_os_process_id(), other = hak_atomic_load(&known->noting, relaxed);
    /* Relaxed: of two notes one after the other a late figure of the first may stay, as estimates may. */
    if (other == process || !hak_atomic_cas(&known->noting, &other, process, relaxed, relaxed)) return;
    hak_atomic_store(&known->noted_bytes, live->bytes, relaxed);
    for (uint32_t i = 0; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_profile_class *sums = &known->classes[i];
        hak_atomic_store(&sums->peak_blocks, live->blocks[i], relaxed);
        hak_atomic_store(&sums->peak_weight, live_weight(sums), relaxed);
        hak_atomic_store(&sums->peak_bytes, live_bytes(sums), relaxed);
        hak_atomic_store(&sums->peak_unsampled_blocks, hak_atomic_load(&sums->unsampled_blocks, relaxed), relaxed);
    }
    hak_atomic_store(&known->peak_large_bytes, live->large_bytes, relaxed);
    hak_atomic_store(&known->peak_ms, hak_os_clock_ms() - known->began_ms, relaxed);
    /* Acquire pairs with add_to_list. */
    for (uint32_t where = hak_atomic_load(&known->sites.newest, acquire); where != 0;
         where = site_at(known, where)->next) {
        struct hak_profile_site *site = site_at(known, where);
        uint64_t bytes = hak_atomic_load(&site->bytes, relaxed), weight = hak_atomic_load(&site->weight, relaxed);
        hak_atomic_store(&site->peak_bytes, live_of(bytes, hak_atomic_load(&site->freed_bytes, relaxed)), relaxed);
        hak_atomic_store(&site->peak_weight, live_of(weight, hak_atomic_load(&site->freed_weight, relaxed)), relaxed);
        uint64_t variance = hak_atomic_load(&site->variance, relaxed);
        variance = live_of(variance, hak_atomic_load(&site->freed_variance, relaxed));
        hak_atomic_store(&site->peak_variance, variance, relaxed);
    }
    hak_atomic_store(&known->noting, 0, relaxed);
}

/* Returns the most that there was before. */
static int64_t raise_most(struct hak_profile_tables *known, int64_t bytes) {
    int64_t most = hak_atomic_load(&known->most_bytes, relaxed);
    while (bytes > most && !hak_atomic_cas(&known->most_bytes, &most, bytes, relaxed, relaxed)) {
    }
    return most;
}

struct hak_profile_heights hak_profile_look(void) {
    struct hak_profile_tables *known = known_tables();
    if (known == NULL) return (struct hak_profile_heights){0, 0};
    struct live live = count_live_now(known);
    int64_t most = raise_most(known, live.is_sure ? live.bytes : 0);
    int64_t noted = hak_atomic_load(&known->noted_bytes, relaxed);
    if (!live.is_sure) /* look again soon */
        return (struct hak_profile_heights){at_least_none(most), at_least_none(most)};
    if (live.bytes > noted + noted / PEAK_SHARE) note_peak(known, &live);
    uint64_t now = at_least_none(live.bytes);
    return (struct hak_profile_heights){now, live.bytes > most ? now : at_least_none(most)};
}

/* `amount` for each allocation that the sample counts for. */
static uint64_t weighted(uint64_t weight, uint64_t amount) {
    return (weight * amount + HAK_PROFILE_WEIGHT_ONE / 2) / HAK_PROFILE_WEIGHT_ONE;
}

/* What the sample adds to the variance of its site's bytes: w (w - 1) b^2, by Horvitz and Thompson. In squares of 64
 * bytes, so that there is room for many samples; of one that stands for more than 8 GiB it is too little. */
static uint64_t variance_of(const struct hak_profile_entry *sample) {
    enum { SHIFT = 6 };
    static const uint64_t most = (uint64_t)1 << (33 - SHIFT);
    uint64_t stands_for = weighted(sample->weight, sample->size);
    if (stands_for <= sample->size) return 0;
    uint64_t all = stands_for >> SHIFT, others = (stands_for - sample->size) >> SHIFT;
    return (all < most ? all : most) * (others < most ? others : most);
}

void hak_profile_record(const void *block, size_t size, uint32_t size_class, uint64_t weight, uint64_t born,
                        const uintptr_t *addresses, uint32_t depth) {
    struct hak_profile_tables *known = known_tables();
    if (known == NULL) return;
    uint32_t where = find_site(known, &known->sites, addresses, depth);
    struct hak_profile_entry *sample = where == 0 ? NULL : add_sample(known, (uintptr_t)block, size, where);
    if (sample == NULL) {
        add(&known->lost_samples, 1);
        return;
    }
    *sample =
        (struct hak_profile_entry){.site = where,
                                   .size = size,
                                   .size_class = size_class,
                                   .block_bytes = size_class == 0 ? size : hak_size_classes[size_class].block_bytes,
                                   .born_ms = hak_os_clock_ms(),
                                   .weight = weight,
                                   .born = born};
    struct hak_profile_site *site = site_at(known, where);
    add(&site->samples, 1);
    add(&site->weight, sample->weight);
    add(&site->bytes, weighted(sample->weight, size));
    add(&site->block_bytes, weighted(sample->weight, sample->block_bytes));
    add(&site->variance, variance_of(sample));
    add_size(site, size);
    add(&known->classes[size_class].weight, weight);
    add(&known->classes[size_class].bytes, weighted(weight, size));
    hak_probe_alloc(block, size, weighted(weight, size));
}

static HAK_ATOMIC(uint64_t) *lifetime_figure(struct hak_profile_site *site, uint64_t lifetime_ms) {
    if (lifetime_ms < 10) return &site->freed_below_10ms;
    if (lifetime_ms < 100) return &site->freed_below_100ms;
    if (lifetime_ms < 1000) return &site->freed_below_1s;
    if (lifetime_ms < 10000) return &site->freed_below_10s;
    if (lifetime_ms < 100000) return &site->freed_below_100s;
    return &site->freed_later;
}

/* Once more, or with ~0, once less. */
static void count_freed(struct hak_profile_tables *known, const struct hak_profile_entry *sample, uint64_t times) {
    struct hak_profile_site *site = site_at(known, sample->site);
    uint64_t lifetime_ms = sample->freed_ms - sample->born_ms, weight = times * sample->weight;
    add(&site->freed_samples, times);
    add(&site->freed_weight, weight);
    add(&site->freed_bytes, times * weighted(sample->weight, sample->size));
    add(&site->freed_block_bytes, times * weighted(sample->weight, sample->block_bytes));
    add(&site->freed_variance, times * variance_of(sample));
    add(&known->classes[sample->size_class].freed_weight, weight);
    add(&known->classes[sample->size_class].freed_bytes, times * weighted(sample->weight, sample->size));
    add(&site->freed_ms, times * weighted(sample->weight, lifetime_ms));
    add(lifetime_figure(site, lifetime_ms), weight);
}

void hak_profile_judge(const struct hak_profile_entry *entry, uint64_t freed) {
    if (entry->site == 0 || entry->born == 0 || freed - entry->born >= HAK_PROFILE_TEMPORARY) return;
    struct hak_profile_site *site = site_at(known_tables(), entry->site);
    add(&site->temporary_weight, entry->weight);
    add(&site->temporary_bytes, weighted(entry->weight, entry->size));
}

struct hak_profile_entry hak_profile_forget(const void *block) {
    static const struct hak_profile_entry none;
    struct hak_profile_tables *known = known_tables();
    if (known == NULL) return none;
    for (uint32_t i = 0, count = probes_of(known); i < count; i++) {
        uint32_t slot = sample_slot((uintptr_t)block, i);
        uintptr_t expected = (uintptr_t)block;
        if (hak_atomic_load(&known->blocks[slot], relaxed) != expected) continue;
        struct hak_profile_entry sample = known->samples[slot];
        hak_probe_free(block);
        /* Release pairs with add_sample. A program may free a block twice at once: it counts for one of the threads. */
        if (!hak_atomic_cas(&known->blocks[slot], &expected, 0, release, relaxed)) return none;
        sample.freed_ms = hak_os_clock_ms();
        count_freed(known, &sample, 1);
        return sample;
    }
    return none;
}

void hak_profile_take_back(const void *block, const struct hak_profile_entry *entry) {
    struct hak_profile_tables *known = known_tables();
    if (entry->site == 0) return;
    struct hak_profile_entry *sample = add_sample(known, (uintptr_t)block, entry->size, entry->site);
    if (sample == NULL) return; /* its place is another's: to the profile it was freed */
    *sample = *entry;
    count_freed(known, entry, UINT64_MAX);
    hak_probe_alloc(block, entry->size, weighted(entry->weight, entry->size));
}

static bool find_origin(struct hak_profile_tables *known, uint32_t slot, uintptr_t block,
                        struct hak_profile_origin *found) {
    const struct hak_profile_last *origin = &known->origins[slot];
    /* Acquire pairs with set_origin: what belongs to the address can be read. */
    if (hak_atomic_load(&origin->block, acquire) != block) return false;
    /* Acquire pairs with set_origin: if they are another block's, the address is gone. */
    uint64_t size = hak_atomic_load(&origin->size, acquire);
    uint32_t where = hak_atomic_load(&origin->site, acquire);
    if (hak_atomic_load(&origin->block, relaxed) != block) return false;
    const struct hak_profile_site *site = site_at(known, where);
    *found = (struct hak_profile_origin){.size = size,
                                         .is_freed = hak_atomic_load(&known->blocks[slot], relaxed) != block,
                                         .depth = site->depth,
                                         .addresses = site->addresses};
    return true;
}

bool hak_profile_find(const void *block, struct hak_profile_origin *origin) {
    struct hak_profile_tables *known = known_tables();
    bool is_known = false;
    if (known == NULL || block == NULL) return false;
    origin->is_freed = true;
    for (uint32_t i = 0, count = probes_of(known); i < count && origin->is_freed; i++)
        is_known |= find_origin(known, sample_slot((uintptr_t)block, i), (uintptr_t)block, origin);
    return is_known;
}

/* ---- On and off -------------------------------------------------------------------------------------------------- */

/* While the profile is off nobody counts them. */
static void count_large_objects(struct hak_profile_tables *known) {
    struct hak_statistics total;
    hak_statistics_take(&total);
    hak_atomic_store(&known->live_large, (int64_t)total.large_blocks, relaxed);
    hak_atomic_store(&known->live_large_bytes, (int64_t)total.large_bytes, relaxed);
}

/* What is live, and was allocated while nobody looked. */
static void note_unsampled(struct hak_profile_tables *known) {
    count_large_objects(known);
    struct live live = count_surely(known);
    for (uint32_t i = 0; i <= HAK_SMALL_CLASS_COUNT; i++) {
        uint64_t sampled = live_weight(&known->classes[i]) / HAK_PROFILE_WEIGHT_ONE;
        hak_atomic_store(&known->classes[i].unsampled_blocks, live_of(at_least_none(live.blocks[i]), sampled), relaxed);
    }
    uint64_t large_bytes = live_of(at_least_none(live.large_bytes), live_bytes(&known->classes[0]));
    hak_atomic_store(&known->unsampled_large_bytes, large_bytes, relaxed);
}

static bool make_tables(void) {
    struct hak_profile_tables *known = known_tables();
    if (known != NULL) return true;
    hak_python_look_for();
    size_t bytes = hak_align_up(sizeof(struct hak_profile_tables), hak_os_page_bytes());
    struct hak_profile_tables *made = hak_os_map(bytes, hak_os_page_bytes());
    if (made == NULL) return false;
    made->bytes = bytes;
    made->began_ms = hak_os_clock_ms();
    made->identity = hak_os_clock_ns() ^ (uintptr_t)made;
    hak_atomic_store(&made->words_used, 1, relaxed); /* 0 means no site */
    /* Release pairs with known_tables. Another thread may have been faster. */
    if (!hak_atomic_cas(&hak_profile_tables, &known, made, release, relaxed)) hak_os_unmap(made, bytes);
    return true;
}

void hak_profile_count(uint32_t size_class) {
    struct hak_profile_tables *known = known_tables();
    if (known != NULL) add(&known->classes[size_class].metered, 1);
}

void hak_profile_count_large(uint64_t size, uint64_t bytes) {
    struct hak_profile_tables *known = known_tables();
    if (known == NULL) return;
    add(&known->large_bytes, size);
    add(&known->large_memory, bytes);
}

void hak_profile_change_large(int64_t count, int64_t bytes) {
    struct hak_profile_tables *known = known_tables();
    if (known == NULL || !hak_profile_is_on()) return;
    hak_atomic_fetch_add(&known->live_large, count, relaxed);
    hak_atomic_fetch_add(&known->live_large_bytes, bytes, relaxed);
}

bool hak_profile_begin(uint64_t interval_bytes) {
    if (!make_tables()) return false;
    if (!hak_profile_is_on()) note_unsampled(known_tables());
    hak_profile_seed_once();
    struct hak_profile_tables *known = known_tables();
    bool in_runs = hak_atomic_load(&hak_profile_in_runs, relaxed);
    if (in_runs) hak_atomic_store(&known->had_runs, true, relaxed);
    if (!in_runs) hak_atomic_store(&known->runs_since_ms, 0, relaxed);
    else if (hak_atomic_load(&known->runs_since_ms, relaxed) == 0)
        hak_atomic_store(&known->runs_since_ms, hak_os_clock_ms(), relaxed);
    uint64_t ended_ms = hak_atomic_exchange(&known->ended_ms, 0, relaxed);
    if (ended_ms != 0) add(&known->off_ms, hak_os_clock_ms() - ended_ms);
    hak_atomic_store(&known->interval_bytes, interval_bytes, relaxed);
    hak_atomic_store(&known->last_interval_bytes, interval_bytes, relaxed);
    hak_atomic_store(&hak_profile_interval, interval_bytes, relaxed);
    return true;
}

void hak_profile_end(void) {
    struct hak_profile_tables *known = known_tables();
    bool was_on = hak_atomic_exchange(&hak_profile_interval, 0, relaxed) != 0;
    if (known == NULL) return;
    hak_atomic_store(&known->interval_bytes, 0, relaxed);
    if (was_on) hak_atomic_store(&known->ended_ms, hak_os_clock_ms(), relaxed);
}

/* ---- Writing it -------------------------------------------------------------------------------------------------- */

typedef void write_text(const char *text, void *context);

/* Text that goes out whenever there is no room for a word more: a site has hundreds, a coroutine has little stack. */
struct pieces {
    struct hak_text text;
    write_text *write;
    void *context;
};

enum { WORD_BYTES = HAK_PYTHON_TEXT_BYTES + 64, PIECE_BYTES = WORD_BYTES + 1024 };

static void flush(struct pieces *pieces) {
    pieces->write(pieces->text.start, pieces->context);
    pieces->text = hak_text_in(pieces->text.start, pieces->text.capacity);
}

/* The text, with room for a word: one name, or a few numbers. */
static struct hak_text *for_word(struct pieces *pieces) {
    if (pieces->text.capacity - pieces->text.length < WORD_BYTES) flush(pieces);
    return &pieces->text;
}

static void write_site(struct pieces *pieces, uint32_t where) {
    const struct hak_profile_site *site = site_at(known_tables(), where);
    hak_text_add(for_word(pieces), "site");
#define FIGURE(name) hak_text_add(for_word(pieces), " %lu", (unsigned long)hak_atomic_load(&site->name, relaxed));
    HAK_PROFILE_FIGURES(FIGURE)
#undef FIGURE
    hak_text_add(for_word(pieces), " :");
    for (uint64_t i = 0; i < site->depth; i++)
        hak_text_add(for_word(pieces), " %lx", (unsigned long)site->addresses[i]);
    hak_text_add(for_word(pieces), "\n");
}

static void write_function(struct pieces *pieces, uint32_t where) {
    hak_text_add(for_word(pieces), "function %lx %s\n", (unsigned long)where,
                 (const char *)site_at(known_tables(), where)->addresses);
}

static void write_records(const struct hak_profile_index *index,
                          void (*write_one)(struct pieces *pieces, uint32_t where), struct pieces *pieces) {
    /* Acquire pairs with add_to_list. */
    for (uint32_t where = hak_atomic_load(&index->newest, acquire); where != 0;
         where = site_at(known_tables(), where)->next)
        write_one(pieces, where);
}

struct build_ids {
    int memory;
    struct pieces *pieces;
};

/* Of each file that is mapped with its header, and for this process alone, as programs and libraries are: what is
 * shared may be a device. Who reads the profile can tell whether it has the same file. */
static bool write_build_id(const struct hak_os_mapping *mapping, void *context) {
    const struct build_ids *ids = context;
    unsigned char id[HAK_BUILD_ID_BYTES];
    bool may_be_elf =
        mapping->offset == 0 && mapping->rights[0] == 'r' && mapping->rights[3] == 'p' && mapping->name[0] == '/';
    size_t bytes = may_be_elf ? hak_os_build_id_at(ids->memory, mapping->start, id, sizeof id) : 0;
    if (bytes == 0) return true;
    struct hak_text *text = for_word(ids->pieces);
    hak_text_add(text, "build_id %lx ", (unsigned long)mapping->start);
    for (size_t i = 0; i < bytes; i++) hak_text_add(text, "%s%lx", id[i] < 16 ? "0" : "", (unsigned long)id[i]);
    hak_text_add(text, "\n");
    return true;
}

static void write_build_ids(struct pieces *pieces) {
    struct build_ids ids = {hak_os_open_own("mem"), pieces};
    if (ids.memory < 0) return;
    hak_os_for_each_mapping(write_build_id, &ids);
    hak_os_close(ids.memory);
}

/* How many blocks of a class malloc has handed out; 0: large objects. */
static uint64_t count_metered(const struct hak_profile_tables *known, uint32_t size_class) {
    uint64_t count = hak_atomic_load(&known->classes[size_class].metered, relaxed);
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        count +=
            hak_owned_peek(&heap->metered[size_class]) - (size_class == 0 ? 0 : hak_ration_count(heap, size_class));
    return count;
}

static void write_counts(struct pieces *pieces, const struct hak_profile_tables *known, const struct live *live) {
    hak_text_add(for_word(pieces), "unsampled_large_bytes %lu\nmost_bytes %lu\nnoted_bytes %lu\n",
                 (unsigned long)hak_atomic_load(&known->unsampled_large_bytes, relaxed),
                 (unsigned long)at_least_none(hak_atomic_load(&known->most_bytes, relaxed)),
                 (unsigned long)at_least_none(hak_atomic_load(&known->noted_bytes, relaxed)));
    hak_text_add(for_word(pieces), "large %lu %lu %lu %lu\npage_bytes %lu\n",
                 (unsigned long)hak_atomic_load(&known->large_bytes, relaxed),
                 (unsigned long)hak_atomic_load(&known->large_memory, relaxed),
                 (unsigned long)at_least_none(live->large_bytes),
                 (unsigned long)at_least_none(hak_atomic_load(&known->peak_large_bytes, relaxed)),
                 (unsigned long)hak_os_page_bytes());
    for (uint32_t i = 0; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_profile_class *sums = &known->classes[i];
        uint64_t metered = count_metered(known, i), now = at_least_none(live->blocks[i]),
                 peak = at_least_none(hak_atomic_load(&sums->peak_blocks, relaxed));
        if ((metered | now | peak | hak_atomic_load(&sums->unsampled_blocks, relaxed)) == 0) continue;
        hak_text_add(for_word(pieces), "class %u %lu %lu %lu %lu %lu %lu %lu %lu %lu %lu %lu\n",
                     hak_size_classes[i].block_bytes, (unsigned long)metered, (unsigned long)now, (unsigned long)peak,
                     (unsigned long)hak_atomic_load(&sums->weight, relaxed),
                     (unsigned long)hak_atomic_load(&sums->bytes, relaxed),
                     (unsigned long)hak_atomic_load(&sums->freed_weight, relaxed),
                     (unsigned long)hak_atomic_load(&sums->freed_bytes, relaxed),
                     (unsigned long)hak_atomic_load(&sums->peak_weight, relaxed),
                     (unsigned long)hak_atomic_load(&sums->peak_bytes, relaxed),
                     (unsigned long)hak_atomic_load(&sums->unsampled_blocks, relaxed),
                     (unsigned long)hak_atomic_load(&sums->peak_unsampled_blocks, relaxed));
    }
}

/* What there is of classes, and when. Its stack is free again when files are looked into. */
static HAK_COLD void write_head(struct pieces *pieces, struct hak_profile_tables *known) {
    uint64_t now_ms = hak_os_clock_ms(), ended_ms = hak_atomic_load(&known->ended_ms, relaxed);
    if (ended_ms != 0) count_large_objects(known);
    struct live live = count_surely(known);
    if (live.is_sure) raise_most(known, live.bytes);
    if (live.is_sure && live.bytes > hak_atomic_load(&known->noted_bytes, relaxed)) note_peak(known, &live);
    hak_text_add(for_word(pieces),
                 "hakmem heap profile 3\nprocess %d\nidentity %lx\ninterval_bytes %lu\nelapsed_ms %lu\noff_ms %lu\n"
                 "lost_samples %lu\npeak_ms %lu\n%s%s",
                 hak_os_process_id(), (unsigned long)known->identity,
                 (unsigned long)hak_atomic_load(&known->last_interval_bytes, relaxed),
                 (unsigned long)(now_ms - known->began_ms),
                 (unsigned long)(hak_atomic_load(&known->off_ms, relaxed) + (ended_ms != 0 ? now_ms - ended_ms : 0)),
                 (unsigned long)hak_atomic_load(&known->lost_samples, relaxed),
                 (unsigned long)hak_atomic_load(&known->peak_ms, relaxed), ended_ms != 0 ? "is_off\n" : "",
                 hak_atomic_load(&known->had_runs, relaxed) ? "had_runs\n" : "");
    write_counts(pieces, known, &live);
}

bool hak_profile_write_sites(void (*write)(const char *text, void *context), void *context) {
    char buffer[PIECE_BYTES];
    struct pieces pieces = {hak_text_in(buffer, sizeof buffer), write, context};
    struct hak_profile_tables *known = known_tables();
    if (known == NULL) return false;
    write_head(&pieces, known);
    hak_text_add(for_word(&pieces), "without_python ");
    hak_python_add_refusal(for_word(&pieces));
    hak_text_add(for_word(&pieces), "\nfigures");
#define FIGURE(name) hak_text_add(for_word(&pieces), " " #name);
    HAK_PROFILE_FIGURES(FIGURE)
#undef FIGURE
    hak_text_add(for_word(&pieces), "\n");
    write_records(&known->sites, write_site, &pieces);
    write_records(&known->functions, write_function, &pieces); /* all that sites have, so they come last */
    write_build_ids(&pieces);
    hak_text_add(for_word(&pieces), "maps\n");
    flush(&pieces);
    return true;
}

struct profile_file {
    int descriptor;
    bool is_whole; /* so far */
};

static void write_to_file(const char *text, void *context) {
    struct profile_file *file = context;
    file->is_whole = file->is_whole && hak_os_write_quietly(file->descriptor, text, strlen(text));
}

int hak_profile_write(int descriptor) {
    struct profile_file file = {descriptor, true};
    if (!hak_profile_write_sites(write_to_file, &file)) return ENODATA;
    if (!file.is_whole || !hak_os_copy_file(hak_os_open_own("maps"), descriptor)) return EIO;
    write_to_file("end\n", &file);
    return file.is_whole ? 0 : EIO;
}
