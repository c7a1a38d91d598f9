#include "observe/landmarks.h"

#include "hakmem/hakmem.h"
#include "observe/profile.h"
#include "region/directory.h"
#include "region/mapping_cache.h"

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

__attribute__((used)) const struct hak_landmarks hak_landmarks = {
    .version = TEXT(HAK_VERSION_MAJOR) "." TEXT(HAK_VERSION_MINOR) "." TEXT(HAK_VERSION_PATCH),
    .layout = HAK_LAYOUT,
    .ranges = hak_ranges,
    .heaps = &hak_heaps,
    .page_map = hak_page_map,
    .directory = &hak_directory_root,
    .kept_mappings = &hak_kept_mappings,
    .profile = &hak_profile_tables,
};

/* Length of the owner's name, length of the number, type; owner; the number. */
__asm__(".pushsection .note.hakmem, \"a\", %note\n"
        ".balign 4\n"
        ".long 7, 8, 0x68616b31\n"
        ".asciz \"hakmem\"\n"
        ".balign 4\n"
        ".quad hak_landmarks - .\n"
        ".popsection\n");
_Static_assert(HAK_LANDMARKS_NOTE == 0x68616b31, "as in the note");
