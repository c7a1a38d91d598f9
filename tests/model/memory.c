/* The memory model: what a load may read, where a store may go, what a plain access races with.
 *
 * A location is a list of messages in modification order, the first being what memory held when an execution first
 * touched it. A view says, per location, how far down that list one must not read any more, and, per thread, how much
 * of it happened before. Each thread has three: `current`; `acquired`, which an acquire fence makes current;
 * `released`, which a release fence set and relaxed stores attach. A message carries the view that acquiring it gives.
 *
 *   M1  messages of a location have strictly increasing times; nothing goes between an RMW and what it read
 *   M2  released <= current <= acquired
 *   M3  real memory holds the value of the newest message
 *   M4  some total order of the seq_cst operations agrees with happens-before and with every read and write seen by them
 */
#include "internal.h"

#include <string.h>

enum { AREAS = 512, PLACES = 4096, MESSAGES = 8192, WORDS = 16384, RECORDS = 32768, SC_EVENTS = 256, NONE = 0xffff };

static const uint32_t time_step = 1u << 16;

struct view {
    uint32_t clock[MODEL_THREADS];  /* happens-before, which seq_cst fences alone do not extend */
    uint32_t seen[MODEL_LOCATIONS]; /* times */
};

/* Of seq_cst operations. */
struct sc_set {
    uint64_t words[SC_EVENTS / 64];
};

struct sc_event {
    bool is_fence;
    uint8_t thread;
    uint32_t clock;
    uint32_t before[MODEL_THREADS]; /* of a fence: what happens before it */
    struct sc_set after;            /* it, and all that must follow it in the total order */
};

struct message {
    uint64_t value;
    uint32_t time;
    uint16_t older, newer;
    uint16_t locations;          /* how many of view.seen are filled in; the rest are 0 */
    uint16_t sc_event;           /* the seq_cst operation that wrote it */
    bool is_rmw;                 /* reads the message just older */
    uint8_t thread;              /* that wrote it, */
    uint32_t clock;              /* at this time of its own */
    struct sc_set writes, reads; /* what must precede, in the total order, that which overwrites it */
    struct view view;
};

struct location {
    uint16_t place, word, next_in_word;
    uint8_t size, byte_mask;
    bool pending; /* the newest message is a plain write whose value is not known yet */
    uint16_t newest;
    uint32_t read_clock[MODEL_THREADS], write_clock[MODEL_THREADS];
};

/* What is known of an address over all executions. */
struct place {
    uintptr_t address;
    const char *name;
    struct model_entry *tag;
    uint64_t tag_mask;
    uint32_t generation; /* of the execution in which `location` is meant */
    uint16_t location;
    uint8_t readers, writers; /* bits of threads */
    uint32_t shared_since;    /* round in which a conflict was seen; from the next on, its accesses are switch points */
};

/* Eight bytes of memory with the plain accesses that still matter. */
struct word {
    uintptr_t address;
    uint32_t generation;
    uint16_t records, locations;
};

struct record {
    const void *code;
    uint32_t clock;
    uint16_t next;
    uint8_t thread, byte_mask;
    bool writes;
};

/* Since the last yield. */
struct reads {
    unsigned count;
    uint16_t location[MODEL_LOCATIONS];
    bool listed[MODEL_LOCATIONS];
    uint64_t value[MODEL_LOCATIONS];
};

/* What was done to a part of the address space, by whom and when. */
struct area {
    uintptr_t start, end;
    enum model_area_change change;
    unsigned thread;
    uint32_t clock;
};

static struct area areas[AREAS];
static unsigned area_count;
static struct place places[PLACES];
static unsigned place_count;
static bool all_shared; /* addresses differ between executions, so none can be known as private */

static uint32_t generation;
static struct location locations[MODEL_LOCATIONS];
static unsigned location_count;
static struct message messages[MESSAGES];
static unsigned message_count;
static struct word words[WORDS];
static unsigned word_count;
static struct record records[RECORDS];
static unsigned record_count;
static uint16_t candidates[MESSAGES];

static struct {
    struct view current, acquired, released;
    struct reads reads;
} threads[MODEL_THREADS];
static struct sc_event sc_events[SC_EVENTS];
static unsigned sc_count, sc_fence_count;

static bool is_acquire(enum model_order order) { return order == MODEL_ORDER_acquire || order >= MODEL_ORDER_acq_rel; }

static bool is_release(enum model_order order) { return order >= MODEL_ORDER_release; }

static uint64_t peek(const volatile void *address, unsigned size) {
    switch (size) {
    case 1: return *(const volatile uint8_t *)address;
    case 2: return *(const volatile uint16_t *)address;
    case 4: return *(const volatile uint32_t *)address;
    case 8: return *(const volatile uint64_t *)address;
    default: model_fail("an atomic of %u bytes", size);
    }
}

