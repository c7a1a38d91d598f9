#include "observe/stack.h"

#include "base/bits.h"
#include "os/os.h"

/* What a function begins its frame with, on x86-64 and aarch64. */
struct frame {
    uintptr_t caller, address;
};

static const uintptr_t least_code_address = 4096, largest_frame_bytes = 128 << 10;

/* User space has 48 bits; above them, processors of ARM sign return addresses. */
static const uintptr_t address_mask = ((uintptr_t)1 << 48) - 1;

/* Whether the frame at `at` can be read; all below `*readable_end`, from the first frame on, can. */
static bool can_read_to(uintptr_t *readable_end, uintptr_t at) {
    while (at + sizeof(struct frame) > *readable_end) {
        if (!hak_os_is_readable((const void *)*readable_end)) return false;
        *readable_end += hak_os_page_bytes();
    }
    return true;
}

/* Stack memory is read that no variable here owns: checkers of memory are not to look. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("address"), no_sanitize("thread"), noinline))
#endif
static struct frame
read_frame(uintptr_t at) {
    return *(const struct frame *)at;
}

uint32_t hak_stack_walk(const void *frame, uintptr_t *addresses) {
    uintptr_t at = (uintptr_t)frame, readable_end = hak_align_down(at, hak_os_page_bytes()) + hak_os_page_bytes();
    uint32_t depth = 0;
    while (depth < HAK_STACK_MOST && can_read_to(&readable_end, at)) {
        struct frame found = read_frame(at);
        found.address &= address_mask;
        if (found.address < least_code_address) break;
        addresses[depth++] = found.address;
        if (found.caller <= at || found.caller - at > largest_frame_bytes || found.caller % sizeof(uintptr_t) != 0)
            break;
        at = found.caller;
    }
    return depth;
}
