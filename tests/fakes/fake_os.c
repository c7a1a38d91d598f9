#include "os/libc.h"
#include "fake_os.h"

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bits.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

struct fake_os fake_os = {
    .page_bytes = 4096,
    .address_space_room = 0, /* until the tests begin */
    .grows_in_place = true,
    .processors = 64,
    .build_id = {1, 2, 3, 4},
    .build_id_bytes = 4,
    .fences_left = SIZE_MAX,
    .read_bytes = SIZE_MAX,
    .is_filtered = true,
    .may_answer = true,
    .send_bytes = SIZE_MAX,
};
struct hak_os_counters hak_os_counters;

/* Before main, and after hakmem's own constructor: a test finds a process that has not begun. */
__attribute__((constructor)) static void begin_tests(void) {
    fake_os.window_room = fake_os.address_space_room = SIZE_MAX;
    memset(fake_os.call_count, 0, sizeof fake_os.call_count);
    fake_os.refused_count = 0;
}

/* What is mapped. Unordered. */
struct area {
    uintptr_t start;
    size_t bytes;
    uint64_t mark; /* of a target, or 0 */
};

enum { AREA_LIMIT = 1 << 14 }; /* as many heaps as threads, in tests of very many */

static struct area areas[AREA_LIMIT];
static size_t area_count;

static struct {
    enum fake_call_kind kind;
    size_t seen, nth, last;
} script;

static jmp_buf catcher;
static bool catching;
static struct fake_report report;

static _Noreturn void stop(const char *what) {
    fprintf(stderr, "fake_os: %s\n", what);
    abort();
}

/* ---- Record and script ------------------------------------------------------------------------------------------- */

void fake_os_refuse(enum fake_call_kind kind, size_t nth, size_t last) {
    script.kind = kind;
    script.seen = 0;
    script.nth = nth;
    script.last = last;
}

void fake_os_refuse_nothing(void) { fake_os_refuse(FAKE_ANY, 0, 0); }

size_t fake_os_given_back_since(size_t call) {
    size_t bytes = 0;
    for (; call < fake_os.call_count[FAKE_ANY]; call++)
        if (fake_os.calls[call].kind == FAKE_PURGE || fake_os.calls[call].kind == FAKE_UNMAP)
            bytes += fake_os.calls[call].bytes;
    return bytes;
}

void fake_os_forget(void) {
    memset(fake_os.call_count, 0, sizeof fake_os.call_count);
    fake_os.refused_count = 0;
    fake_os.output_length = 0;
    fake_os.output[0] = '\0';
}

/* True when the script lets this call happen. */
static bool is_granted(enum fake_call_kind kind) {
    hak_counter_add_shared(&hak_os_counters.system_calls, 1);
    bool refused = false;
    if (script.kind == kind || script.kind == FAKE_ANY) {
        script.seen++;
        refused = script.seen >= script.nth && script.seen <= script.last;
    }
    fake_os.refused_count += refused;
    return !refused;
}

static bool record(enum fake_call_kind kind, const void *start, size_t bytes, bool done) {
    size_t number = fake_os.call_count[FAKE_ANY]++;
    fake_os.call_count[kind]++;
    if (number < FAKE_CALL_LIMIT) fake_os.calls[number] = (struct fake_call){kind, (uintptr_t)start, bytes, done};
    if (fake_os.at_call != NULL) fake_os.at_call();
    return done;
}

/* ---- Areas ------------------------------------------------------------------------------------------------------- */

static void check_pages(uintptr_t start, size_t bytes) {
    if (start % fake_os.page_bytes != 0 || bytes % fake_os.page_bytes != 0) stop("no multiple of a page");
    if (bytes == 0) stop("no bytes");
}

static struct area *area_of(const void *start, size_t bytes) {
    uintptr_t from = (uintptr_t)start;
    check_pages(from, bytes);
    for (size_t i = 0; i < area_count; i++)
        if (from - areas[i].start < areas[i].bytes && bytes <= areas[i].bytes - (from - areas[i].start))
            return &areas[i];
    stop("not mapped");
}

