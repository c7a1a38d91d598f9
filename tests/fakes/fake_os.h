/* The kernel of unit tests: os/os.h over real memory, but with a page size, limits and refusals that a test sets, and
 * with all memory calls on record. What hakmem may not ask of a kernel (addresses that are no multiples of a page,
 * parts of what it never mapped) ends the test.
 *
 * What it refuses it does as badly as a kernel may: the target of a move is gone already, some of what was to be purged
 * has lost its contents, and some of what was to be committed can be written to.
 *
 * Pages of 16 and 64 KiB are as real as a kernel of smaller pages lets them be: everything is aligned to them, given
 * and purged by them; what they cannot do is to become resident as a whole.
 *
 * For one thread at a time. */
#ifndef FAKE_OS_H
#define FAKE_OS_H

#include "base/check.h"
#include "os/channel.h"
#include "os/os.h"

enum fake_call_kind {
    FAKE_RESERVE,
    FAKE_MAP,
    FAKE_COMMIT,
    FAKE_FORBID,
    FAKE_MAP_AT,
    FAKE_UNMAP,
    FAKE_PURGE,
    FAKE_REMAP,      /* in its place */
    FAKE_MOVE,       /* of a mapping */
    FAKE_MOVE_PAGES, /* of a part of one */
    FAKE_DROP,       /* of a target that is there still */
    FAKE_HUGE,       /* asked for */
    FAKE_NO_HUGE,    /* refused */
    FAKE_BREAK,
    FAKE_POPULATE,
    FAKE_LAZY_PURGE,
    FAKE_GUARD,
    FAKE_UNGUARD,
    FAKE_KIND_COUNT,
    FAKE_ANY = FAKE_KIND_COUNT /* all of these together */
};

struct fake_call {
    enum fake_call_kind kind;
    uintptr_t start;
    size_t bytes; /* of a remap or move: the new ones */
    bool done;
};

/* A file that can be read. */
struct fake_file {
    const char *path, *text;
};

enum { FAKE_CALL_LIMIT = 1 << 16, FAKE_OUTPUT_BYTES = 1 << 16 };

struct fake_os {
    /* Set by the test. */
    size_t page_bytes;             /* 4096; change it before anything else is called */
    void *wiped;                   /* what a fork empties; NULL: the kernel has no such memory */
    uintptr_t stack_end;           /* what hak_os_stack_end says; 0: nobody knows */
    const void *library_code;      /* the address that is the C library's; NULL */
    bool is_malloc_wrapped;        /* by the program; false */
    size_t window_room;            /* addresses for a range and its tables; SIZE_MAX */
    uintptr_t window_start;        /* where the next range is to begin; 0: anywhere */
    size_t address_space_room;     /* what can be mapped before it refuses; SIZE_MAX */
    bool grows_in_place;           /* a remap in its place may succeed in growing; true */
    bool keeps_targets;            /* of moves that it refuses; false: it unmaps them first, as Linux does */
    void (*at_refused_move)(void); /* called after each, for what another thread does there; NULL */
    void *next_start;              /* where the next mapping will be, if nothing is there; NULL */
    bool has_huge_pages;           /* the kernel gives them; false */
    bool has_guards;               /* it knows of guards within mappings; false */
    uint64_t touch_ms;             /* what the first touch of a page takes; 0 */
    uint64_t touches;
    uint32_t processors;       /* 64 */
    int processes_away;        /* the number of this process is so much higher; 0 */
    uint64_t clock_ms;         /* stands still; 0 */
    struct hak_os_usage usage; /* 0 */
    unsigned char build_id[4]; /* 1, 2, 3, 4 */
    size_t build_id_bytes;     /* of it; 4 */
    bool refuses_threads;
    bool thread_lingers;               /* it can't be joined yet */
    uint32_t thread_id;                /* of whoever asks; 0: the kernel's */
    void (*at_thread_id)(void);        /* called by each question, for a signal that comes there; NULL */
    void (*at_clock)(void);            /* the same, of hak_os_clock_ms */
    void (*at_wait)(void);             /* called by each wait, instead of waiting; NULL */
    size_t fences_left;                /* fences in all threads before the kernel refuses one; SIZE_MAX */
    void (*between_fences)(void);      /* called before each, for what another thread does there; NULL */
    bool is_privileged;                /* false, or true if FAKE_OS_PRIVILEGED is in the environment */
    const struct fake_file *files;     /* those there are, up to one without a path; NULL: none */
    int absence;                       /* errno of a file that isn't there; 0: ENOENT */
    size_t refused_file_call;          /* number of the call that is refused, of those that open and read; 0: none */
    size_t read_bytes;                 /* that a read gives at most; SIZE_MAX */
    void (*at_open)(const char *path); /* called by each; NULL */
    bool is_foreign;                   /* a thread has other rights than the first one, and ends */
    bool is_filtered;                  /* a sandbox filters system calls: no service is started unasked; true */
    bool began_filtered;               /* as it tells a program with one thread */
    bool refuses_table;                /* of descriptors for the channel; false */
    bool has_channel;                  /* it can be served; false */
    bool may_answer;                   /* no filter came since; true */
    bool watches;                      /* the channel was opened so */
    const char *const *requests;       /* what comes in, one at each wait, up to NULL; then waits end without any */
    size_t send_bytes;                 /* that anybody reads of answers, together; SIZE_MAX */
    bool refuses_files;                /* to be replaced */
    void (*at_call)(void);             /* called after each memory call, for a look at what is in sight then; NULL */
    void (*at_map_at)(void);           /* called before each hak_os_map_at, likewise */
    void (*at_purge)(void);            /* called after each, for what another thread does there; NULL */

    /* What happened. The record stops when it is full; the counts go on. */
    struct fake_call calls[FAKE_CALL_LIMIT];
    size_t call_count[FAKE_KIND_COUNT + 1]; /* [kind], refused ones too; [FAKE_ANY] is also the length of calls */
    size_t refused_count;
    void (*thread)(void);  /* the last one started: not run, but by the test */
    void (*service)(void); /* the same, of those that the starter joins */
    size_t joins, interrupts, drops;
    uint64_t channel_wait_ms; /* the last time it had to wait for requests */
    char replaced_path[256];  /* the last file; its text is output */
    bool refuses_waits;       /* no thread can sleep; false */
    size_t waits, wakes;
    uint64_t waited_us; /* of the last wait */
    size_t file_calls;  /* that open and read */
    size_t open_count;  /* descriptors that are not closed */
    size_t mapped_bytes;
    char output[FAKE_OUTPUT_BYTES]; /* written to whatever descriptor, terminated */
    size_t output_length;
};

extern struct fake_os fake_os;

/* Calls `nth` .. `last` of a kind, counted from 1 and from now on, are refused. One script at a time. */
void fake_os_refuse(enum fake_call_kind kind, size_t nth, size_t last);
void fake_os_refuse_nothing(void);

/* Bytes that were purged and unmapped, or were to be, from call number `call` on. */
size_t fake_os_given_back_since(size_t call);

/* Forgets calls, counts and output. */
void fake_os_forget(void);

/* What hakmem complained of. `kind` to `size` are those of hak_misuse; `condition` is NULL then, and that of the
 * assertion otherwise. */
struct fake_report {
    const char *condition;
    enum hak_misuse_kind kind;
    const char *function;
    uintptr_t address;
    size_t offset, size;
};

/* Calls body(context). Returns what hakmem complained of there, which ended it; NULL for nothing. Complaints outside
 * of this end the process. */
const struct fake_report *fake_os_catch(void (*body)(void *context), void *context);

#endif
