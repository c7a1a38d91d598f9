/* Stacks: return addresses of the calling thread. No lock, no memory, no call into the program: it may be used wherever
 * malloc may.
 *
 * The tables for exceptions tell the way from a function to its caller (observe/unwind.h). Where code has none, as what
 * is compiled at run time, it is taken to have a frame pointer. If it uses that register for something else, the chain
 * of frames leads astray: it is believed as long as it goes up the thread's own stack, in steps a frame can be large.
 * Who shows a stack cuts it at the first address that is no code. The innermost address is right in any case: it is
 * where the call of the function returns to whose frame the walk begins with.
 *
 * Nobody unmaps the stack that a thread runs on. On another one, as coroutines have, the kernel copies each word: its
 * end isn't known. A stack that lies a little below the thread's own is taken for that (hak_os_stack_end), and there a
 * frame that leads astray may still meet memory that another thread unmaps.
 *
 * What the tables say of an address is remembered, for all threads, in a table of a fixed size. A library that is
 * loaded where another one was is taken for that, at the same return addresses, until something else has their places.
 */
#ifndef HAK_OBSERVE_STACK_H
#define HAK_OBSERVE_STACK_H

#include "base/platform.h"

enum { HAK_STACK_MOST = 192 }; /* addresses */

/* Writes up to HAK_STACK_MOST return addresses, the innermost first, and returns how many: one at least. `frame` is
 * what __builtin_frame_address(0) says in a function that is still running. The kernel is asked about each page of the
 * stack, or on a coroutine's about each word. */
uint32_t hak_stack_walk(const void *frame, uintptr_t *addresses);

/* Where a function is that has called another: the address that is returned to, the stack pointer then, and what the
 * register of the frame pointer has. */
struct hak_stack_place {
    uintptr_t code, stack, frame;
};

/* The same from such a place, whose code is the first address. */
uint32_t hak_stack_walk_from(struct hak_stack_place place, uintptr_t *addresses);

/* To be used where a function of this library is about to call another that may begin a walk, and would not do so as
 * its last act: it gets a frame pointer, on that way only. */
#define HAK_WALKABLE() __asm__ volatile("" : : "r"(__builtin_frame_address(0)))

#endif