static void add_area(uintptr_t start, size_t bytes) {
    if (bytes == 0) return;
    if (area_count == AREA_LIMIT) stop("more mappings than the fake has places for");
    areas[area_count++] = (struct area){start, bytes, 0};
    fake_os.mapped_bytes += bytes;
    hak_counter_add_shared(&hak_os_counters.mapped_bytes, bytes);
}

/* The newest one with a neighbour on each side, as the kernel does. */
static void merge_areas(void) {
    struct area *newest = &areas[area_count - 1];
    for (size_t i = 0; i + 1 < area_count;) {
        struct area *other = &areas[i];
        bool is_below = other->start + other->bytes == newest->start;
        bool is_neighbour = is_below || newest->start + newest->bytes == other->start;
        if (is_neighbour && other->mark == 0) { /* a target has other rights */
            if (is_below) newest->start = other->start;
            newest->bytes += other->bytes;
            *other = *newest;
            area_count--;
            newest = other; /* the last but one may be the neighbour on the other side */
            struct area last = areas[area_count - 1];
            areas[area_count - 1] = *newest;
            *other = last;
            newest = &areas[area_count - 1];
            i = 0;
        } else {
            i++;
        }
    }
}

static void cut_area(struct area *area, uintptr_t start, size_t bytes) {
    struct area whole = *area;
    *area = areas[--area_count];
    fake_os.mapped_bytes -= whole.bytes;
    hak_counter_add_shared(&hak_os_counters.mapped_bytes, -(uint64_t)whole.bytes);
    add_area(whole.start, start - whole.start);
    add_area(start + bytes, whole.start + whole.bytes - (start + bytes));
}

/* ---- os.h: memory ------------------------------------------------------------------------------------------------ */

size_t hak_os_page_bytes(void) { return fake_os.page_bytes; }

static void *map(enum fake_call_kind kind, size_t bytes, size_t alignment, int protection) {
    check_pages(0, bytes);
    if (!hak_is_power_of_two(alignment)) stop("no alignment");
    if (alignment < fake_os.page_bytes) alignment = fake_os.page_bytes;
    bool granted = is_granted(kind) && bytes <= SIZE_MAX - alignment &&
                   fake_os.mapped_bytes <= fake_os.address_space_room &&
                   bytes <= fake_os.address_space_room - fake_os.mapped_bytes;
    int saved_errno = errno;
    char *got = MAP_FAILED;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (granted && (uintptr_t)fake_os.next_start % alignment == 0 && fake_os.next_start != NULL)
        got = mmap(fake_os.next_start, bytes, protection, flags | MAP_FIXED_NOREPLACE, -1, 0);
    bool is_there = got != MAP_FAILED;
    if (granted && !is_there) got = mmap(NULL, bytes + alignment, protection, flags, -1, 0);
    errno = saved_errno;
    if (got == MAP_FAILED) {
        record(kind, NULL, bytes, false);
        return NULL;
    }
    char *start = (char *)hak_align_up((uintptr_t)got, alignment), *end = got + bytes + (is_there ? 0 : alignment);
    if (start > got) munmap(got, (size_t)(start - got));
    if (start + bytes < end) munmap(start + bytes, (size_t)(end - (start + bytes)));
    add_area((uintptr_t)start, bytes);
    record(kind, start, bytes, true);
    return start;
}

void *hak_os_reserve(size_t bytes, size_t alignment) { return map(FAKE_RESERVE, bytes, alignment, PROT_NONE); }

void *hak_os_map(size_t bytes, size_t alignment) { return map(FAKE_MAP, bytes, alignment, PROT_READ | PROT_WRITE); }

void *hak_os_map_wiped(void) { return fake_os.wiped; }

void hak_os_find_library_code(void) {}
void *hak_os_find_in_libraries(const char *name) { return dlsym(RTLD_DEFAULT, name); }
void *hak_os_find_any(const char *name) { return dlsym(RTLD_DEFAULT, name); }
bool hak_os_is_malloc_wrapped(const void *code) { return (void)code, fake_os.is_malloc_wrapped; }

