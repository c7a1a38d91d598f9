/* Probes: places where tracers (bpftrace, perf, eBPF agents) see sampled allocations and their frees, as OpenTelemetry
 * names them:
 *
 *   otel_memory:alloc(ptr, size, weight)   a block that was sampled: its address, the size asked for, how many bytes it
 *   stands for otel_memory:free(ptr)                  one of those is about to be freed
 *
 * The profiler calls these for its samples. A probe is a no-operation instruction, which a tracer replaces; an ELF note
 * in the format of SystemTap says where it is, where its arguments are, and where its semaphore is: a number of
 * tracers, which the kernel keeps. As long as that is 0 a call is a load and a branch. While a tracer watches `alloc`
 * the profile is on (front/meter.h).
 */
#ifndef HAK_OBSERVE_PROBES_H
#define HAK_OBSERVE_PROBES_H

#include "base/atomic.h"
#include "base/platform.h"

extern HAK_ATOMIC(uint16_t) hak_probe_alloc_semaphore; /* tracers write to it */

HAK_INLINE bool hak_probes_are_watched(void) {
    return HAK_UNLIKELY(hak_atomic_load(&hak_probe_alloc_semaphore, relaxed) != 0);
}

void hak_probe_alloc(const void *block, size_t size, uint64_t weight);
void hak_probe_free(const void *block);

#endif
