#include "observe/landmarks.h"

#include "base/version.h"
#include "observe/profile.h"
#include "os/channel.h"
#include "region/directory.h"
#include "region/mapping_cache.h"

__attribute__((used)) const struct hak_landmarks hak_landmarks = {
    .version = HAK_VERSION_TEXT,
    .wish = &hak_channel_wish,
    .layout = HAK_LAYOUT,
    .ranges = hak_ranges,
    .heaps = &hak_heaps,
    .directory = &hak_directory_root,
    .kept_mappings = &hak_kept_mappings,
    .profile = &hak_profile_tables,
    .is_secure = HAK_SECURE,
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
