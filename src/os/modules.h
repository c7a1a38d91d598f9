/* Modules: the program and its shared libraries, as they lie in memory. For whoever has an address of code and may not
 * wait for the dynamic linker's lock: no lock is taken and nothing allocated, at any moment, in a signal handler too.
 *
 * glibc answers by itself from 2.35 on (_dl_find_object). Elsewhere the list is read that debuggers read; the kernel
 * copies what is looked at there, since another thread may be unloading it.
 */
#ifndef HAK_OS_MODULES_H
#define HAK_OS_MODULES_H

#include "base/platform.h"

struct hak_os_module {
    uintptr_t start, end;  /* all that is mapped of it lies in there, with gaps perhaps */
    uintptr_t frame_table; /* .eh_frame_hdr; 0: it has none */
};

/* To be called once, before the program has threads: it takes that lock. Until then only the program itself is
 * known. */
void hak_os_modules_begin(void);

/* The module that has code there. False when there is none. */
bool hak_os_module_of(uintptr_t code, struct hak_os_module *module);

#endif