bool hak_os_is_behind(const void *code, const char *owner, uint32_t note_type) {
    (void)code, (void)owner, (void)note_type;
    return getenv("FAKE_OS_BEHIND") != NULL;
}

bool hak_os_is_library_code(const void *address) { return address != NULL && address == fake_os.library_code; }

uintptr_t hak_os_pick_addresses(size_t bytes, size_t alignment, uint32_t attempt) {
    (void)attempt;
    if (bytes > fake_os.window_room || bytes > SIZE_MAX - alignment) return 0;
    uintptr_t start = fake_os.window_start;
    fake_os.window_start = 0;
    if (start != 0) return start;
    int saved_errno = errno;
    char *got = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    errno = saved_errno;
    if (got == MAP_FAILED) return 0;
    munmap(got, bytes + alignment);
    return hak_align_up((uintptr_t)got, alignment);
}

void hak_os_seed_random(uint64_t seed) { (void)seed; }
uint64_t hak_os_random(uint32_t number) { return number * UINT64_C(0x9E3779B97F4A7C15); }

enum hak_os_mapped hak_os_map_at(void *start, size_t bytes) {
    check_pages((uintptr_t)start, bytes);
    if (fake_os.at_map_at != NULL) fake_os.at_map_at();
    bool granted = is_granted(FAKE_MAP_AT) && fake_os.mapped_bytes <= fake_os.address_space_room &&
                   bytes <= fake_os.address_space_room - fake_os.mapped_bytes;
    int saved_errno = errno;
    void *got = MAP_FAILED;
    if (granted)
        got = mmap(start, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    bool is_occupied = granted && got == MAP_FAILED && errno == EEXIST;
    errno = saved_errno;
    record(FAKE_MAP_AT, start, bytes, got != MAP_FAILED);
    if (got == MAP_FAILED) return is_occupied ? HAK_OS_OCCUPIED : HAK_OS_REFUSED;
    add_area((uintptr_t)start, bytes);
    merge_areas();
    return HAK_OS_MAPPED;
}

bool hak_os_commit(void *start, size_t bytes) {
    area_of(start, bytes);
    if (!is_granted(FAKE_COMMIT)) {
        if (mprotect(start, fake_os.page_bytes, PROT_READ | PROT_WRITE) != 0) stop("mprotect failed");
        return record(FAKE_COMMIT, start, bytes, false);
    }
    if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) stop("mprotect failed");
    return record(FAKE_COMMIT, start, bytes, true);
}

bool hak_os_forbid(void *start, size_t bytes) {
    area_of(start, bytes);
    if (!is_granted(FAKE_FORBID)) {
        if (bytes > fake_os.page_bytes && mprotect(start, fake_os.page_bytes, PROT_NONE) != 0) stop("mprotect failed");
        return record(FAKE_FORBID, start, bytes, false);
    }
    if (mprotect(start, bytes, PROT_NONE) != 0) stop("mprotect failed");
    return record(FAKE_FORBID, start, bytes, true);
}

bool hak_os_unmap(void *start, size_t bytes) {
    struct area *area = area_of(start, bytes);
    if (!is_granted(FAKE_UNMAP)) return record(FAKE_UNMAP, start, bytes, false);
    if (munmap(start, bytes) != 0) stop("munmap failed");
    cut_area(area, (uintptr_t)start, bytes);
    hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    return record(FAKE_UNMAP, start, bytes, true);
}

bool hak_os_purge(void *start, size_t bytes) {
    area_of(start, bytes);
    if (!is_granted(FAKE_PURGE)) {
        madvise(start, fake_os.page_bytes, MADV_DONTNEED);
        return record(FAKE_PURGE, start, bytes, false);
    }
    if (madvise(start, bytes, MADV_DONTNEED) != 0) stop("madvise failed");
    hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    record(FAKE_PURGE, start, bytes, true);
    if (fake_os.at_purge != NULL) fake_os.at_purge();
    return true;
}

