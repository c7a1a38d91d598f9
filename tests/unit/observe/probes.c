/* observe/probes.h: nothing happens when a probe is passed, with tracers or without. That they are found: tests/api/probes.py. */
#include "unit.h"

#include "base/atomic.h"
#include "observe/probes.h"

#if defined(__x86_64__) || defined(__aarch64__)
extern HAK_ATOMIC(uint16_t) hak_probe_free_semaphore;

static void trace(uint16_t tracers) {
    hak_atomic_store(&hak_probe_alloc_semaphore, tracers, relaxed);
    hak_atomic_store(&hak_probe_free_semaphore, tracers, relaxed);
}
#else
static void trace(uint16_t tracers) { (void)tracers; }
#endif

static void passed(void **state) {
    int block;
    (void)state;
    for (uint16_t tracers = 0; tracers < 3; tracers++) {
        trace(tracers);
        hak_probe_alloc(&block, sizeof block, 1 << 19);
        hak_probe_free(&block);
    }
}

UNIT_MAIN(cmocka_unit_test(passed))