static void poke(volatile void *address, unsigned size, uint64_t value) {
    switch (size) {
    case 1: *(volatile uint8_t *)address = (uint8_t)value; break;
    case 2: *(volatile uint16_t *)address = (uint16_t)value; break;
    case 4: *(volatile uint32_t *)address = (uint32_t)value; break;
    case 8: *(volatile uint64_t *)address = value; break;
    default: model_fail("an atomic of %u bytes", size);
    }
}

static uint64_t truncate_to(unsigned size, uint64_t value) {
    return size == 8 ? value : value & ((1ull << (8 * size)) - 1);
}

static unsigned hash(uintptr_t address, unsigned bits) {
    return (unsigned)(((uint64_t)address * 0x9e3779b97f4a7c15ull) >> (64 - bits));
}

static uint32_t max_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

static void view_join(struct view *into, const struct view *from, unsigned count) {
    for (unsigned i = 0; i < MODEL_THREADS; i++) into->clock[i] = max_of(into->clock[i], from->clock[i]);
    for (unsigned i = 0; i < count; i++) into->seen[i] = max_of(into->seen[i], from->seen[i]);
}

static void view_copy(struct view *into, const struct view *from, unsigned count) {
    memcpy(into->clock, from->clock, sizeof(into->clock));
    memcpy(into->seen, from->seen, count * sizeof(into->seen[0]));
}

/* ---- tables ------------------------------------------------------------------------------------------------- */

static struct place *place_of(const volatile void *address) {
    uintptr_t key = (uintptr_t)address;
    for (unsigned i = hash(key, 12);; i = (i + 1) % PLACES) {
        if (places[i].address == key) return &places[i];
        if (places[i].address == 0) {
            places[i] = (struct place){.address = key};
            place_count++;
            return &places[i];
        }
    }
}

static struct word *word_of(uintptr_t address) {
    for (unsigned i = hash(address, 14);; i = (i + 1) % WORDS) {
        if (words[i].generation != generation) {
            if (++word_count > WORDS * 3 / 4)
                model_fail("more than %d words of plain data in one execution", WORDS * 3 / 4);
            words[i] = (struct word){.address = address, .generation = generation, .records = NONE, .locations = NONE};
            return &words[i];
        }
        if (words[i].address == address) return &words[i];
    }
}

static void clear_places(void) {
    memset(places, 0, sizeof(places));
    place_count = 0;
}

void model_memory_begin(void) {
    clear_places();
    all_shared = false;
}

void model_memory_reset(void) {
    if (place_count > PLACES / 2) {
        clear_places();
        model_now.restart = !all_shared;
        all_shared = true;
    }
    if (++generation == 0) { /* wrapped: stamps of old could be taken for new */
        memset(words, 0, sizeof(words));
        for (unsigned i = 0; i < PLACES; i++) places[i].generation = 0;
        generation = 1;
    }
    location_count = message_count = word_count = record_count = sc_count = sc_fence_count = area_count = 0;
    for (unsigned i = 0; i < MODEL_THREADS; i++) {
        memset(threads[i].current.clock, 0, sizeof(threads[i].current.clock));
        memset(threads[i].acquired.clock, 0, sizeof(threads[i].acquired.clock));
        memset(threads[i].released.clock, 0, sizeof(threads[i].released.clock));
        threads[i].current.clock[i] = threads[i].acquired.clock[i] = 1;
        threads[i].reads.count = 0;
    }
}

void model_name(const volatile void *address, const char *name) { place_of(address)->name = name; }

void model_tag(const volatile void *address, uint64_t mask, const char *name) {
    struct place *place = place_of(address);
    place->tag = model_tag_entry(name);
    place->tag_mask = mask;
}

static void *address_of(const struct location *location) { return (void *)places[location->place].address; }

static unsigned new_message(void) {
    if (message_count == MESSAGES) model_fail("more than %d messages in one execution", MESSAGES);
    return message_count++;
}

static struct location *new_location(struct place *place, unsigned size) {
    if (location_count == MODEL_LOCATIONS)
        model_fail("more than %d atomic locations in one execution", MODEL_LOCATIONS);
    if (place->address % size != 0) model_fail("a misaligned atomic at %p", (void *)place->address);
    unsigned index = location_count++;
    struct word *word = word_of(place->address & ~(uintptr_t)7);
    struct location *location = &locations[index];
    *location = (struct location){
        .place = (uint16_t)(place - places),
        .word = (uint16_t)(word - words),
        .next_in_word = word->locations,
        .size = (uint8_t)size,
        .byte_mask = (uint8_t)(((1u << size) - 1) << (place->address & 7)),
    };
    for (uint16_t other = word->locations; other != NONE; other = locations[other].next_in_word)
        if (locations[other].byte_mask & location->byte_mask)
            model_fail("atomics of different size or place overlap at %p", (void *)place->address);
    word->locations = (uint16_t)index;
    place->location = (uint16_t)index;
    place->generation = generation;

