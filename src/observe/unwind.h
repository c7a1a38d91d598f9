/* How to get from a function to its caller where there is no frame pointer: by the tables that compilers write for
 * exceptions (.eh_frame, found by .eh_frame_hdr). They are a program for a small machine; what it says of one address
 * fits into a word.
 *
 * Nothing is allocated or locked, and no byte is read that is not known to be readable and in the module: tables that
 * are damaged, or say what is not understood here, end the stack.
 */
#ifndef HAK_OBSERVE_UNWIND_H
#define HAK_OBSERVE_UNWIND_H

#include "os/modules.h"

enum hak_unwind_kind {
    HAK_UNWIND_UNKNOWN,  /* no table tells */
    HAK_UNWIND_END,      /* there is no caller, or none that could be found */
    HAK_UNWIND_BY_STACK, /* the frame ends so many words above the stack pointer */
    HAK_UNWIND_BY_FRAME, /* above the frame pointer */
    HAK_UNWIND_AT_FRAME  /* where the word says that lies so many words above the frame pointer; the caller's frame
                            pointer is saved where this one points to */
};

/* Words are of 8 bytes, and counted upwards: frames of up to 4 MiB. The end of the frame is what the caller's stack
 * pointer will be. */
struct hak_unwind_rule {
    uint64_t kind        : 4;
    int64_t words        : 20; /* from the register to the end of the frame, or to where that is said */
    int64_t caller_words : 20; /* from the end of the frame to the return address */
    int64_t frame_words  : 20; /* the same to the caller's frame pointer; 0: it is in its register still */
};
_Static_assert(sizeof(struct hak_unwind_rule) == sizeof(uint64_t), "it is kept in one atomic word");

/* What is right at an address of code. */
struct hak_unwind_rule hak_unwind_rule_at(uintptr_t code);

/* The same for a module that is known. */
struct hak_unwind_rule hak_unwind_rule_in(const struct hak_os_module *module, uintptr_t code);

/* True when a word, or less, can be read at `at`. Remembers in `page` which one can, for the next question; 0: none. */
bool hak_unwind_can_read(uintptr_t *page, uintptr_t at, size_t bytes);

#endif
