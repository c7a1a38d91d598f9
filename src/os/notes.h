/* Notes of ELF files. */
#ifndef HAK_OS_NOTES_H
#define HAK_OS_NOTES_H

#include <link.h>
#include <string.h>

#include "base/bits.h"
#include "base/platform.h"

/* The build id that is in these notes, as the linker wrote it, up to `capacity` bytes; returns how many, 0 for none. */
static inline size_t hak_os_build_id_in(const void *notes, size_t bytes, unsigned char *id, size_t capacity) {
    uintptr_t at = (uintptr_t)notes, end = at + bytes;
    while (end - at >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        uintptr_t name = at + sizeof *note, content = name + hak_align_up(note->n_namesz, 4);
        if (content + note->n_descsz > end) return 0;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp((const void *)name, "GNU", 4) == 0) {
            size_t found = note->n_descsz < capacity ? note->n_descsz : capacity;
            memcpy(id, (const void *)content, found);
            return found;
        }
        at = content + hak_align_up(note->n_descsz, 4);
        if (at > end) return 0;
    }
    return 0;
}

#endif
