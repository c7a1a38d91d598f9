/* Governor of huge pages: whether to ask for one, by what those before have cost.
 *
 * Where free memory is in pieces, the kernel may look for a huge page for long, while the thread that touches it waits.
 * So the first touch of each huge page is timed. The clock is the coarse one, which no sandbox and no processor's flag
 * forbids: it goes on by ticks of 1 to 10 ms, so a single touch tells little, and the sum of several is right on the
 * average. Each touch may take a millisecond; what it takes more is a debt, which touches that take less pay off.
 *
 * When the debt is more than 10 ms, huge pages have lost. After the first loss small pages serve for a few SuperSlabs,
 * for it may have been other programs' turns on the processor. After each further one they serve until the loss is a
 * twentieth of what they take, and twice as long for each loss more in a row. Some touches one after the other that
 * leave no debt end the row: four, and one more for each 16 ms of the last loss.
 *
 * Any thread may call these at any time. Relaxed guesses, which two threads may make worse, not wrong. */
#ifndef HAK_REGION_GOVERNOR_H
#define HAK_REGION_GOVERNOR_H

#include "base/platform.h"

/* True when a huge page may be asked for. Who is told so asks, and says what it took. */
bool hak_governor_may_ask(void);

/* What the first touch of a huge page took, in ms. */
void hak_governor_took(uint64_t huge_ms);

#endif