bool hak_os_remap(void *start, size_t old_bytes, size_t new_bytes) {
    struct area *area = area_of(start, old_bytes);
    check_pages((uintptr_t)start, new_bytes);
    size_t more = new_bytes > old_bytes ? new_bytes - old_bytes : 0;
    bool granted = is_granted(FAKE_REMAP) && more <= fake_os.address_space_room - fake_os.mapped_bytes &&
                   (more == 0 || fake_os.grows_in_place);
    int saved_errno = errno;
    bool done = granted && mremap(start, old_bytes, new_bytes, 0) != MAP_FAILED;
    errno = saved_errno;
    if (done) {
        cut_area(area, (uintptr_t)start, old_bytes);
        add_area((uintptr_t)start, new_bytes);
    }
    return record(FAKE_REMAP, start, new_bytes, done);
}

struct hak_os_target hak_os_reserve_target(size_t bytes, size_t alignment) {
    static uint64_t last_mark;
    struct hak_os_target target = {map(FAKE_RESERVE, bytes, alignment, PROT_NONE), bytes, ++last_mark};
    if (target.start != NULL) area_of(target.start, bytes)->mark = target.mark;
    return target;
}

static struct area *area_of_target(const struct hak_os_target *target) {
    for (size_t i = 0; i < area_count; i++)
        if (areas[i].mark == target->mark && areas[i].start == (uintptr_t)target->start) return &areas[i];
    return NULL;
}

static void unmap_target(const struct hak_os_target *target) {
    if (munmap(target->start, target->bytes) != 0) stop("munmap failed");
    cut_area(area_of_target(target), (uintptr_t)target->start, target->bytes);
}

bool hak_os_drop_target(const struct hak_os_target *target) {
    if (area_of_target(target) == NULL) return true;
    if (!is_granted(FAKE_DROP)) return record(FAKE_DROP, target->start, target->bytes, false);
    unmap_target(target);
    return record(FAKE_DROP, target->start, target->bytes, true);
}

/* One of as many bytes may move a part, where they are several mappings. */
bool hak_os_move(void *start, size_t bytes, const struct hak_os_target *target) {
    if (bytes >= target->bytes) stop("a move to no more room");
    area_of(start, bytes);
    if (area_of_target(target) == NULL) stop("no target");
    int saved_errno = errno;
    bool granted = is_granted(FAKE_MOVE);
    void *moved =
        granted ? mremap(start, bytes, target->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target->start) : MAP_FAILED;
    /* Pages that had other rights once are another mapping in a child. */
    if (granted && moved == MAP_FAILED && errno != EFAULT) stop("mremap failed");
    errno = saved_errno;
    if (moved == MAP_FAILED) {
        if (!fake_os.keeps_targets) unmap_target(target);
        record(FAKE_MOVE, target->start, target->bytes, false);
        if (fake_os.at_refused_move != NULL) fake_os.at_refused_move();
        return false;
    }
    area_of_target(target)->mark = 0;
    cut_area(area_of(start, bytes), (uintptr_t)start, bytes);
    return record(FAKE_MOVE, target->start, target->bytes, true);
}

void *hak_os_move_pages(void *start, size_t bytes) {
    area_of(start, bytes);
    bool granted = is_granted(FAKE_MOVE_PAGES) && bytes <= fake_os.address_space_room - fake_os.mapped_bytes;
    int saved_errno = errno;
    void *moved = granted ? mremap(start, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) : MAP_FAILED;
    /* Pages that were mapped at different times may be several mappings, which the kernel doesn't move at once. */
    if (granted && moved == MAP_FAILED && errno != EFAULT) stop("mremap failed");
    errno = saved_errno;
    if (moved == MAP_FAILED) return record(FAKE_MOVE_PAGES, start, bytes, false), NULL;
    add_area((uintptr_t)moved, bytes);
    record(FAKE_MOVE_PAGES, moved, bytes, true);
    return moved;
}

bool hak_os_may_guard(void) { return fake_os.has_guards; }

