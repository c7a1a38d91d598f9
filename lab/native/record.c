/* record: preloaded before a program's allocator, writes down what the program asks of it. See bench/trace.h.
 *
 * HAK_RECORD=PARENT:LIMIT:FOLDER says which processes are recorded: those whose parent is process PARENT, or all when
 * it is 0. Each program that a process runs has a file of its own, FOLDER/PID.N, of at most LIMIT bytes. The program
 * calls the recorder, for every function of the malloc family; the recorder calls the next definition of it.
 *
 * R1  The file is mapped as a whole and shared, and no descriptor stays open: an event is recorded once its bytes and
 *     the chunk's count are stored, however the program ends, and whatever it does to its descriptors, its root or
 *     its user.
 * R2  A block is noted after it was returned, and before it is freed. Whoever learns of the block or gets its address
 *     next therefore finds `turn` where the noting thread found it, or later, and notes in a later turn (T3).
 * R3  A thread goes on with its turn as long as no other has begun one: it looks at one shared word, and writes none.
 * R4  Memory of the recorder's own is the file, a page and thread-local; it never calls what it records.
 * R5  A child that forks finds the session's page wiped and the file not mapped, and begins a session or stays silent.
 */
#include "next.h"
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

extern char **environ;

/* ---- The session: one program of one process --------------------------------------------------------------------- */

enum { UNSTARTED, STARTING, RECORDING, SILENT };

enum { THREAD_BITS = 24, FOLDER_BYTES_MAX = 3000, RESERVED_COUNT = 256 };

/* A page that a fork wipes. */
struct session {
    _Atomic uint32_t state;
    uint32_t number; /* tells threads of this session from copies that a fork left */
    uint32_t chunk_capacity;
    uint32_t capacity_flags; /* of the header, when all chunks are filled */
    struct trace_header *header;
    struct trace_chunk *chunks;
    _Atomic uint64_t turn; /* ticket << THREAD_BITS | thread of the latest turn */
    char path[FOLDER_BYTES_MAX + sizeof "/4294967295.4294967295"];
};

static struct session *session;

/* Read from the environment once, handed on to children by fork. */
static struct {
    bool is_read;
    long parent;
    uint64_t limit_bytes;
    const char *folder; /* NULL: nothing is recorded */
    uint32_t session_count;
} settings;

struct thread {
    uint32_t session; /* 0: none yet */
    uint32_t number;
    volatile uint32_t depth; /* of calls, seen by signal handlers; only the outermost is noted */
    struct trace_chunk *chunk;
    unsigned char *place;
    uint32_t event_count; /* in the chunk */
    uint64_t turn;        /* as in the session */
    uint64_t name;
};

static _Thread_local struct thread self __attribute__((tls_model("initial-exec")));

static void read_settings(void) {
    settings.is_read = true;
    const char *text = getenv("HAK_RECORD");
    char *end;
    if (!text) {
        return;
    }
    settings.parent = strtol(text, &end, 10);
    if (*end != ':') {
        return;
    }
    settings.limit_bytes = strtoull(end + 1, &end, 10);
    if (*end == ':') {
        static char folder[FOLDER_BYTES_MAX];
        size_t length = strlen(end + 1);
        if (length < sizeof folder) {
            settings.folder = memcpy(folder, end + 1, length + 1);
        }
    }
}

static void complain(const char *what, const char *path) {
    char line[4096];
    int length = snprintf(line, sizeof line, "hakmem: can't record process %d: %s %s: %s\n", (int)getpid(), what, path,
                          strerror(errno));
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written; /* there is nobody else to tell */
}

static void read_command(struct trace_header *header) {
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t length = read(file, header->command, sizeof header->command - 1);
        (void)length; /* the rest is zero */
        close(file);
    }
}

/* The disk space of a stretch of chunks, the first with the header, asked for before they are written: a full disk is
 * an error here, not a SIGBUS in the program. One that has left its root or its user since the file was made goes on
 * without. Returns the error. */
static int reserve(uint32_t index) {
    int before = errno;
    int file = open(session->path, O_RDWR | O_CLOEXEC);
    uint32_t left = session->chunk_capacity - index;
    off_t start = index == 0 ? 0 : (off_t)(index + 1) * TRACE_CHUNK_BYTES;
    off_t end = (off_t)(index + 1 + (left < RESERVED_COUNT ? left : RESERVED_COUNT)) * TRACE_CHUNK_BYTES;
    int error = 0;
    if (file >= 0) {
        do {
            error = posix_fallocate(file, start, end - start);
        } while (error == EINTR);
        close(file);
    }
    errno = before;
    return error;
}

