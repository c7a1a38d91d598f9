#include "region/run_quarantine.h"

#include "base/knobs.h"
#include "os/os.h"
#include "region/page_policy.h"
#include "region/units.h"

/* Lengths in units: of a megabyte, 8 and 32, and what lies behind the object. Each kind has up to 64 MiB of addresses,
 * about, and no memory. The model checker has fewer places. */
static struct run_kind {
    uint32_t first_place, places, most_units;
} run_kinds[] = {{0, 64, 17}, {64, 8, 129}, {72, 2, 513}};
enum { RUN_KINDS = sizeof run_kinds / sizeof run_kinds[0], RUN_PLACES = 74 };

static HAK_ATOMIC(struct hak_slab *) run_places[RUN_PLACES];
static HAK_ATOMIC(uint32_t) run_turns[RUN_KINDS];

static size_t bytes_of_units(const struct hak_slab *run) {
    return hak_align_up(hak_atomic_load(&run->run_pages, relaxed) * hak_os_page_bytes(), HAK_UNIT_BYTES);
}

/* What can't be opened again: its units are absent, or if the kernel refuses that too, nobody's. In further ranges no
 * unit is absent (hak_region_unmap_units). */
static HAK_COLD void make_absent(struct hak_slab *run, uint32_t units) {
    struct hak_range *range = hak_region_range_of_record(run);
    for (uint32_t i = 0; range->number == 0 && i < units; i++) {
        hak_atomic_store(&run[i].range, (uint8_t)range->number, relaxed);
        if (hak_page_policy_unmap(range, hak_region_start_of(range, run + i), HAK_UNIT_BYTES))
            hak_region_release_absent(run + i);
    }
}

/* The caller has taken the run out of its place. */
static void let_out(struct hak_slab *run) {
    struct hak_range *range = hak_region_range_of_record(run);
    size_t bytes = bytes_of_units(run);
    enum hak_closed how = (enum hak_closed)hak_atomic_load(&run->purged_pages, relaxed);
    uint32_t units = (uint32_t)(bytes >> HAK_UNIT_SHIFT);
    hak_atomic_store(&run->run_pages, 0, relaxed);
    if (!hak_page_policy_open(hak_region_start_of(range, run), bytes, how)) make_absent(run, units);
    else if (how == HAK_CLOSED_IN_PART) hak_region_release(run, units);
    else hak_region_release_fresh(run, units);
}

bool hak_run_quarantine_put(struct hak_slab *run) {
    size_t bytes = bytes_of_units(run);
    uint32_t units = (uint32_t)(bytes >> HAK_UNIT_SHIFT), kind = 0;
    if (hak_knob_is_highest(dirty_limit_bytes)) return false;
    while (kind < RUN_KINDS && units > run_kinds[kind].most_units) kind++;
    if (kind == RUN_KINDS) return false;
    struct hak_range *range = hak_region_range_of_record(run);
    enum hak_closed how = hak_page_policy_close(range, hak_region_start_of(range, run), bytes);
    if (how == HAK_NOT_CLOSED) return false;
    hak_atomic_store(&run->purged_pages, how, relaxed);
    hak_region_mark(run, units, HAK_CLASS_NONE);
    uint32_t turn = hak_atomic_fetch_add(&run_turns[kind], 1, relaxed) % run_kinds[kind].places;
    /* Release and acquire pair with those of others here: who has the run sees its record. */
    run = hak_atomic_exchange(&run_places[run_kinds[kind].first_place + turn], run, acq_rel);
    if (run != NULL) let_out(run);
    return true;
}

void hak_run_quarantine_end(void) {
    for (uint32_t i = 0; i < RUN_PLACES; i++) {
        if (hak_atomic_load(&run_places[i], relaxed) == NULL) continue;
        /* Acquire pairs with the exchange in hak_run_quarantine_put: the run's record and memory are the caller's. */
        struct hak_slab *run = hak_atomic_exchange(&run_places[i], NULL, acquire);
        if (run != NULL) let_out(run);
    }
}

bool hak_run_quarantine_find(uintptr_t address, uintptr_t *start, size_t *bytes) {
    for (uint32_t i = 0; i < RUN_PLACES; i++) {
        const struct hak_slab *run = hak_atomic_load(&run_places[i], relaxed); /* what its record says is a guess */
        if (run == NULL) continue;
        uintptr_t run_start = hak_region_start_of(hak_region_range_of_record(run), run);
        size_t run_bytes = hak_run_usable_bytes(hak_atomic_load(&run->run_facts, relaxed));
        if (address - run_start >= run_bytes) continue;
        *start = run_start;
        *bytes = run_bytes;
        return true;
    }
    return false;
}

size_t hak_run_quarantine_bytes(uintptr_t address) {
    uintptr_t start;
    size_t bytes;
    return hak_run_quarantine_find(address, &start, &bytes) && start == address ? bytes : 0;
}
