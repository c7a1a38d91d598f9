/* A kernel of a few MiB of address space, each byte handed out once; the checker knows what is reserved, committed and
 * gone. Not compiled with -fsanitize=thread: a kernel orders its own accesses.
 */
#include "library.h"

#include <limits.h>
#include <string.h>

#include "os/libc.h"
#include "os/channel.h"
#include "os/inspect.h"
#include "os/modules.h"

enum {
    GRANULES = 12,
    SMALL_BYTES = 32 << 20,
    WINDOWS = 3,
    WINDOW_GRANULES = 66 + (int)(HAK_PAGE_MAP_BYTES / HAK_GRANULE_BYTES),
    MOST_PARTS = 64,
    LOOKED_AT_BYTES = 32 << 10
};
enum { SERVICE = 1, THREADS }; /* the service's; the harness's, and up */

struct fake_os fake_os = {.page_bytes = 4096};
HAK_ATOMIC(uint32_t) fake_os_service;
_Alignas(8) char fake_os_wiped[64];
static HAK_ATOMIC(uint32_t) interrupts;
struct hak_os_counters hak_os_counters;

static _Alignas(HAK_GRANULE_BYTES) char granules[GRANULES][HAK_GRANULE_BYTES];
static _Alignas(65536) char small[SMALL_BYTES];
static size_t granules_used, small_used;

/* Addresses for ranges: of a window, what is mapped of it. */
static _Alignas(HAK_GRANULE_BYTES) char windows[WINDOWS][WINDOW_GRANULES * HAK_GRANULE_BYTES];
static struct part {
    char *start, *end;
    bool is_divided;
} parts[MOST_PARTS];
static size_t part_count, room_bytes; /* from parts of which some was unmapped: it can be mapped again */
static HAK_ATOMIC(uint32_t) calls;    /* that change them: other threads run between two */

static HAK_ATOMIC(uint32_t) filters_put;

void fake_os_reset(void) {
    fake_os = (struct fake_os){4096, SIZE_MAX, -1,   -1,    -1,    false, false, false, NULL, 0,
                               0,    0,        NULL, false, false, false, false, false, 0,    false};
    granules_used = small_used = part_count = room_bytes = 0;
    interrupts = fake_os_service = calls = filters_put = 0;
}

static bool refuses(int *left) {
    if (*left == 0) return true;
    if (*left > 0) --*left;
    return false;
}

static void *give(size_t bytes, size_t alignment) {
    if (alignment == HAK_GRANULE_BYTES) {
        size_t count = (bytes + HAK_GRANULE_BYTES - 1) / HAK_GRANULE_BYTES;
        if (count > GRANULES - granules_used) return NULL;
        granules_used += count;
        char *start = granules[granules_used - count];
        /* Zero as far as harnesses look: they write to the first bytes of a unit. */
        for (size_t at = 0; at < count * HAK_GRANULE_BYTES; at += HAK_UNIT_BYTES)
            memset(start + at, 0, sizeof(uint64_t));
        return start;
    }
    small_used = hak_align_up(small_used, alignment);
    if (bytes > SMALL_BYTES - small_used) return NULL;
    void *start = small + small_used;
    small_used += bytes;
    memset(start, 0, bytes);
    return start;
}

size_t hak_os_page_bytes(void) { return fake_os.page_bytes; }
void *hak_os_map_wiped(void) { return memset(fake_os_wiped, 0, sizeof fake_os_wiped); }
void hak_os_find_library_code(void) {}
bool hak_os_is_malloc_wrapped(const void *code) { return (void)code, false; }
bool hak_os_is_behind(const void *code, const char *owner, uint32_t note_type) {
    return (void)code, (void)owner, (void)note_type, false;
}
bool hak_os_is_library_code(const void *address) { return (void)address, false; }
uintptr_t hak_os_pick_addresses(size_t bytes, size_t alignment, uint32_t attempt) {
    enum { ATTEMPTS = 4 };
    uint32_t window = attempt / ATTEMPTS + attempt % ATTEMPTS;
    (void)alignment;
    return bytes <= sizeof windows[0] && bytes <= fake_os.window_room && window < WINDOWS ? (uintptr_t)windows[window]
                                                                                          : 0;
}

void hak_os_seed_random(uint64_t seed) { (void)seed; }
uint64_t hak_os_random(uint32_t number) { return number * UINT64_C(0x9E3779B97F4A7C15); }