    unsigned first = new_message();
    location->newest = (uint16_t)first;
    struct message *message = &messages[first];
    message->value = peek((void *)place->address, size);
    message->time = 0;
    message->older = message->newer = NONE;
    message->locations = 0;
    message->is_rmw = false;
    message->sc_event = NONE;
    message->thread = 0;
    message->clock = 0; /* before everything */
    message->writes = message->reads = (struct sc_set){0};
    memset(message->view.clock, 0, sizeof(message->view.clock));

    for (unsigned i = 0; i < MODEL_THREADS; i++) {
        threads[i].current.seen[index] = threads[i].acquired.seen[index] = threads[i].released.seen[index] = 0;
        threads[i].reads.listed[index] = false;
    }
    return location;
}

/* ---- what waiting threads wait for -------------------------------------------------------------------------- */

/* Fills in the value of a plain write, which is in memory by now. */
static void settle(struct location *location) {
    if (location->pending) {
        messages[location->newest].value = peek(address_of(location), location->size);
        location->pending = false;
    }
}

static void note_read(unsigned index, uint64_t value) {
    struct reads *reads = &threads[model_now.thread].reads;
    if (!reads->listed[index]) {
        reads->listed[index] = true;
        reads->location[reads->count++] = (uint16_t)index;
    }
    reads->value[index] = value;
}

void model_memory_forget_reads(unsigned thread) {
    struct reads *reads = &threads[thread].reads;
    for (unsigned i = 0; i < reads->count; i++) reads->listed[reads->location[i]] = false;
    reads->count = 0;
}

bool model_memory_changed(unsigned thread) {
    const struct reads *reads = &threads[thread].reads;
    for (unsigned i = 0; i < reads->count; i++) {
        unsigned index = reads->location[i];
        settle(&locations[index]);
        if (messages[locations[index].newest].value != reads->value[index]) return true;
    }
    return false;
}

void model_memory_see_all(void) {
    struct view *current = &threads[model_now.thread].current, *acquired = &threads[model_now.thread].acquired;
    for (unsigned i = 0; i < model_now.thread_count; i++) view_join(current, &threads[i].current, location_count);
    for (unsigned i = 0; i < location_count; i++) current->seen[i] = messages[locations[i].newest].time;
    view_copy(acquired, current, location_count);
}

uint64_t model_peek(const volatile void *address, unsigned size) { return peek(address, size); }

uint64_t model_memory_latest(const volatile void *address, unsigned size) { return peek(address, size); /* M3 */ }

/* ---- races with plain data ---------------------------------------------------------------------------------- */

_Noreturn static void fail_race(const volatile void *address, unsigned other, bool other_writes, bool writes,
                                const void *code, const void *other_code) {
    const char *name = place_of(address)->name;
    char here[200] = "", there[200] = "";
    if (code) model_source_line(code, here, sizeof(here));
    if (other_code) model_source_line(other_code, there, sizeof(there));
    model_fail("data race on %s(%p): T%u %s%s, not ordered with T%u, which %s%s", name ? name : "", (void *)address,
               model_now.thread, writes ? "writes" : "reads", here, other, other_writes ? "wrote" : "read", there);
}

static bool is_ordered(unsigned other, uint32_t clock) {
    return other == model_now.thread || clock <= threads[model_now.thread].current.clock[other];
}

/* Of an access against what was done to the address space, since it was last reserved. */
static void check_areas(uintptr_t address, bool writes, const void *code) {
    bool is_reserved = false, is_committed = false, is_unmapped = false;
    const struct area *purge = NULL;
    char here[200] = "";
    for (unsigned i = 0; i < area_count; i++) {
        const struct area *area = &areas[i];
        if (address < area->start || address >= area->end) continue;
        bool is_after = is_ordered(area->thread, area->clock);
        switch (area->change) {
        case MODEL_RESERVE:
            is_reserved = true;
            is_committed = is_unmapped = false;
            purge = NULL;
            break;
        case MODEL_COMMIT: is_committed = is_committed || is_after; break;
        case MODEL_PURGE:
            if (!is_after && purge == NULL) purge = area;
            break;
        case MODEL_UNMAP: is_unmapped = true; break;
        }
    }
    if (purge != NULL) fail_race((void *)address, purge->thread, true, writes, code, NULL);
    if (code && (is_unmapped || (is_reserved && !is_committed))) model_source_line(code, here, sizeof(here));
    if (is_unmapped) model_fail("use of unmapped memory %p: T%u%s", (void *)address, model_now.thread, here);
    if (is_reserved && !is_committed)
        model_fail("T%u does not know that %p is committed%s", model_now.thread, (void *)address, here);
}

