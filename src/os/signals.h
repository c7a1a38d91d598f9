/* Signals that hakmem handles when a setting asks for it: those a program crashes with, and one for statistics.
 *
 *   G1  A crash that is reported happens again. When the report is written, what the program or the system had set for
 *       the signal before is put back, and the handler returns: a refused access is made once more, a signal that was
 *       sent is sent once more, with all it carried. So the program's own handler, the exit status and the core dump
 *       are what they are without hakmem. A signal that is not reported is handed to the program's handler, with the
 *       mask and on the stack that this was set with; the next one comes to hakmem again. Where there is none, it is as
 *       above.
 *   G2  While hakmem's handler of a crash runs, all signals of its thread are blocked. A crash in it therefore ends the
 *       process by the signal's default action.
 *   G3  A program that sets a handler of its own later replaces ours. If that one calls ours, as those of runtimes do,
 *       what ours puts back is what was there before it, not the program's: the default action, mostly. Where the
 *       program takes what returns for handled, that is how it ends, with no report of its own. A signal that is
 *       ignored stays ignored.
 *
 * Handlers run on the alternate stack of the thread that is hit, if it has one: where a stack has overflowed there is
 * no room.
 */
#ifndef HAK_OS_SIGNALS_H
#define HAK_OS_SIGNALS_H

#include "base/platform.h"

/* A signal as it arrived. */
struct hak_os_signal {
    const char *name; /* "SIGSEGV" */
    enum hak_signal_cause {
        HAK_SIGNAL_ACCESS,  /* `address` could not be accessed */
        HAK_SIGNAL_NOWHERE, /* an access to an address that no memory can have; which is not told */
        HAK_SIGNAL_SENT,    /* by `sender` */
    } cause;
    uintptr_t address;
    int sender; /* a process */
    uintptr_t instruction, stack,
        frame;           /* where the thread was: program counter, stack and frame pointer. 0: unknown */
    const void *context; /* for hak_os_register */
};

/* Calls `report` at SIGSEGV, SIGBUS and SIGABRT from now on, each until it returns true: it has made a report (G1). */
void hak_os_catch_crashes(bool (*report)(const struct hak_os_signal *arrived));

/* Calls `act` at a signal; calls that it interrupts are begun anew where the kernel can. False when the program has a
 * handler for it, or ignores it: then nothing was done. */
bool hak_os_on_signal(int number, void (*act)(void));

/* General registers as they were, from index 0 on: false when there are no more. */
bool hak_os_register(const struct hak_os_signal *arrived, uint32_t index, const char **name, uintptr_t *value);

/* A return address as it was before the processor signed it. */
uintptr_t hak_os_strip_address(uintptr_t address);

/* True when the instruction before `address` is a call: then it may be a return address. */
bool hak_os_follows_call(uintptr_t address);

/* An alternate stack with a page below it that can't be accessed. NULL when there is no memory. */
void *hak_os_make_signal_stack(void);

/* Gives one to the calling thread, unless it has one already; and takes it away, if it has this one still. */
void hak_os_set_signal_stack(void *stack);
void hak_os_unset_signal_stack(const void *stack);

#endif
