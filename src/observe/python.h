/* Functions of a Python program that the calling thread is in: for the heap profile and crash reports, whose addresses
 * tell of the interpreter's loop only. CPython 3.11 to 3.13.
 *
 *   Y1  The thread's frames are read where the interpreter has them, by offsets that each version has. No lock, no
 *       memory, and no call into the program but the one that says which state is the thread's. It may be used wherever
 *       malloc may, and in a signal handler.
 *   Y2  The kernel is asked about each page before it is read, and an object is read if its type is what is expected.
 *       Where one of the two fails the list ends. A list that leads in a circle ends after so many frames.
 *   Y3  What a thread's frames refer to stays while it is in them, whether it has the interpreter's lock or not. The
 *       interpreter's end is the exception: it takes their states from threads that still run. So there are no frames
 *       once it has begun.
 */
#ifndef HAK_OBSERVE_PYTHON_H
#define HAK_OBSERVE_PYTHON_H

#include "base/format.h"
#include "base/platform.h"

enum { HAK_PYTHON_TEXT_BYTES = 512, HAK_PYTHON_PAGES = 32 };

struct hak_python_frame {
    bool is_innermost;  /* of the functions that one call of the interpreter's loop runs, without C between them */
    uint64_t identity;  /* of the function, and of where it is in it: a number of all that tells it from others */
    uintptr_t code, at; /* the same as addresses */
    uint32_t line;      /* that it is at */
    char text
        [HAK_PYTHON_TEXT_BYTES]; /* the function's qualified name, a tab, its file: UTF-8 without control characters.
                                         A long name is cut at its end, a long path at its beginning. */
};

/* Looks for an interpreter among the libraries that are loaded now; the first call alone does. Waits for the dynamic
 * linker's lock. */
HAK_COLD void hak_python_look_for(void);

/* It has found one. */
bool hak_python_is_there(void);

/* Adds why there are no frames. False, with nothing added, where there is no interpreter, or frames are told. */
HAK_COLD bool hak_python_add_refusal(struct hak_text *text);

/* An interpreter: where its version keeps what is read, and the addresses of three of its types. */
struct hak_python_layout;
struct hak_python {
    const struct hak_python_layout *layout;
    uintptr_t code_type, string_type, bytes_type;
};

/* As Py_Version has it. NULL when it isn't known. */
const struct hak_python_layout *hak_python_layout_of(unsigned long version);

struct hak_python_walk {
    const struct hak_python *python;
    uintptr_t frame; /* the next one; 0: there is none */
    uint32_t steps;
    bool is_innermost, has_failed;
    uintptr_t pages[HAK_PYTHON_PAGES]; /* that can be read; 0 for none */
    uintptr_t eight_at;                /* bytes that were read last, and from where */
    uint64_t eight;
};

/* From the innermost function of the calling thread outwards; none where it runs no Python. The second begins at a
 * thread's state (PyThreadState). */
HAK_COLD struct hak_python_walk hak_python_begin(void);
HAK_COLD struct hak_python_walk hak_python_begin_at(const struct hak_python *python, uintptr_t thread_state);

/* False when there is no further one. The first leaves line and text out, which the second adds: they take a hundred
 * times as long. The third does both. */
HAK_COLD bool hak_python_step(struct hak_python_walk *walk, struct hak_python_frame *frame);
HAK_COLD bool hak_python_describe(struct hak_python_walk *walk, struct hak_python_frame *frame);
HAK_COLD bool hak_python_next(struct hak_python_walk *walk, struct hak_python_frame *frame);

#endif