void model_area(const volatile void *start, size_t size, enum model_area_change change) {
    uintptr_t from = (uintptr_t)start, end = from + size;
    if (area_count == AREAS) model_fail("more than %d changes of the address space", AREAS);
    struct area area = {.start = from, .end = end, .change = change};
    if (model_now.running) {
        area.thread = model_now.thread;
        area.clock = threads[area.thread].current.clock[area.thread];
    }
    areas[area_count++] = area;
    if (!model_now.running || change == MODEL_RESERVE || change == MODEL_COMMIT) return;
    for (unsigned i = 0; i < WORDS; i++) {
        if (words[i].generation != generation || words[i].address + 8 <= from || words[i].address >= end) continue;
        for (uint16_t r = words[i].records; r != NONE; r = records[r].next)
            if (!is_ordered(records[r].thread, records[r].clock))
                fail_race((void *)words[i].address, records[r].thread, records[r].writes, true, NULL, records[r].code);
        for (uint16_t at = words[i].locations; at != NONE; at = locations[at].next_in_word)
            for (unsigned other = 0; other < model_now.thread_count; other++)
                if (!is_ordered(other, max_of(locations[at].read_clock[other], locations[at].write_clock[other])))
                    fail_race(address_of(&locations[at]), other, true, true, NULL, NULL);
    }
}

/* An atomic access against plain ones before it. */
static void check_records(const struct location *location, bool writes) {
    const struct word *word = &words[location->word];
    for (uint16_t i = word->records; i != NONE; i = records[i].next) {
        const struct record *record = &records[i];
        if ((record->byte_mask & location->byte_mask) && (record->writes || writes) &&
            !is_ordered(record->thread, record->clock))
            fail_race(address_of(location), record->thread, record->writes, writes, NULL, record->code);
    }
}

static struct message *insert_after(struct location *location, uint16_t older, uint64_t value, bool is_rmw);
static void sc_note(uint16_t place, uint16_t read, uint16_t written, bool is_sc);

/* A plain access against atomic ones before it. A write becomes a message, so that later loads find it. */
static void plain_on_atomic(struct location *location, bool writes, const void *code) {
    for (unsigned other = 0; other < model_now.thread_count; other++) {
        if (!is_ordered(other, location->write_clock[other]))
            fail_race(address_of(location), other, true, writes, code, NULL);
        if (writes && !is_ordered(other, location->read_clock[other]))
            fail_race(address_of(location), other, false, writes, code, NULL);
    }
    if (!writes) return;
    settle(location);
    struct message *message = insert_after(location, location->newest, 0, false);
    message->locations = 0;
    memset(message->view.clock, 0, sizeof(message->view.clock));
    location->pending = true;
    unsigned index = (unsigned)(location - locations);
    sc_note(location->newest, NONE, location->newest, false);
    threads[model_now.thread].current.seen[index] = message->time;
    threads[model_now.thread].acquired.seen[index] = message->time;
}

static void plain_in_word(uintptr_t address, uint8_t byte_mask, bool writes, const void *code) {
    unsigned self = model_now.thread;
    uint32_t clock = threads[self].current.clock[self];
    struct word *word = word_of(address);
    struct record *mine = NULL;
    for (uint16_t i = word->records; i != NONE; i = records[i].next) {
        struct record *record = &records[i];
        if (record->thread == self) {
            if (record->writes == writes && (record->byte_mask & ~byte_mask) == 0) {
                if (record->clock == clock && record->byte_mask == byte_mask && word->locations == NONE)
                    return; /* nobody else has run since it was checked */
                mine = record;
            }
        } else if ((record->byte_mask & byte_mask) && (record->writes || writes) &&
                   !is_ordered(record->thread, record->clock)) {
            fail_race((void *)(address + (unsigned)__builtin_ctz(byte_mask)), record->thread, record->writes, writes,
                      code, record->code);
        }
    }
    for (uint16_t i = word->locations; i != NONE; i = locations[i].next_in_word)
        if (locations[i].byte_mask & byte_mask) plain_on_atomic(&locations[i], writes, code);
    if (!mine) {
        if (record_count == RECORDS) model_fail("more than %d plain accesses to remember in one execution", RECORDS);
        mine = &records[record_count];
        mine->next = word->records;
        word->records = (uint16_t)record_count++;
    }
    mine->code = code;
    mine->clock = clock;
    mine->thread = (uint8_t)self;
    mine->byte_mask = byte_mask;
    mine->writes = writes;
}

static void plain_access(const volatile void *address, size_t size, bool writes, const void *code) {
    if (!model_now.running || size == 0 || model_is_private(address)) return;
    if (writes && model_stops_anywhere) model_switch_point();
    if (area_count > 0) check_areas((uintptr_t)address, writes, code);
    uintptr_t at = (uintptr_t)address, end = at + size;
    while (at < end) {
        uintptr_t word = at & ~(uintptr_t)7;
        uintptr_t stop = end < word + 8 ? end : word + 8;
        unsigned bytes = (unsigned)(stop - at);
        plain_in_word(word, (uint8_t)(((1u << bytes) - 1) << (at - word)), writes, code);
        at = stop;
    }
}

void model_plain_access(const volatile void *address, size_t size, bool writes) {
    plain_access(address, size, writes, __builtin_return_address(0));
}

