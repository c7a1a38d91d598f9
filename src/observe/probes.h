/* Probes: places where tracers (bpftrace, perf, eBPF agents) see sampled allocations and their frees, as OpenTelemetry
 * names them:
 *
 *   otel_memory:alloc(ptr, size, weight)   a block that was sampled: its address, the size asked for, how many bytes it
 *   stands for otel_memory:free(ptr)                  one of those is about to be freed
 *
 * The profiler calls these for its samples. A probe is a no-operation instruction, which a tracer replaces; an ELF note
 * in the format of SystemTap says where it is, where its arguments are, and where its semaphore is: a number of
 * tracers, which the kernel keeps. As long as that is 0 a call is a load and a branch.
 */
#ifndef HAK_OBSERVE_PROBES_H
#define HAK_OBSERVE_PROBES_H

#include "base/platform.h"

void hak_probe_alloc(const void *block, size_t size, uint64_t weight);
void hak_probe_free(const void *block);

#endif
