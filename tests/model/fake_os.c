/* A kernel of a few MiB of address space, each byte handed out once; the checker knows what is reserved, committed and gone.
 * Not compiled with -fsanitize=thread: a kernel orders its own accesses.
 */
#include "library.h"

#include <string.h>

#include "os/channel.h"
#include "os/inspect.h"

enum { GRANULES = 12, SMALL_BYTES = 8 << 20 };

struct fake_os fake_os;
HAK_ATOMIC(uint32_t) fake_os_service;
static HAK_ATOMIC(uint32_t) interrupts;
struct hak_os_counters hak_os_counters;

static _Alignas(HAK_GRANULE_BYTES) char granules[GRANULES][HAK_GRANULE_BYTES];
static _Alignas(65536) char small[SMALL_BYTES];
static size_t granules_used, small_used;

void fake_os_reset(void) {
    fake_os = (struct fake_os){
        4096, (size_t)16 << 20, -1, -1, -1, false, false, false, NULL, 0, 0, 0, NULL, false, false, false};
    granules_used = small_used = 0;
    interrupts = fake_os_service = 0;
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
size_t hak_os_build_id(unsigned char *id, size_t capacity) { return (void)id, (void)capacity, 0; }
int hak_os_open_file(const char *path) { return (void)path, -1; }
size_t hak_os_read(int descriptor, void *buffer, size_t bytes) {
    return (void)descriptor, (void)buffer, (void)bytes, 0;
}
void hak_os_close(int descriptor) { (void)descriptor; }
size_t hak_os_address_space_limit(void) { return fake_os.address_space_limit; }

void *hak_os_reserve(size_t bytes, size_t alignment) {
    void *start = refuses(&fake_os.reserves_left) ? NULL : give(bytes, alignment);
    if (start != NULL) model_area(start, bytes, MODEL_RESERVE);
    return start;
}

void *hak_os_map(size_t bytes, size_t alignment) {
    void *start = refuses(&fake_os.maps_left) ? NULL : give(bytes, alignment);
    if (start == NULL) return NULL;
    model_area(start, bytes, MODEL_RESERVE);
    model_area(start, bytes, MODEL_COMMIT);
    return start;
}

bool hak_os_commit(void *start, size_t bytes) {
    if (refuses(&fake_os.commits_left)) return false;
    model_area(start, bytes, MODEL_COMMIT);
    return true;
}

bool hak_os_unmap(void *start, size_t bytes) {
    if (fake_os.refuses_unmap) return false;
    fake_os.unmap_count++;
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

bool hak_os_remap(void *start, size_t old_bytes, size_t new_bytes, void *target) {
    (void)start, (void)old_bytes, (void)new_bytes, (void)target;
    return false;
}

bool hak_os_move_pages(void *start, size_t bytes, void *target) {
    (void)start, (void)bytes, (void)target;
    return false;
}

void hak_os_name(void *start, size_t bytes, const char *name) { (void)start, (void)bytes, (void)name; }
bool hak_os_refuse_huge_pages(void *start, size_t bytes) { return (void)start, (void)bytes, true; }
bool hak_os_ask_for_huge_pages(void *start, size_t bytes) { return (void)start, (void)bytes, true; }
bool hak_os_populate(void *start, size_t bytes) { return (void)start, (void)bytes, true; }
bool hak_os_purge_lazily(void *start, size_t bytes) { return (void)start, (void)bytes, !fake_os.refuses_purge; }
void hak_os_break_huge_page(void *page) { (void)page; }
size_t hak_os_resident_bytes(void *start, size_t bytes) { return (void)start, bytes; }
bool hak_os_has_huge_pages(void) { return true; }
size_t hak_os_mapping_limit(void) { return 65530; }
void hak_os_yield(void) {}
uint32_t hak_os_processor_count(void) { return 64; }
bool hak_os_start_thread(void (*run)(void), uintptr_t *joinable) {
    if (fake_os.refuses_threads) return false;
    if (joinable != NULL) {
        *joinable = 1;
        fake_os.service = run;
        hak_atomic_store(&fake_os_service, 1, release);
    } else {
        fake_os.thread = run;
    }
    return true;
}
void hak_os_join_thread(uintptr_t joinable) {
    (void)joinable;
    while (hak_atomic_load(&fake_os_service, acquire) != 0) hak_cpu_relax();
}
void hak_os_wait(HAK_ATOMIC(uint32_t) *word, uint32_t expected, uint64_t most_us) {
    (void)most_us;
    model_futex_wait(word, expected);
}
void hak_os_wake(HAK_ATOMIC(uint32_t) *word) { model_futex_wake(word, 1); }
void hak_os_thread_name(int thread, char name[HAK_THREAD_NAME_BYTES]) { name[0] = (char)(thread & 0); }
bool hak_os_is_privileged(void) { return !fake_os.has_service; }
int hak_os_process_id(void) { return 1; }
void hak_os_write(int descriptor, const char *text, size_t length) { (void)descriptor, (void)text, (void)length; }
uint32_t hak_os_thread_id(void) { return 0; }
bool hak_os_replace_file(const char *path, const char *text, size_t length) {
    return (void)path, (void)text, (void)length, true;
}

/* A channel nobody asks anything by: waits end when they are interrupted. The kernel orders what goes through a pipe. */
bool hak_os_is_filtered(void) { return false; }
static uint32_t channel; /* what who interrupts has to know of it */
bool hak_os_channel_open(void) {
    model_plain_write(&channel);
    channel = 1;
    return !fake_os.refuses_channel;
}
bool hak_os_channel_may_answer(void) { return !fake_os.gets_filter; }
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
void hak_os_copy_file(const char *path, int descriptor) { (void)path, (void)descriptor; }
bool hak_os_is_readable(const void *address) { return address == NULL; }
uint64_t hak_os_clock_ms(void) { return fake_os.clock_ms; }
uint64_t hak_os_cpu_ns(void) { return 0; }
uint64_t hak_os_thread_cpu_ns(uint32_t thread_id) { return (void)thread_id, 0; }
uint64_t hak_os_own_cpu_ns(void) { return 0; }
uint64_t hak_os_clock_ns(void) { return fake_os.clock_ms * 1000000; }
