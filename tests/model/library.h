/* The library under the checker: its sources as one unit, on a kernel of a few MiB, with size classes of a few blocks.
 *
 * A harness calls library_reset in setup and then what it needs of the library, which is plain code there;
 * `library_check` in `finally` walks all of it. Library sources include no headers twice, so harnesses see all of them
 * here.
 */
#ifndef MODEL_LIBRARY_H
#define MODEL_LIBRARY_H

#include "checker.h"

#include "base/counters.h"
#include "base/knobs.h"
#include "front/background.h"
#include "front/miss.h"
#include "front/process.h"
#include "front/service.h"
#include "front/tight.h"
#include "observe/profile.h"
#include "observe/stats.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/bin_size.h"
#include "pool/held.h"
#include "pool/partial_set.h"
#include "pool/pool.h"
#include "pool/purge.h"
#include "pool/quarantine.h"
#include "region/decay.h"
#include "region/directory.h"
#include "region/heap_count.h"
#include "region/large.h"
#include "region/mapping_cache.h"
#include "region/page_policy.h"
#include "region/units.h"

/* Classes, by what a slab has: 2 or 3 blocks in a unit, 2 blocks in two units, 128 or 96 blocks in a unit, 2 in half
 * of one. */
enum { PAIR = 1, TRIPLE, WIDE, MANY, FEWER, SHORT, CLASSES };

/* ---- the kernel --------------------------------------------------------------------------------------------- */

/* What it refuses, counted down, maps at an address counted up again by their end; -1 for never. Set by library_reset to
 * never. */
struct fake_os {
    size_t page_bytes;
    size_t window_room; /* for all that a range has */
    int reserves_left, maps_at_left, maps_left;
    bool refuses_purge, refuses_unmap;
    bool refuses_threads;
    void (*thread)(void); /* the last one started; for the harness to run */
    unsigned unmap_count, purge_count;
    uint64_t clock_ms;
    void (*service)(void); /* the last one started that the starter joins */
    bool has_service;      /* one is allowed */
    bool refuses_channel, gets_filter;
    bool grows_in_place; /* mappings, as far as there are addresses */
    bool refuses_moves;  /* and unmaps their targets first */
    unsigned map_count;
    bool refuses_commit;
};
extern struct fake_os fake_os;
extern HAK_ATOMIC(uint32_t) fake_os_service; /* 1 from its start on; 0 again when it has ended */
extern char fake_os_wiped[64];               /* what hak_os_map_wiped gives */
void fake_os_reset(void);
void fake_os_filter(void); /* all threads are under a filter */

/* ---- the library --------------------------------------------------------------------------------------------- */

/* All static data as at the start of a process, the classes above, no range. */
void library_reset(void);

/* The same, with a first range of `super_slabs` (1 or 2), of which `used` exist, their units beyond `units` taken for
 * ever; and heaps for `heap_count` threads. */
void library_start(uint32_t super_slabs, uint32_t used, uint32_t units, uint32_t heap_count);

enum { LIBRARY_HEAPS = 4 };
extern struct hak_heap *library_heaps[LIBRARY_HEAPS];

/* Blocks as a program has them: each is written by whoever gets it, and checked when it is given back. */
void *library_take(struct hak_heap *heap, uint32_t size_class); /* NULL: no memory */
void library_put(struct hak_heap *heap, uint32_t size_class, void *block);
void library_cache(struct hak_heap *heap, uint32_t size_class, void *block); /* into its bin */
void library_free_to_wait(uint32_t size_class, void *block);                 /* the calling thread, in quarantine */
void library_touch_new(void *block);
void library_touch(void *block); /* what the owner of a block may do */

/* After all threads: every slab with free blocks can be found, every free unit too, and no block is in two places.
 * Returns the number of blocks that are neither free nor in a bin. */
uint32_t library_check(void);

/* Units that are neither free nor in a slab nor kept by a heap: those of runs, and those that were lost or never
 * there. */
uint32_t library_count_lone_units(void);
void library_check_run(const struct hak_place *run);

/* Drains a heap, alone. */
void library_drain(struct hak_heap *heap);

/* The child's side of a fork. */
void library_in_child(void);

/* What is static in front/routes.c, for a part of the table: a group is opened, or malloc is metered or
 * not. */
void library_fill_routes(size_t first, size_t last);
void library_change_routes(uint32_t size_class, bool is_metered, size_t first, size_t last);
/* What observe/stack.c knows of an address: what fake tables say of it. */
uintptr_t library_rule_of(uintptr_t code);

/* What a hit does while malloc is metered; NULL when it is a miss. */
void *library_take_of_ration(uint32_t size_class);

/* So many slots of region/guard.h were tried. */
void library_skip_guard_turns(uint64_t count);

/* What is static in front/background.c. */
void library_background_sleep(void);
void library_background_period(void);
void library_background_start(void);
void library_background_look(void); /* the first that the thread does */
void library_background_run(void);
void library_background_finish(void);

/* The service is allowed. */
void library_let_serve(void);

/* Lets threads look how tight memory is, at once; how many bytes of growth they have seen. */
void library_let_look(void);
uint64_t library_growth_seen(void);

/* What is static in pool/holder.c: what it says of a block, wherever its slab is. */
bool library_finds_in_bin(struct hak_heap *heap, uint32_t size_class, const void *block);

/* The heap is the calling thread's. */
void library_be(struct hak_heap *heap);

/* The heap that hak_thread_attach finds. */
extern __thread struct hak_heap *hak_thread_heap __attribute__((tls_model("initial-exec")));

#endif