/* As pages that are mappings of their own, which what has to be one mapping stumbles over. */
bool hak_os_guard(void *start, size_t bytes) {
    area_of(start, bytes);
    if (!fake_os.has_guards) return false;
    if (!is_granted(FAKE_GUARD)) {
        if (bytes > fake_os.page_bytes && mprotect(start, fake_os.page_bytes, PROT_NONE) != 0) stop("mprotect failed");
        return record(FAKE_GUARD, start, bytes, false);
    }
    if (madvise(start, bytes, MADV_DONTNEED) != 0 || mprotect(start, bytes, PROT_NONE) != 0) stop("no guards");
    return record(FAKE_GUARD, start, bytes, true);
}

bool hak_os_unguard(void *start, size_t bytes) {
    area_of(start, bytes);
    if (!fake_os.has_guards) return true;
    if (!is_granted(FAKE_UNGUARD)) return record(FAKE_UNGUARD, start, bytes, false);
    if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) stop("mprotect failed");
    return record(FAKE_UNGUARD, start, bytes, true);
}

bool hak_os_is_locked(void *page) { return (void)page, false; }

static bool advise(enum fake_call_kind kind, void *start, size_t bytes) {
    area_of(start, bytes);
    return record(kind, start, bytes, is_granted(kind));
}

bool hak_os_purge_lazily(void *start, size_t bytes) { return advise(FAKE_LAZY_PURGE, start, bytes); }
bool hak_os_populate(void *start, size_t bytes) { return advise(FAKE_POPULATE, start, bytes); }
bool hak_os_ask_for_huge_pages(void *start, size_t bytes) { return advise(FAKE_HUGE, start, bytes); }
bool hak_os_refuse_huge_pages(void *start, size_t bytes) { return advise(FAKE_NO_HUGE, start, bytes); }
uint64_t hak_os_touch(void *page) {
    area_of(page, fake_os.page_bytes);
    fake_os.touches++;
    return fake_os.touch_ms;
}
void hak_os_break_huge_page(void *page) { advise(FAKE_BREAK, page, fake_os.page_bytes); }

bool hak_os_has_huge_pages(void) { return fake_os.has_huge_pages; }

uint64_t hak_os_clock_ms(void) {
    if (fake_os.at_clock != NULL) fake_os.at_clock();
    return fake_os.clock_ms;
}
uint64_t hak_os_clock_ns(void) { return fake_os.clock_ms * 1000000; }

bool hak_fence_threads(void) {
    if (fake_os.between_fences != NULL) fake_os.between_fences();
    return fake_os.fences_left == 0 ? false : (fake_os.fences_left--, true);
}

struct hak_os_usage hak_os_usage(bool may_ask) {
    (void)may_ask;
    return fake_os.usage;
}

size_t hak_os_build_id(unsigned char *id, size_t capacity) {
    size_t bytes = fake_os.build_id_bytes < capacity ? fake_os.build_id_bytes : capacity;
    memcpy(id, fake_os.build_id, bytes);
    return bytes;
}

/* ---- os.h: all else ---------------------------------------------------------------------------------------------- */

bool hak_os_start_thread(void (*run)(void), uintptr_t *thread) {
    if (fake_os.refuses_threads) return false;
    *(thread == NULL ? &fake_os.thread : &fake_os.service) = run;
    if (thread != NULL) *thread = 1;
    return true;
}
void hak_os_join_thread(uintptr_t thread) { fake_os.joins += thread; }
bool hak_os_try_join_thread(uintptr_t thread) {
    if (!fake_os.thread_lingers) fake_os.joins += thread;
    return !fake_os.thread_lingers;
}

void hak_os_wait_until_gone(uint32_t thread) { (void)thread; }
bool hak_os_began_filtered(void) { return fake_os.began_filtered; }
uintptr_t hak_os_this_thread(void) { return 1; }
uintptr_t hak_os_stack_end(uintptr_t place) { return (void)place, fake_os.stack_end; }
enum hak_os_settled hak_os_settle_thread(void) {
    return fake_os.is_filtered ? HAK_OS_BEGAN_FILTERED : fake_os.is_foreign ? HAK_OS_FOREIGN : HAK_OS_SETTLED;
}
void hak_os_wait(HAK_ATOMIC(uint32_t) *word, uint32_t expected, uint64_t most_us) {
    (void)word, (void)expected;
    fake_os.waits++;
    fake_os.waited_us = most_us;
    if (fake_os.at_wait != NULL) fake_os.at_wait();
}
bool hak_os_may_wait(void) { return !fake_os.refuses_waits; }
void hak_os_wake(HAK_ATOMIC(uint32_t) *word) {
    (void)word;
    fake_os.wakes++;
}
void hak_os_yield(void) {}
uint32_t hak_os_processor_count(void) { return fake_os.processors; }