static bool is_mapped(const char *start, const char *end) {
    for (size_t i = 0; i < part_count; i++)
        if (start < parts[i].end && parts[i].start < end) return true;
    return false;
}

static void add_part(char *start, char *end, bool is_divided) {
    if (start < end) parts[part_count++] = (struct part){start, end, is_divided};
}

/* What goes of a part leaves room for as many bytes; and all of one that was never divided, for a call. */
static void drop_parts(char *start, char *end) {
    for (size_t i = part_count; i-- > 0;) {
        struct part part = parts[i];
        if (end <= part.start || part.end <= start) continue;
        char *from = start < part.start ? part.start : start, *to = end < part.end ? end : part.end;
        bool is_whole = !part.is_divided && from == part.start && to == part.end;
        parts[i] = parts[--part_count];
        add_part(part.start, from, true);
        add_part(to, part.end, true);
        if (!is_whole) room_bytes += (size_t)(to - from);
        else if (fake_os.maps_at_left >= 0) fake_os.maps_at_left++;
    }
}

/* Zero as far as harnesses look. */
enum hak_os_mapped hak_os_map_at(void *start, size_t bytes) {
    char *from = start;
    hak_atomic_fetch_add(&calls, 1, relaxed);
    if (is_mapped(from, from + bytes)) return HAK_OS_OCCUPIED;
    if (part_count == MOST_PARTS) return HAK_OS_REFUSED;
    bool has_room = room_bytes >= bytes;
    if (has_room) room_bytes -= bytes;
    else if (refuses(&fake_os.maps_at_left)) return HAK_OS_REFUSED;
    add_part(from, from + bytes, has_room);
    for (size_t at = 0; bytes % HAK_UNIT_BYTES == 0 && at < bytes; at += HAK_UNIT_BYTES)
        memset(from + at, 0, sizeof(uint64_t));
    if (bytes % HAK_GRANULE_BYTES != 0) memset(from, 0, bytes < LOOKED_AT_BYTES ? bytes : LOOKED_AT_BYTES);
    model_area(start, bytes, MODEL_RESERVE);
    model_area(start, bytes, MODEL_COMMIT);
    return HAK_OS_MAPPED;
}

void *hak_os_reserve(size_t bytes, size_t alignment) {
    void *start = refuses(&fake_os.reserves_left) ? NULL : give(bytes, alignment);
    if (start != NULL) model_area(start, bytes, MODEL_RESERVE);
    return start;
}

void *hak_os_map(size_t bytes, size_t alignment) {
    void *start = refuses(&fake_os.maps_left) ? NULL : give(bytes, alignment);
    if (start == NULL) return NULL;
    fake_os.map_count++;
    model_area(start, bytes, MODEL_RESERVE);
    model_area(start, bytes, MODEL_COMMIT);
    return start;
}

bool hak_os_commit(void *start, size_t bytes) {
    if (fake_os.refuses_commit) return false;
    model_area(start, bytes, MODEL_COMMIT);
    return true;
}

bool hak_os_forbid(void *start, size_t bytes) { return (void)start, (void)bytes, true; }

bool hak_os_unmap(void *start, size_t bytes) {
    hak_atomic_fetch_add(&calls, 1, relaxed);
    if (fake_os.refuses_unmap) return false;
    fake_os.unmap_count++;
    drop_parts(start, (char *)start + bytes);
    model_area(start, bytes, MODEL_UNMAP);
    return true;
}

bool hak_os_purge(void *start, size_t bytes) {
    if (fake_os.refuses_purge) return false;
    fake_os.purge_count++;
    model_area(start, bytes, MODEL_PURGE);
    memset(start, 0, bytes);
    return true;
}

/* If it was the last that was handed out. */
static bool grow_in_place(void *start, size_t old_bytes, size_t new_bytes) {
    size_t have = (old_bytes + HAK_GRANULE_BYTES - 1) / HAK_GRANULE_BYTES,
           want = (new_bytes + HAK_GRANULE_BYTES - 1) / HAK_GRANULE_BYTES;
    if ((char *)start + have * HAK_GRANULE_BYTES != granules[0] + granules_used * HAK_GRANULE_BYTES) return false;
    if (granules_used + want - have > sizeof granules / sizeof granules[0]) return false;
    granules_used += want - have;
    model_area((char *)start + old_bytes, new_bytes - old_bytes, MODEL_RESERVE);
    model_area((char *)start + old_bytes, new_bytes - old_bytes, MODEL_COMMIT);
    return true;
}