/* The file with room for its first chunks; NULL with errno. Closes `file`. */
static void *map_and_reserve(int file, uint64_t bytes) {
    bool is_enough = bytes >= 2 * TRACE_CHUNK_BYTES;
    errno = EFBIG;
    bool is_sized = is_enough && ftruncate(file, (off_t)bytes) == 0;
    void *memory = is_sized ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    session->chunk_capacity = (uint32_t)(bytes / TRACE_CHUNK_BYTES - 1);
    int error = madvise(memory, bytes, MADV_DONTFORK) != 0 ? errno : reserve(0);
    if (error == 0) {
        return memory;
    }
    munmap(memory, bytes);
    errno = error;
    return NULL;
}

static bool map_file(void) {
    struct rlimit file_size;
    uint64_t bytes = settings.limit_bytes;
    session->capacity_flags = TRACE_FULL;
    if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur < bytes) {
        bytes = file_size.rlim_cur;
        session->capacity_flags = TRACE_FULL | TRACE_FILE_SIZE;
    }
    int file = -1;
    for (unsigned n = 0; file < 0 && (n == 0 || errno == EEXIST); n++) {
        snprintf(session->path, sizeof session->path, "%s/%d.%u", settings.folder, (int)getpid(), n);
        file = open(session->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    }
    if (file < 0) {
        /* No folder: this program was started by one that outlived the recording. */
        if (errno != ENOENT) {
            complain("can't create", session->path);
        }
        return false;
    }
    void *memory = map_and_reserve(file, bytes);
    if (!memory) {
        complain("no room for", session->path);
        unlink(session->path);
        return false;
    }
    session->header = memory;
    session->chunks = (struct trace_chunk *)memory + 1;
    session->number = ++settings.session_count;
    memcpy(session->header->magic, TRACE_MAGIC, sizeof session->header->magic);
    session->header->version = TRACE_VERSION;
    session->header->pid = (uint32_t)getpid();
    read_command(session->header);
    return true;
}

/* Whether the session records now. The first call decides, as soon as there is an environment. */
static bool start(void) {
    uint32_t unstarted = UNSTARTED;
    if (!environ || !atomic_compare_exchange_strong_explicit(&session->state, &unstarted, STARTING,
                                                             memory_order_relaxed, memory_order_relaxed)) {
        return false;
    }
    int error = errno;
    if (!settings.is_read) {
        read_settings();
    }
    bool is_asked = settings.folder && (settings.parent == 0 || settings.parent == getppid());
    bool is_recording = is_asked && map_file();
    errno = error;
    /* pairs with is_recording's acquire: whoever sees it sees the file */
    atomic_store_explicit(&session->state, is_recording ? RECORDING : SILENT, memory_order_release);
    return is_recording;
}

static bool is_recording(void) {
    uint32_t state = atomic_load_explicit(&session->state, memory_order_acquire); /* pairs with start's release */
    return state == RECORDING || (state == UNSTARTED && start());
}

