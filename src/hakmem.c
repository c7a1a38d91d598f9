/* hakmem, all of it, bottom-up: the release is this one file. The order is the architecture; each layer includes
 * itself and lower ones only. docs/architecture.md tells what happens in which. */

/* base: text, settings, counters, knobs. No system calls, no memory. */
#include "base/version.c"
#include "base/format.c"
#include "base/knobs.c"
#include "base/profile.c"
#include "base/experiment.c"
#include "base/config.c"
#include "base/counters.c"
#include "base/memory.c"

/* os: the kernel. No policy. */
#include "os/libc.c"
#include "os/descriptors.c"
#include "os/linux.c"
#include "os/inspect.c"
#include "os/modules.c"
#include "os/signals.c"
#include "os/channel.c"
#include "os/memory_limit.c"

/* slab: blocks of one class, and their bits. */
#include "slab/size_class.c"
#include "slab/slab.c"

/* region: which addresses are ours. */
#include "region/directory.c"
#include "region/guard.c"
#include "region/in_hand.c"
#include "region/generation.c"
#include "region/allowance.c"
#include "region/owed.c"
#include "region/range.c"
#include "region/hints.c"
#include "region/units.c"
#include "region/density.c"
#include "region/governor.c"
#include "region/heap_count.c"
#include "region/page_policy.c"
#include "region/mapping_cache.c"
#include "region/decay.c"
#include "region/large.c"

/* pool: who gets which slab. */
#include "pool/canary.c"
#include "pool/partial_set.c"
#include "pool/bin.c"
#include "pool/bin_size.c"
#include "pool/freed.c"
#include "pool/held.c"
#include "pool/quarantine.c"
#include "pool/vacant.c"
#include "pool/heap.c"
#include "pool/pool.c"
#include "pool/drain.c"
#include "pool/fork.c"
#include "pool/purge.c"
#include "pool/shrink.c"
#include "pool/sparse.c"

/* observe: a view of it all. */
#include "observe/unwind.c"
#include "observe/stack.c"
#include "observe/profile.c"
#include "observe/stats.c"
#include "observe/metrics.c"
#include "observe/address.c"
#include "observe/crash.c"
#include "observe/landmarks.c"
#include "observe/probes.c"

/* control: which way the knobs are turned. */
#include "control/bandit.c"
#include "control/rating.c"
#include "control/trial.c"
#include "control/phase.c"
#include "control/reward.c"
#include "control/life_cycle.c"
#include "control/policy.c"
#include "control/ace.c"

/* front: what a thread touches. */
#include "front/routes.c"
#include "front/miss.c"
#include "front/tight.c"
#include "front/statistics.c"
#include "front/requests.c"
#include "front/service.c"
#include "front/meter.c"
#include "front/background.c"
#include "front/follow.c"
#include "front/process.c"
#include "front/thread.c"

/* api: names and argument rules. */
#include "api/malloc.c"
#include "api/mallocx.c"
#include "api/cxx.c"
#include "api/tokens.c"
#include "api/at_exit.c"