/* ---- atomic operations -------------------------------------------------------------------------------------- */

static struct message *insert_after(struct location *location, uint16_t older, uint64_t value, bool is_rmw) {
    unsigned index = new_message();
    struct message *message = &messages[index], *before = &messages[older];
    message->value = value;
    message->is_rmw = is_rmw;
    message->sc_event = NONE;
    message->thread = (uint8_t)model_now.thread;
    message->clock = threads[model_now.thread].current.clock[model_now.thread];
    message->writes = message->reads = (struct sc_set){0};
    message->older = older;
    message->newer = before->newer;
    if (before->newer == NONE) {
        message->time = before->time + time_step;
        location->newest = (uint16_t)index;
    } else {
        struct message *after = &messages[before->newer];
        message->time = before->time + (after->time - before->time) / 2;
        if (message->time == before->time)
            model_fail("no room left in the modification order of %p", address_of(location));
        after->older = (uint16_t)index;
    }
    before->newer = (uint16_t)index;
    return message;
}

static struct location *enter(struct model_site *site, const volatile void *address, unsigned size) {
    struct place *place = place_of(address);
    bool is_shared = all_shared || (place->shared_since != 0 && place->shared_since < model_now.round);
    if (is_shared || model_stops_anywhere) model_switch_point();
    site->entry->touched = true;
    site->entry->stopped = site->entry->stopped || (model_stops_anywhere && model_now.thread != 0);
    if (place->generation != generation) return new_location(place, size);
    struct location *location = &locations[place->location];
    if (location->size != size) model_fail("atomics of different size at %p", (void *)address);
    settle(location);
    if (messages[location->newest].value != peek(address, size))
        model_fail("%s(%p) was changed behind hak_atomic_*", place->name ? place->name : "", (void *)address);
    return location;
}

/* What an operation did, once the thread's view includes it. */
struct effect {
    bool reads, writes, old;
    uint64_t read, written;
};

static void leave(struct model_site *site, struct location *location, struct effect effect) {
    unsigned self = model_now.thread;
    struct place *place = &places[location->place];
    struct model_step *step = model_step(MODEL_STEP_OPERATION, site);
    step->address = (void *)place->address;
    step->name = place->name;
    step->reads = effect.reads;
    step->writes = effect.writes;
    step->old = effect.old;
    step->read = effect.read;
    step->written = effect.written;

    if (words[location->word].records != NONE) check_records(location, effect.writes);
    if (area_count > 0) check_areas(place->address, effect.writes, NULL);
    uint32_t clock = threads[self].current.clock[self]++;
    threads[self].acquired.clock[self] = clock + 1;
    if (effect.reads) {
        place->readers |= (uint8_t)(1u << self);
        location->read_clock[self] = clock;
    }
    if (effect.writes) {
        place->writers |= (uint8_t)(1u << self);
        location->write_clock[self] = clock;
    }
    unsigned users = place->readers | place->writers;
    if (place->shared_since == 0 && place->writers && (users & (users - 1))) {
        place->shared_since = model_now.round;
        if (!all_shared) model_now.restart = true;
    }
}

/* ---- the total order of seq_cst operations ------------------------------------------------------------------ */

/* Operations are executed in an order that this one need not follow: a load may come before a store in it that was executed
 * earlier and that the load did not see. So it is kept as a relation, closed under transitivity, that must have no cycle.
 * a precedes b when a happens before b, or when, of one location, a writes before b does, or reads something that b
 * overwrites; where a fence stands for the accesses that it happens before, or that happen before it. */

static void sc_add(struct sc_set *set, unsigned event) { set->words[event / 64] |= 1ull << (event % 64); }

static void sc_join(struct sc_set *into, const struct sc_set *from) {
    for (unsigned i = 0; i * 64 < sc_count; i++) into->words[i] |= from->words[i];
}

static bool sc_meets(const struct sc_set *a, const struct sc_set *b) {
    for (unsigned i = 0; i * 64 < sc_count; i++)
        if (a->words[i] & b->words[i]) return true;
    return false;
}

static void sc_add_before(struct sc_set *set, const uint32_t *clock, bool fences_only) {
    for (unsigned i = 0; i < sc_count; i++)
        if ((sc_events[i].is_fence || !fences_only) && sc_events[i].clock <= clock[sc_events[i].thread]) sc_add(set, i);
}

/* What follows an operation that reads, or writes just below, something older than the newer messages. */
static struct sc_set sc_overwriters(uint16_t newer) {
    struct sc_set after = {0};
    for (; newer != NONE; newer = messages[newer].newer) {
        const struct message *message = &messages[newer];
        if (message->sc_event != NONE) sc_join(&after, &sc_events[message->sc_event].after);
        for (unsigned i = 0; sc_fence_count > 0 && i < sc_count; i++)
            if (sc_events[i].is_fence && message->clock <= sc_events[i].before[message->thread])
                sc_join(&after, &sc_events[i].after);
    }
    return after;
}

