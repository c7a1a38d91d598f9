/* Notes of ELF files. */
#ifndef HAK_OS_NOTES_H
#define HAK_OS_NOTES_H

#include <link.h>
#include <string.h>

#include "base/bits.h"
#include "base/platform.h"

/* The content of the first of these notes that is of that owner and type, and how long it is; NULL for none. */
static inline const void *hak_os_find_note(const void *notes, size_t bytes, const char *owner, uint32_t type,
                                           size_t *content_bytes) {
    uintptr_t at = (uintptr_t)notes, end = at + bytes;
    while (end - at >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        uintptr_t name = at + sizeof *note, content = name + hak_align_up(note->n_namesz, 4);
        if (content + note->n_descsz > end) return NULL;
        if (note->n_type == type && note->n_namesz == strlen(owner) + 1 &&
            memcmp((const void *)name, owner, note->n_namesz) == 0) {
            *content_bytes = note->n_descsz;
            return (const void *)content;
        }
        at = content + hak_align_up(note->n_descsz, 4);
        if (at > end) return NULL;
    }
    return NULL;
}

/* The build id that is in these notes, as the linker wrote it, up to `capacity` bytes; returns how many, 0 for none. */
static inline size_t hak_os_build_id_in(const void *notes, size_t bytes, unsigned char *id, size_t capacity) {
    size_t found;
    const void *content = hak_os_find_note(notes, bytes, "GNU", NT_GNU_BUILD_ID, &found);
    if (content == NULL) return 0;
    if (found > capacity) found = capacity;
    memcpy(id, content, found);
    return found;
}

#endif
