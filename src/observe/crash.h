/* Crash reports (HAKMEM_CRASH=1): what a program that is about to crash has hit, and from where.
 *
 *     hakmem: SIGSEGV at 0x7f3c5a400050 in thread 4711 (worker) of process 4700
 *     hakmem: 0x7f3c5a400050 is 16 bytes into a free block of 64 bytes at 0x7f3c5a400040
 *     hakmem: rbx = 0x7f3c5a400040, the start of a free block of 64 bytes
 *     hakmem: stack, innermost first; ? only looks like a return address:
 *     hakmem:     0x55d0c0de1139 /usr/bin/program+0x1139
 *     hakmem:   ? 0x7f3c5b02718a /usr/lib/libc.so.6+0x2718a
 *     hakmem:   python: serve (/srv/program.py:12)
 *     hakmem: 0x7f3c5a400040 was allocated and freed, 60 bytes, from:
 *     hakmem:     0x55d0c0de1270 /usr/bin/program+0x1270
 *
 * Where the thread runs Python (observe/python.h) its functions follow the stack, the innermost first.
 *
 * The last part is there for blocks that the heap profile has sampled: all of them, with HAKMEM_HEAP_PROFILE=1 and
 * HAKMEM_HEAP_PROFILE_INTERVAL=1.
 *
 * Of a block between guards (HAKMEM_GUARD, region/guard.h) the report says where it was allocated and freed, and ends
 * with all of that as an object of JSON in one line. Without HAKMEM_CRASH=1 there are such reports only.
 *
 * The lines go to standard error part by part, so that if finding out more fails, the first is there. Then the crash
 * happens again as if hakmem had never seen it (os/signals.h, G1). A process makes one report: a thread that crashes
 * during it waits until it is written; a later crash, of a program whose handler went on, makes none. After a message
 * about misuse the report says where.
 *
 * Nothing here allocates, takes a lock or uses much of the stack. The stack is read through the kernel, so that a
 * broken one ends the report and nothing else. Return addresses are told for certain where functions keep frame
 * pointers; elsewhere the report shows what lies on the stack and follows a call, marked as a guess. Unwinding by
 * tables (libgcc's) is not done: it trusts the stack, and takes locks of the dynamic linker's that a crashed thread may
 * hold.
 */
#ifndef HAK_OBSERVE_CRASH_H
#define HAK_OBSERVE_CRASH_H

#include "pool/heap.h"

/* From now on, in this process and its children until they execute something else. The second asks for reports of what
 * has hit a guard (region/guard.h) alone; both may be called. */
void hak_crash_install(void);
void hak_crash_install_for_guards(void);

/* Gives the calling thread an alternate stack for its signals, unless it has one: without it, the overflow of a stack
 * can't be reported. It belongs to the heap, and is kept for the next thread that has it. */
HAK_COLD void hak_crash_enter_thread(struct hak_heap *heap);

/* To be called before the thread leaves the heap. */
void hak_crash_leave_thread(struct hak_heap *heap);

#endif