bool hak_os_remap(void *start, size_t old_bytes, size_t new_bytes) {
    if (new_bytes > old_bytes) return fake_os.grows_in_place && grow_in_place(start, old_bytes, new_bytes);
    model_area((char *)start + new_bytes, old_bytes - new_bytes, MODEL_UNMAP);
    return true;
}

struct hak_os_target hak_os_reserve_target(size_t bytes, size_t alignment) {
    return (struct hak_os_target){hak_os_reserve(bytes, alignment), bytes, 0};
}

bool hak_os_drop_target(const struct hak_os_target *target) {
    if (!fake_os.refuses_moves) model_area(target->start, target->bytes, MODEL_UNMAP);
    return true;
}

static void move_contents(char *to, char *from, size_t bytes) {
    model_area(to, bytes, MODEL_COMMIT);
    for (size_t at = 0; at < bytes; at += HAK_UNIT_BYTES) memcpy(to + at, from + at, sizeof(uint64_t));
}

/* A move that is refused has unmapped the target; if it was the last that was handed out, who maps next gets the
 * addresses. */
bool hak_os_move(void *start, size_t bytes, const struct hak_os_target *target) {
    if (fake_os.refuses_moves) {
        model_area(target->start, target->bytes, MODEL_UNMAP);
        char *next = granules[0] + granules_used * HAK_GRANULE_BYTES;
        size_t count = (target->bytes + HAK_GRANULE_BYTES - 1) / HAK_GRANULE_BYTES;
        if ((char *)target->start + count * HAK_GRANULE_BYTES == next) granules_used -= count;
        return false;
    }
    move_contents(target->start, start, bytes);
    if (target->bytes > bytes) model_area((char *)target->start + bytes, target->bytes - bytes, MODEL_COMMIT);
    model_area(start, bytes, MODEL_UNMAP);
    return true;
}

void *hak_os_move_pages(void *start, size_t bytes) {
    char *moved = fake_os.refuses_moves ? NULL : hak_os_reserve(bytes, HAK_UNIT_BYTES);
    if (moved == NULL) return NULL;
    move_contents(moved, start, bytes);
    for (size_t at = 0; at < bytes; at += HAK_UNIT_BYTES) memset((char *)start + at, 0, sizeof(uint64_t));
    return moved;
}

void hak_os_write_line(const char *text, size_t length) { hak_os_write(2, text, length); }
bool hak_os_may_replace(const char *path) { return (void)path, true; }
bool hak_os_may_guard(void) { return false; }
bool hak_os_guard(void *start, size_t bytes) { return (void)start, (void)bytes, false; }
bool hak_os_unguard(void *start, size_t bytes) { return (void)start, (void)bytes, true; }
bool hak_os_is_locked(void *page) { return (void)page, false; }
bool hak_os_refuse_huge_pages(void *start, size_t bytes) { return (void)start, (void)bytes, true; }
bool hak_os_ask_for_huge_pages(void *start, size_t bytes) { return (void)start, (void)bytes, true; }
bool hak_os_populate(void *start, size_t bytes) { return (void)start, (void)bytes, true; }
bool hak_os_purge_lazily(void *start, size_t bytes) { return (void)start, (void)bytes, !fake_os.refuses_purge; }
uint64_t hak_os_touch(void *page) { return (void)page, 0; }
void hak_os_break_huge_page(void *page) { (void)page; }
bool hak_os_has_huge_pages(void) { return true; }
void hak_os_yield(void) {}
uint32_t hak_os_processor_count(void) { return 64; }
bool hak_os_start_thread(void (*run)(void), uintptr_t *thread) {
    if (fake_os.refuses_threads) return false;
    if (thread != NULL) {
        *thread = SERVICE;
        fake_os.service = run;
        hak_atomic_store(&fake_os_service, 1, release);
    } else {
        fake_os.thread = run;
    }
    return true;
}
void hak_os_join_thread(uintptr_t thread) {
    while (thread == SERVICE && hak_atomic_load(&fake_os_service, acquire) != 0) hak_cpu_relax();
}
bool hak_os_try_join_thread(uintptr_t thread) { return thread >= THREADS; }
uintptr_t hak_os_this_thread(void) { return THREADS + model_thread(); }
uintptr_t hak_os_stack_end(uintptr_t place) { return (void)place, UINTPTR_MAX; }
/* The kernel's filters for all threads come at one moment: who asks has the newest. */
void fake_os_filter(void) { hak_atomic_fetch_add(&filters_put, 1, relaxed); }
enum hak_os_settled hak_os_settle_thread(void) {
    uint32_t before = hak_atomic_fetch_add(&filters_put, 0, relaxed);
    model_assert(hak_atomic_fetch_add(&filters_put, 0, relaxed) == before, "no filter comes while the thread looks");
    return HAK_OS_SETTLED;
}
void hak_os_wait(HAK_ATOMIC(uint32_t) *word, uint32_t expected, uint64_t most_us) {
    enum { LONGEST_NAP_US = 1000 };
    if (most_us != 0 && most_us <= LONGEST_NAP_US) hak_cpu_relax(); /* a turn of a loop that waits */
    else model_futex_wait(word, expected);
}

