/* ACE, the adaptive control engine: measures what allocation costs, lets the learner choose, and turns the knobs.
 *
 * Everything here is the background thread's, which calls hak_ace_step when it wakes up, or that of the misses of a
 * program with one thread, which has none (front/background.c): one acts at a time, and nothing happens while the
 * program sleeps. What others ask for is one number, taken at the end of a period.
 *
 *   A1  A knob is turned to its start, or to one of its arms, within its bounds (hak_knob_turn); no other one ever is.
 *   A2  A knob that somebody has given a value (hak_knob_give) is his from then on.
 *   A3  While memory is tight, or the program sleeps, the knobs stand as was learned; where no thread sees it sleep,
 *       some misses after it wakes. After a fork they stand as the program began, or as somebody has given them.
 */
#ifndef HAK_CONTROL_ACE_H
#define HAK_CONTROL_ACE_H

#include "base/config.h"
#include "base/knobs.h"

struct hak_ace_settings {
    bool is_enabled, is_pinned; /* pinned: a policy says where the knobs stand */
    bool may_ask; /* what the program costs may be asked of the kernel: somebody has asked for the thread or a goal */
    enum hak_goal goal;
    uint64_t profile, fast_ms, slow_ms;
};

/* Before main, after the knobs have been set as profile and policy say. */
void hak_ace_configure(const struct hak_ace_settings *settings);

/* The values that a knob is given, at most HAK_ACE_ARMS; how many they are, 0 where it is not turned. */
enum { HAK_ACE_ARMS = 12 };
HAK_COLD uint32_t hak_ace_arms(enum hak_knob_number knob, uint64_t values[HAK_ACE_ARMS]);

/* Why the controller leaves a knob alone for as long as the process runs; NULL when it may turn it. */
HAK_COLD const char *hak_ace_refusal(enum hak_knob_number knob);

/* From any thread: where a knob stands, but for what is on trial. */
HAK_COLD uint64_t hak_ace_chosen(enum hak_knob_number knob);

/* From any thread: one of these values is to be tried against the chosen one, and kept only if it is shown to be
 * better. False when it is none of them. A knob that is somebody else's by then is left alone. */
HAK_COLD bool hak_ace_try(enum hak_knob_number knob, uint64_t value);

/* How long until the next step is due, at most so long: less only while arms are being tried. */
uint64_t hak_ace_wait_ms(uint64_t most_ms);

/* To be called when a step is due: does something when a period is over. With `times` slow paths are timed, of which
 * some take a time stamp of the processor's; without, what they cost is not known, and counts as nothing. It and
 * hak_ace_rest compute with doubles: in a thread of the program between hak_floating_begin and hak_floating_end. */
HAK_COLD void hak_ace_step(bool times);

/* The program rests, or the thread ends: what was measured of this period is void. */
HAK_COLD void hak_ace_rest(void);

/* In a child after fork: all begins anew. */
void hak_ace_after_fork(void);

#endif