/* What precedes a write above this message. */
static void sc_add_overwritten(struct sc_set *set, uint16_t older) {
    for (; older != NONE; older = messages[older].older) {
        sc_join(set, &messages[older].writes);
        sc_join(set, &messages[older].reads);
    }
}

/* Whether the running thread may read this message, or write after it, or both, without closing a cycle. */
static bool sc_allows(uint16_t at, bool reads, bool writes, enum model_order order) {
    bool is_sc = order == MODEL_ORDER_seq_cst;
    if (sc_count == 0 || (!is_sc && sc_fence_count == 0) || messages[at].newer == NONE) return true;
    uint32_t clock[MODEL_THREADS];
    for (unsigned i = 0; i < MODEL_THREADS; i++) {
        clock[i] = threads[model_now.thread].current.clock[i];
        if (reads && is_acquire(order)) clock[i] = max_of(clock[i], messages[at].view.clock[i]);
    }
    struct sc_set before = {0}, after = sc_overwriters(messages[at].newer);
    sc_add_before(&before, clock, !is_sc);
    if (is_sc && writes) sc_add_overwritten(&before, at);
    return !sc_meets(&before, &after);
}

static unsigned new_sc_event(bool is_fence) {
    if (sc_count == SC_EVENTS) model_fail("more than %d seq_cst operations in one execution", SC_EVENTS);
    struct sc_event *event = &sc_events[sc_count];
    event->is_fence = is_fence;
    event->thread = (uint8_t)model_now.thread;
    event->clock = threads[model_now.thread].current.clock[model_now.thread];
    event->after = (struct sc_set){0};
    sc_add(&event->after, sc_count);
    return sc_count++;
}

static void sc_order(const struct sc_set *before, const struct sc_set *after) {
    for (unsigned i = 0; i < sc_count; i++)
        if (sc_meets(&sc_events[i].after, before)) sc_join(&sc_events[i].after, after);
}

/* Enters an access that has been done: `at` is what it wrote, else what it read. */
static void sc_note(uint16_t at, uint16_t read, uint16_t written, bool is_sc) {
    if (!is_sc && sc_fence_count == 0) return;
    const uint32_t *clock = threads[model_now.thread].current.clock;
    struct sc_set sources = {0};
    sc_add_before(&sources, clock, true);
    if (is_sc) {
        struct sc_set before = {0};
        sc_add_before(&before, clock, false);
        if (written != NONE) sc_add_overwritten(&before, messages[written].older);
        unsigned event = new_sc_event(false);
        sc_order(&before, &sc_events[event].after);
        sc_add(&sources, event);
        if (written != NONE) messages[written].sc_event = (uint16_t)event;
    }
    if (messages[at].newer != NONE) {
        struct sc_set after = sc_overwriters(messages[at].newer);
        sc_order(&sources, &after);
    }
    if (read != NONE) sc_join(&messages[read].reads, &sources);
    if (written != NONE) sc_join(&messages[written].writes, &sources);
}

static void sc_note_fence(void) {
    const uint32_t *clock = threads[model_now.thread].current.clock;
    struct sc_set before = {0};
    sc_add_before(&before, clock, false);
    for (unsigned i = 0; i < location_count; i++) {
        uint16_t last = locations[i].newest;
        while (messages[last].clock > clock[messages[last].thread]) last = messages[last].older;
        sc_join(&before, &messages[last].writes);
        sc_add_overwritten(&before, messages[last].older);
    }
    unsigned event = new_sc_event(true);
    sc_fence_count++;
    memcpy(sc_events[event].before, clock, sizeof(sc_events[event].before));
    sc_order(&before, &sc_events[event].after);
}

/* ---- choosing and doing ------------------------------------------------------------------------------------- */

/* Whether something may be written just after this message. */
static bool is_open(const struct message *message) {
    return message->newer == NONE || !messages[message->newer].is_rmw;
}

enum access { ACCESS_READ, ACCESS_WRITE, ACCESS_UPDATE, ACCESS_COMPARE };

/* The message to read, or to write after, or both. The newest is the first choice. */
static uint16_t pick(const struct location *location, enum access access, const struct model_entry *entry,
                     uint64_t expected, uint64_t compared) {
    uint32_t floor = threads[model_now.thread].current.seen[location - locations];
    uint16_t newest = location->newest;
    unsigned count = 1;
    if (messages[newest].time <= floor) return newest;
    if (model_now.stale_left == 0) {
        model_now.cut_stale = true;
        return newest;
    }
    candidates[0] = newest;
    for (uint16_t i = messages[newest].older; i != NONE && messages[i].time >= floor; i = messages[i].older) {
        bool writes = access != ACCESS_READ, reads = access != ACCESS_WRITE;
        if (access == ACCESS_COMPARE) writes = ((messages[i].value ^ expected) & compared) == 0;
        if (writes && !is_open(&messages[i])) continue;
        if (sc_allows(i, reads, writes, access == ACCESS_COMPARE && !writes ? entry->failure : entry->order))
            candidates[count++] = i;
    }
    unsigned chosen = model_choose(count);
    if (chosen > 0) model_now.stale_left--;
    return candidates[chosen];
}