void hak_os_wait_until_gone(uint32_t thread) { (void)thread; }
bool hak_os_began_filtered(void) { return false; }
bool hak_os_may_wait(void) { return true; }
void hak_os_wake(HAK_ATOMIC(uint32_t) *word) { model_futex_wake(word, UINT_MAX); }
void hak_os_thread_name(int thread, char name[HAK_THREAD_NAME_BYTES]) { name[0] = (char)(thread & 0); }
bool hak_os_is_privileged(void) { return !fake_os.has_service; }
bool hak_os_host_name(char name[HAK_OS_HOST_NAME_BYTES]) { return (void)name, false; }
int hak_os_process_id(void) { return 1; }
void hak_os_write(int descriptor, const char *text, size_t length) { (void)descriptor, (void)text, (void)length; }
bool hak_os_write_quietly(int descriptor, const char *text, size_t length) {
    hak_os_write(descriptor, text, length);
    return true;
}
uint32_t hak_os_thread_id(void) { return 0; }
bool hak_os_replace_file(const char *path, const char *text, size_t length) {
    return (void)path, (void)text, (void)length, true;
}

/* A channel nobody asks anything by: waits end when they are interrupted. The kernel orders what goes through a pipe. */
static uint32_t channel; /* the pipes */
HAK_ATOMIC(uint64_t) hak_channel_wish = HAK_CHANNEL_NO_WISH;
bool hak_os_channel_make(void) {
    model_plain_write(&channel);
    channel = 1;
    return true;
}
bool hak_os_channel_open(bool watches) {
    (void)watches;
    model_plain_read(&channel);
    model_assert(channel == 1, "there are pipes");
    return !fake_os.refuses_channel;
}
void hak_os_channel_end(void) {
    model_plain_write(&channel);
    channel = 0;
}
bool hak_os_channel_may_answer(void) { return !fake_os.gets_filter; }
bool hak_os_channel_has_filters(uint64_t filters) { return filters == 0; }
bool hak_os_channel_send(const char *text, size_t length, uint64_t deadline_ms) {
    return (void)text, (void)length, (void)deadline_ms, true;
}
void hak_os_channel_drop(void) {}
size_t hak_os_channel_receive(char *buffer, size_t bytes, uint64_t most_ms) {
    (void)buffer, (void)bytes, (void)most_ms;
    if (fake_os.gets_filter) return 0;
    model_futex_wait(&interrupts, 0);
    return hak_atomic_exchange(&interrupts, 0, acquire) & 0;
}
void hak_os_channel_interrupt(void) {
    model_plain_read(&channel);
    model_assert(channel == 1, "it interrupts a channel that is open");
    hak_atomic_store(&interrupts, 1, release);
    model_futex_wake(&interrupts, 1);
}
bool hak_os_for_each_mapping(bool (*visit)(const struct hak_os_mapping *, void *), void *context) {
    return (void)visit, (void)context, false;
}
size_t hak_os_build_id_at(int memory, uintptr_t start, unsigned char *id, size_t capacity) {
    return (void)memory, (void)start, (void)id, (void)capacity, 0;
}
int hak_os_open_file(const char *path) { return (void)path, -1; }
void hak_os_close(int descriptor) { (void)descriptor; }
int hak_os_open_own(const char *name) { return (void)name, -1; }
bool hak_os_copy_file(int from, int to) { return (void)from, (void)to, true; }
void hak_os_modules_begin(void) {}
bool hak_os_is_readable(const void *address) { return address == NULL; }
uint64_t hak_os_clock_ms(void) { return fake_os.clock_ms; }
uint64_t hak_os_clock_ns(void) { return fake_os.clock_ms * 1000000; }
