/* The kernel of unit tests: os/os.h over real memory, but with a page size, limits and refusals that a test sets, and with
 * all memory calls on record. What hakmem may not ask of a kernel (addresses that are no multiples of a page, parts of
 * what it never mapped) ends the test.
 *
 * Pages of 16 and 64 KiB are as real as a kernel of smaller pages lets them be: everything is aligned to them, given and
 * purged by them; what they cannot do is to become resident as a whole.
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
    FAKE_UNMAP,
    FAKE_PURGE,
    FAKE_REMAP,
    FAKE_MOVE,
    FAKE_HUGE,    /* asked for */
    FAKE_NO_HUGE, /* refused */
    FAKE_BREAK,
    FAKE_POPULATE,
    FAKE_LAZY_PURGE,
    FAKE_RESIDENT,
    FAKE_KIND_COUNT,
    FAKE_ANY = FAKE_KIND_COUNT /* all of these together */
};

struct fake_call {
    enum fake_call_kind kind;
    uintptr_t start;
    size_t bytes; /* of a remap: the new ones */
    bool done;
};

/* A file that can be read. */
struct fake_file {
    const char *path, *text;
};

enum { FAKE_CALL_LIMIT = 1 << 16, FAKE_OUTPUT_BYTES = 1 << 16 };

struct fake_os {
    /* Set by the test. */
    size_t page_bytes;          /* 4096; change it before anything else is called */
    size_t address_space_limit; /* as the kernel tells it; SIZE_MAX */
    size_t address_space_room;  /* what can be mapped before it refuses; SIZE_MAX */
    bool grows_in_place;        /* a remap without target may succeed in growing; true */
    bool has_huge_pages;        /* the kernel gives them; false */
    size_t mapping_limit;       /* as the kernel tells it; 65530 */
    size_t resident_bytes;      /* of every part that is asked about; 0 */
    uint32_t processors;        /* 64 */
    uint64_t clock_ms;          /* stands still; 0 */
    struct hak_os_usage usage;  /* 0 */
    unsigned char build_id[4];  /* 1, 2, 3, 4 */
    uint64_t cpu_us;            /* that threads have run; 0 */
    uint64_t cpu_tick_us;       /* their times are exact to this, but for those asked for; 0 */
    bool cpu_is_settled;        /* they have been asked for, just before */
    uint64_t thread_clocks_read;
    bool refuses_threads;
    void (*at_wait)(void);             /* called by each wait, instead of waiting; NULL */
    size_t fences_left;                /* fences in all threads before the kernel refuses one; SIZE_MAX */
    void (*between_fences)(void);      /* called before each, for what another thread does there; NULL */
    bool is_privileged;                /* false, or true if FAKE_OS_PRIVILEGED is in the environment */
    const struct fake_file *files;     /* those there are, up to one without a path; NULL: none */
    size_t refused_file_call;          /* number of the call that is refused, of those that open and read; 0: none */
    size_t read_bytes;                 /* that a read gives at most; SIZE_MAX */
    void (*at_open)(const char *path); /* called by each; NULL */
    bool is_filtered;                  /* a sandbox filters system calls: no service is started unasked; true */
    bool has_channel;                  /* the kernel has what it takes; false */
    bool may_answer;                   /* no filter came since; true */
    const char *const *requests;       /* what comes in, one at each wait, up to NULL; then waits end without any */
    size_t send_bytes;                 /* that anybody reads of answers, together; SIZE_MAX */
    bool refuses_files;                /* to be replaced */
    void (*at_purge)(void);            /* called after each, for what another thread does there; NULL */

    /* What happened. The record stops when it is full; the counts go on. */
    struct fake_call calls[FAKE_CALL_LIMIT];
    size_t call_count[FAKE_KIND_COUNT + 1]; /* [kind], refused ones too; [FAKE_ANY] is also the length of calls */
    size_t refused_count;
    void (*thread)(void);  /* the last one started: not run, but by the test */
    void (*service)(void); /* the same, of those to be joined */
    size_t joins, interrupts, drops;
    uint64_t channel_wait_ms; /* the last time it had to wait for requests */
    char replaced_path[256];  /* the last file; its text is output */
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

/* Forgets calls, counts and output. */
void fake_os_forget(void);

/* What hakmem complained of. `kind` to `size` are those of hak_misuse; `condition` is NULL then, and that of the assertion
 * otherwise. */
struct fake_report {
    const char *condition;
    enum hak_misuse_kind kind;
    const char *function;
    uintptr_t address;
    size_t offset, size;
};

/* Calls body(context). Returns what hakmem complained of there, which ended it; NULL for nothing. Complaints outside of this
 * end the process. */
const struct fake_report *fake_os_catch(void (*body)(void *context), void *context);

#endif