static void take(unsigned index, const struct message *message, enum model_order order) {
    struct view *current = &threads[model_now.thread].current, *acquired = &threads[model_now.thread].acquired;
    current->seen[index] = max_of(current->seen[index], message->time);
    acquired->seen[index] = max_of(acquired->seen[index], message->time);
    view_join(acquired, &message->view, message->locations);
    if (is_acquire(order)) view_join(current, &message->view, message->locations);
}

/* Writes after `older`; when `is_rmw`, having read it. */
static void put(struct location *location, uint16_t older, uint64_t value, enum model_order order, bool is_rmw) {
    unsigned index = (unsigned)(location - locations), self = model_now.thread;
    struct message *message = insert_after(location, older, value, is_rmw);
    threads[self].current.seen[index] = threads[self].acquired.seen[index] = message->time;
    message->locations = (uint16_t)location_count;
    view_copy(&message->view, is_release(order) ? &threads[self].current : &threads[self].released, location_count);
    if (is_rmw) view_join(&message->view, &messages[older].view, messages[older].locations); /* the release sequence */
    message->view.seen[index] = message->time;
    uint16_t written = (uint16_t)(message - messages);
    sc_note(written, is_rmw ? older : NONE, written, order == MODEL_ORDER_seq_cst);
    if (message->newer == NONE) poke(address_of(location), location->size, value);
}

uint64_t model_load(struct model_site *site, const volatile void *address, unsigned size) {
    if (!model_now.running) return peek(address, size);
    struct location *location = enter(site, address, size);
    unsigned index = (unsigned)(location - locations);
    uint16_t from = pick(location, ACCESS_READ, site->entry, 0, 0);
    uint64_t value = messages[from].value;
    take(index, &messages[from], site->entry->order);
    sc_note(from, from, NONE, site->entry->order == MODEL_ORDER_seq_cst);
    leave(site, location, (struct effect){.reads = true, .old = from != location->newest, .read = value});
    note_read(index, value);
    return value;
}

void model_store(struct model_site *site, volatile void *address, unsigned size, uint64_t value) {
    value = truncate_to(size, value);
    if (model_recovers) site->entry->recovers = true;
    if (!model_now.running) {
        poke(address, size, value);
        return;
    }
    struct location *location = enter(site, address, size);
    unsigned index = (unsigned)(location - locations);
    uint16_t after = pick(location, ACCESS_WRITE, site->entry, 0, 0);
    bool old = after != location->newest;
    put(location, after, value, site->entry->order, false);
    leave(site, location, (struct effect){.writes = true, .old = old, .written = value});
    if (threads[model_now.thread].reads.listed[index]) note_read(index, value);
}

static uint64_t combine(enum model_operation operation, uint64_t value, uint64_t operand) {
    switch (operation) {
    case MODEL_EXCHANGE: return operand;
    case MODEL_FETCH_ADD: return value + operand;
    case MODEL_FETCH_SUB: return value - operand;
    case MODEL_FETCH_OR: return value | operand;
    case MODEL_FETCH_AND: return value & operand;
    default: model_fail("not a read-modify-write");
    }
}

uint64_t model_rmw(struct model_site *site, volatile void *address, unsigned size, uint64_t operand) {
    if (model_recovers) site->entry->recovers = true;
    if (!model_now.running) {
        uint64_t value = peek(address, size);
        poke(address, size, combine(site->operation, value, operand));
        return value;
    }
    struct location *location = enter(site, address, size);
    unsigned index = (unsigned)(location - locations);
    uint16_t from = pick(location, ACCESS_UPDATE, site->entry, 0, 0);
    bool old = from != location->newest;
    uint64_t value = messages[from].value;
    uint64_t written = truncate_to(size, combine(site->operation, value, operand));
    take(index, &messages[from], site->entry->order);
    put(location, from, written, site->entry->order, true);
    leave(site, location, (struct effect){true, true, old, value, written});
    note_read(index, written);
    return value;
}