static void begin_session(void) {
    void *page = mmap(NULL, sizeof *session, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static struct session silent = {.state = SILENT};
    bool is_wiped = page != MAP_FAILED && madvise(page, sizeof *session, MADV_WIPEONFORK) == 0;
    session = is_wiped ? page : &silent;
}

static bool is_ready(void) { return find_next_once(begin_session); }

__attribute__((constructor)) static void begin_with_the_program(void) {
    if (is_ready()) {
        is_recording();
    }
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* Ends the recording of all threads. */
static void end(uint32_t flags) {
    atomic_store_explicit(&session->header->flags, flags, memory_order_relaxed);
    atomic_store_explicit(&session->state, SILENT, memory_order_relaxed);
}

static bool open_chunk(void) {
    if (self.chunk) {
        self.chunk->checksum = trace_chunk_checksum(self.chunk);
    }
    _Atomic uint32_t *count = &session->header->chunk_count;
    uint32_t index = atomic_load_explicit(count, memory_order_relaxed);
    do {
        bool is_full = index >= session->chunk_capacity;
        if (is_full || (index % RESERVED_COUNT == 0 && reserve(index) != 0)) {
            end(is_full ? session->capacity_flags : TRACE_FULL | TRACE_NO_ROOM);
            return false;
        }
    } while (
        !atomic_compare_exchange_weak_explicit(count, &index, index + 1, memory_order_relaxed, memory_order_relaxed));
    self.chunk = &session->chunks[index];
    self.chunk->thread = self.number;
    self.chunk->ticket = self.turn >> THREAD_BITS;
    self.place = self.chunk->payload;
    self.event_count = 0;
    self.name = 0;
    return true;
}

static void put_turn(uint64_t latest) {
    uint64_t turn;
    do {
        turn = ((latest >> THREAD_BITS) + 1) << THREAD_BITS | self.number;
    } while (!atomic_compare_exchange_weak_explicit(&session->turn, &latest, turn, memory_order_relaxed,
                                                    memory_order_relaxed));
    self.place = trace_put(self.place, TRACE_TURN);
    self.place = trace_put(self.place, (turn >> THREAD_BITS) - (self.turn >> THREAD_BITS));
    self.turn = turn;
}

/* Room for an event, in this thread's turn. */
static bool take_place(void) {
    if (self.session != session->number) {
        uint32_t number = atomic_fetch_add_explicit(&session->header->thread_count, 1, memory_order_relaxed);
        self.session = session->number;
        self.number = number;
        self.chunk = NULL;
        self.turn = 0;
    }
    enum { ROOM_BYTES = 2 * TRACE_EVENT_BYTES_MAX };
    if ((!self.chunk || self.place > self.chunk->payload + TRACE_PAYLOAD_BYTES - ROOM_BYTES) && !open_chunk()) {
        return false;
    }
    uint64_t latest = atomic_load_explicit(&session->turn, memory_order_relaxed);
    if (latest != self.turn || self.turn == 0) {
        put_turn(latest);
    }
    return true;
}

static void note(enum trace_kind kind, uint64_t operand, const void *block) {
    if (self.depth != 1 || !is_recording() || !take_place()) {
        return;
    }
    uint64_t name = (uintptr_t)block / 8;
    self.place = trace_put(self.place, operand << TRACE_KIND_BITS | kind);
    self.place = trace_put(self.place, trace_zigzag(self.name, name));
    self.name = name;
    /* A signal that ends the process finds whole events. */
    uint32_t filled = ++self.event_count << TRACE_BYTES_BITS | (uint32_t)(self.place - self.chunk->payload);
    atomic_store_explicit(&self.chunk->filled, filled, memory_order_release);
}

/* ---- The malloc family ------------------------------------------------------------------------------------------- */

EXPORT void *malloc(size_t bytes) {
    if (!is_ready()) {
        return early_allocate(bytes);
    }
    self.depth++;
    void *block = next.malloc(bytes);
    if (block) {
        note(TRACE_MALLOC, bytes, block);
    }
    self.depth--;
    return block;
}

EXPORT void *calloc(size_t count, size_t bytes_each) {
    if (!is_ready()) {
        size_t bytes;
        return __builtin_mul_overflow(count, bytes_each, &bytes) ? NULL : early_allocate(bytes); /* never used before */
    }
    self.depth++;
    void *block = next.calloc(count, bytes_each);
    if (block) {
        note(TRACE_CALLOC, count * bytes_each, block);
    }
    self.depth--;
    return block;
}

EXPORT void free(void *block) {
    if (block && !is_early(block) && is_ready()) {
        self.depth++;
        note(TRACE_FREE, 0, block);
        next.free(block);
        self.depth--;
    }
}

EXPORT void *realloc(void *block, size_t bytes) {
    if (is_early(block) || !is_ready()) {
        return early_reallocate(block, bytes);
    }
    self.depth++;
    bool is_free = block && bytes == 0; /* as in the C library */
    if (block) {
        note(is_free ? TRACE_FREE : TRACE_REALLOC, 0, block);
    }
    void *moved = next.realloc(block, bytes);
    if (is_free ? moved != NULL : block || moved) {
        note(is_free ? TRACE_MALLOC : TRACE_REALLOCATED, moved ? bytes : 0, moved);
    }
    self.depth--;
    return moved;
}

/* The alignment as the exponent of the power of two that it is rounded up to. */
static uint64_t aligned_operand(size_t alignment, size_t bytes) {
    unsigned shift = alignment <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(alignment - 1);
    return bytes << TRACE_SHIFT_BITS | shift;
}

EXPORT int posix_memalign(void **result, size_t alignment, size_t bytes) {
    if (!is_ready()) {
        return ENOMEM;
    }
    self.depth++;
    int error = next.posix_memalign(result, alignment, bytes);
    if (error == 0 && *result) {
        note(TRACE_ALIGNED, aligned_operand(alignment, bytes), *result);
    }
    self.depth--;
    return error;
}

static void *align(void *(*allocate)(size_t, size_t), size_t alignment, size_t bytes) {
    self.depth++;
    void *block = allocate(alignment, bytes);
    if (block) {
        note(TRACE_ALIGNED, aligned_operand(alignment, bytes), block);
    }
    self.depth--;
    return block;
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes) {
    return is_ready() ? align(next.aligned_alloc, alignment, bytes) : NULL;
}

EXPORT void *memalign(size_t alignment, size_t bytes) {
    return is_ready() ? align(next.memalign, alignment, bytes) : NULL;
}
