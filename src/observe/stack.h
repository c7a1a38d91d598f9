/* Stacks: return addresses of the calling thread, by frame pointers. No lock, no memory, no call into the program, no
 * table of the dynamic linker: it may be used wherever malloc may.
 *
 * Code that was compiled without frame pointers uses their register for something else. So a chain of frames is
 * believed as long as it goes up the stack, in steps a frame can be large, through memory that can be read; who shows a
 * stack cuts it at the first address that is no code. The innermost address is right in any case: it is where the call
 * of the function returns to whose frame the walk begins with.
 */
#ifndef HAK_OBSERVE_STACK_H
#define HAK_OBSERVE_STACK_H

#include "base/platform.h"

enum { HAK_STACK_MOST = 64 }; /* addresses */

/* Writes up to HAK_STACK_MOST return addresses, the innermost first, and returns how many: one at least. `frame` is
 * what __builtin_frame_address(0) says in a function that is still running. The kernel is asked about each page of the
 * stack. */
uint32_t hak_stack_walk(const void *frame, uintptr_t *addresses);

/* To be used where a function of this library is about to call another that may begin a walk, and would not do so as
 * its last act: it gets a frame pointer, on that way only. */
#define HAK_WALKABLE() __asm__ volatile("" : : "r"(__builtin_frame_address(0)))

#endif