bool model_cas(struct model_site *site, volatile void *address, unsigned size, void *expected_at, uint64_t desired) {
    uint64_t expected = peek(expected_at, size);
    desired = truncate_to(size, desired);
    if (model_recovers) site->entry->recovers = true;
    if (!model_now.running) {
        uint64_t value = peek(address, size);
        if (value == expected) poke(address, size, desired);
        else poke(expected_at, size, value);
        return value == expected;
    }
    struct model_entry *entry = site->entry;
    struct location *location = enter(site, address, size);
    unsigned index = (unsigned)(location - locations);
    const struct place *place = &places[location->place];
    uint64_t compared = ~0ull;
    if (place->tag) {
        place->tag->touched = true;
        if (place->tag->dropped) compared = ~place->tag_mask;
    }
    uint16_t from = pick(location, ACCESS_COMPARE, entry, expected, compared);
    bool old = from != location->newest;
    uint64_t value = messages[from].value;
    bool equal = ((value ^ expected) & compared) == 0;
    take(index, &messages[from], equal ? entry->order : entry->failure);
    if (equal) put(location, from, desired, entry->order, true);
    else sc_note(from, from, NONE, entry->failure == MODEL_ORDER_seq_cst);
    leave(site, location, (struct effect){true, equal, old, value, desired});
    note_read(index, equal ? desired : value);
    if (!equal) poke(expected_at, size, value);
    return equal;
}

void model_fence(struct model_site *site) {
    if (!model_now.running) return;
    enum model_order order = site->entry->order;
    site->entry->touched = true;
    unsigned self = model_now.thread;
    struct view *current = &threads[self].current, *acquired = &threads[self].acquired;
    if (is_acquire(order)) view_copy(current, acquired, location_count);
    if (order == MODEL_ORDER_seq_cst) sc_note_fence();
    if (is_release(order)) view_copy(&threads[self].released, current, location_count);
    acquired->clock[self] = ++current->clock[self];
    model_step(MODEL_STEP_OPERATION, site);
}

bool model_refuses_fences;

/* As the system call does it: the other thread, interrupted between two of its operations, sees what the caller has done, and
 * the caller what that thread has. Their later accesses are not ordered by it, hence the new times. */
static void fence_with(unsigned self, unsigned other) {
    struct view *mine = &threads[self].current, *theirs = &threads[other].current;
    view_join(theirs, &threads[other].acquired, location_count);
    view_join(theirs, mine, location_count);
    view_join(mine, theirs, location_count);
    view_join(&threads[other].acquired, theirs, location_count);
    view_join(&threads[self].acquired, mine, location_count);
    view_copy(&threads[other].released, theirs, location_count);
    threads[other].acquired.clock[other] = ++theirs->clock[other];
    threads[self].acquired.clock[self] = ++mine->clock[self];
}

bool model_fence_threads(struct model_site *site) {
    if (model_refuses_fences) return false;
    if (!model_now.running) return true;
    model_fence(site);
    for (unsigned i = 0; site->entry->order == MODEL_ORDER_seq_cst && i < model_now.thread_count; i++) {
        if (i == model_now.thread) continue;
        model_switch_point();
        fence_with(model_now.thread, i);
    }
    view_copy(&threads[model_now.thread].released, &threads[model_now.thread].current, location_count);
    return true;
}

/* ---- what -fsanitize=thread compiles plain accesses to; no runtime of it is linked ---------------------------- */

#define PLAIN(name, size, writes)                                                                                      \
    void name(void *address);                                                                                          \
    void name(void *address) { plain_access(address, size, writes, __builtin_return_address(0)); }
#define PLAIN_SIZE(size)                                                                                               \
    PLAIN(__tsan_read##size, size, false)                                                                              \
    PLAIN(__tsan_write##size, size, true)                                                                              \
    PLAIN(__tsan_unaligned_read##size, size, false)                                                                    \
    PLAIN(__tsan_unaligned_write##size, size, true)                                                                    \
    PLAIN(__tsan_volatile_read##size, size, false)                                                                     \
    PLAIN(__tsan_volatile_write##size, size, true)

PLAIN_SIZE(1)
PLAIN_SIZE(2)
PLAIN_SIZE(4)
PLAIN_SIZE(8)
PLAIN_SIZE(16)

void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_read_range(void *address, size_t size);
void __tsan_write_range(void *address, size_t size);
void *__tsan_memcpy(void *to, const void *from, size_t size);
void *__tsan_memmove(void *to, const void *from, size_t size);
void *__tsan_memset(void *to, int byte, size_t size);

void __tsan_init(void) {}

void __tsan_func_entry(void *caller) { (void)caller; }

void __tsan_func_exit(void) {}

void __tsan_read_range(void *address, size_t size) { plain_access(address, size, false, __builtin_return_address(0)); }

void __tsan_write_range(void *address, size_t size) { plain_access(address, size, true, __builtin_return_address(0)); }

void *__tsan_memcpy(void *to, const void *from, size_t size) {
    plain_access(from, size, false, __builtin_return_address(0));
    plain_access(to, size, true, __builtin_return_address(0));
    return memcpy(to, from, size);
}

void *__tsan_memmove(void *to, const void *from, size_t size) {
    plain_access(from, size, false, __builtin_return_address(0));
    plain_access(to, size, true, __builtin_return_address(0));
    return memmove(to, from, size);
}

void *__tsan_memset(void *to, int byte, size_t size) {
    plain_access(to, size, true, __builtin_return_address(0));
    return memset(to, byte, size);
}
