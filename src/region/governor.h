/* Governor of huge pages: whether to ask for one, by what those before have cost.
 *
 * Where free memory is in pieces, the kernel may look for a huge page for long, while the thread that touches it waits.
 * So the first touch of each huge page is timed, and that of a small page now and then. A huge page has lost when it
 * took twice as long as all its small pages would have. After the first loss small pages serve for a few SuperSlabs,
 * for it may have been another program's turn on the processor. After each further one they serve until the loss is a
 * twentieth of what they take, and twice as long for each loss more in a row.
 *
 * Any thread may call these at any time. Relaxed guesses, which two threads may make worse, not wrong. */
#ifndef HAK_REGION_GOVERNOR_H
#define HAK_REGION_GOVERNOR_H

#include "base/platform.h"

/* True when a huge page may be asked for. Who is told so asks, and says what it took. */
bool hak_governor_may_ask(void);

/* What the first touch of a huge page took, and that of a small one, in ns. */
void hak_governor_took(uint64_t huge_ns);
void hak_governor_took_small(uint64_t small_ns);

#endif