void hak_os_write(int descriptor, const char *text, size_t length) {
    (void)descriptor;
    size_t room = FAKE_OUTPUT_BYTES - 1 - fake_os.output_length;
    if (length > room) length = room;
    memcpy(fake_os.output + fake_os.output_length, text, length);
    fake_os.output_length += length;
    fake_os.output[fake_os.output_length] = '\0';
}

static struct fake_opened { const char *rest; /* NULL: not open */ } opened[4];

enum { FIRST_DESCRIPTOR = 1000, OPENED_LIMIT = sizeof opened / sizeof opened[0] };

static struct fake_opened *opened_of(int descriptor) {
    size_t i = (size_t)descriptor - FIRST_DESCRIPTOR;
    if (i >= OPENED_LIMIT || opened[i].rest == NULL) stop("not an open descriptor");
    return &opened[i];
}

int hak_os_open_file(const char *path) {
    if (fake_os.at_open != NULL) fake_os.at_open(path);
    if (++fake_os.file_calls == fake_os.refused_file_call) return errno = EMFILE, -1;
    for (const struct fake_file *file = fake_os.files; file != NULL && file->path != NULL; file++)
        for (int i = 0; strcmp(file->path, path) == 0 && i < OPENED_LIMIT; i++) {
            if (opened[i].rest != NULL) continue;
            opened[i].rest = file->text;
            fake_os.open_count++;
            return FIRST_DESCRIPTOR + i;
        }
    return errno = fake_os.absence != 0 ? fake_os.absence : ENOENT, -1;
}

int hak_os_open_own(const char *name) {
    char path[64];
    int saved_errno = errno;
    snprintf(path, sizeof path, "/proc/thread-self/%s", name);
    int descriptor = hak_os_open_file(path);
    errno = saved_errno;
    return descriptor;
}

int hak_os_open_regular_file(const char *path, size_t most_bytes, bool is_own, const char **problem) {
    (void)is_own;
    *problem = NULL;
    int descriptor = hak_os_open_file(path);
    if (descriptor < 0 || strlen(opened_of(descriptor)->rest) <= most_bytes) return descriptor;
    hak_os_close(descriptor);
    *problem = "too large";
    return -1;
}

size_t hak_os_read(int descriptor, void *buffer, size_t bytes) {
    struct fake_opened *file = opened_of(descriptor);
    if (++fake_os.file_calls == fake_os.refused_file_call) return errno = EIO, 0;
    size_t length = strlen(file->rest);
    if (length > bytes) length = bytes;
    if (length > fake_os.read_bytes) length = fake_os.read_bytes;
    memcpy(buffer, file->rest, length);
    file->rest += length;
    return length;
}

bool hak_os_replace_file(const char *path, const char *text, size_t length) {
    if (fake_os.refuses_files) return false;
    snprintf(fake_os.replaced_path, sizeof fake_os.replaced_path, "%s", path);
    hak_os_write(0, text, length);
    return true;
}

int hak_os_create_file(const char *path) {
    (void)path;
    return -1;
}
void hak_os_close(int descriptor) {
    if (descriptor < FIRST_DESCRIPTOR) return;
    opened_of(descriptor)->rest = NULL;
    fake_os.open_count--;
}
bool hak_os_write_quietly(int descriptor, const char *text, size_t length) {
    hak_os_write(descriptor, text, length);
    return true;
}
void hak_os_write_line(const char *text, size_t length) { hak_os_write(STDERR_FILENO, text, length); }
bool hak_os_may_replace(const char *path) { return (void)path, !fake_os.refuses_files; }
bool hak_os_is_privileged(void) { return fake_os.is_privileged || getenv("FAKE_OS_PRIVILEGED") != NULL; }
bool hak_os_copy_file(int from, int to) {
    if (from < 0) return true;
    const char *text = opened_of(from)->rest;
    hak_os_write(to, text, strlen(text));
    hak_os_close(from);
    return true;
}

/* As the kernel knows it. */
bool hak_os_is_readable(const void *address) {
    return syscall(SYS_rt_sigprocmask, -1, address, NULL, 8) != 0 && errno != EFAULT;
}

bool hak_os_host_name(char name[HAK_OS_HOST_NAME_BYTES]) {
    const char *given = getenv("FAKE_OS_HOST"); /* asked for before main */
    if (given != NULL) snprintf(name, HAK_OS_HOST_NAME_BYTES, "%s", given);
    return given != NULL;
}

int hak_os_process_id(void) { return (int)getpid() + fake_os.processes_away; }
uint32_t hak_os_thread_id(void) {
    if (fake_os.at_thread_id != NULL) fake_os.at_thread_id();
    return fake_os.thread_id != 0 ? fake_os.thread_id : (uint32_t)gettid();
}
uintptr_t hak_os_complaint(void) { return 0; }
enum hak_misuse_kind hak_os_complaint_kind(void) { return HAK_MISUSE_DOUBLE_FREE; }
ptrdiff_t hak_os_complaint_offset(void) { return 0; }
bool hak_os_has_thread_pointer(void) { return true; }

/* ---- os/channel.h ------------------------------------------------------------------------------------------------ */

HAK_ATOMIC(uint64_t) hak_channel_wish = HAK_CHANNEL_NO_WISH;

bool hak_os_channel_make(void) { return !fake_os.refuses_table; }
void hak_os_channel_end(void) {}
bool hak_os_channel_open(bool watches) {
    fake_os.watches = watches;
    return fake_os.has_channel;
}
bool hak_os_channel_may_answer(void) { return fake_os.may_answer; }
bool hak_os_channel_has_filters(uint64_t filters) { return filters == 0; }

size_t hak_os_channel_receive(char *buffer, size_t bytes, uint64_t most_ms) {
    fake_os.channel_wait_ms = most_ms;
    if (fake_os.at_wait != NULL) fake_os.at_wait();
    if (fake_os.requests == NULL || *fake_os.requests == NULL) return 0;
    size_t length = strlen(*fake_os.requests);
    if (length > bytes) stop("a request longer than the buffer: cut it in pieces");
    memcpy(buffer, *fake_os.requests++, length);
    return length;
}

bool hak_os_channel_send(const char *text, size_t length, uint64_t deadline_ms) {
    if (deadline_ms <= fake_os.clock_ms) stop("no time to answer");
    bool done = length <= fake_os.send_bytes;
    if (!done) length = fake_os.send_bytes;
    fake_os.send_bytes -= length;
    hak_os_write(0, text, length);
    return done;
}

void hak_os_channel_drop(void) { fake_os.drops++; }
void hak_os_channel_interrupt(void) { fake_os.interrupts++; }

/* ---- Complaints -------------------------------------------------------------------------------------------------- */

const struct fake_report *fake_os_catch(void (*body)(void *context), void *context) {
    report = (struct fake_report){.condition = NULL};
    catching = true;
    bool complained = setjmp(catcher) != 0;
    if (!complained) body(context);
    catching = false;
    return complained ? &report : NULL;
}

void hak_misuse(enum hak_misuse_kind kind, const char *function, const void *address, size_t offset, size_t size) {
    if (!catching) {
        fprintf(stderr, "fake_os: misuse %d: %s(%p), offset %zu, size %zu\n", (int)kind, function, address, offset,
                size);
        abort();
    }
    report = (struct fake_report){NULL, kind, function, (uintptr_t)address, offset, size};
    longjmp(catcher, 1);
}

void hak_assertion_failed(const char *condition, const char *file, int line) {
    if (!catching) {
        fprintf(stderr, "fake_os: %s (%s:%d)\n", condition, file, line);
        abort();
    }
    report = (struct fake_report){.condition = condition};
    longjmp(catcher, 1);
}
