/* Policy: a small text that says where the knobs stand, for which program, and why. `hakmem learn` writes it. Pure:
 * text in, values out.
 *
 *     hakmem policy 1
 *     version 0.2.0                 of hakmem
 *     program 5f3a...               its build id, or "any"
 *     knob decay_ms 4000            any number of these,
 *     class 2048 64                 of these (block size, slots of a bin),
 *     evidence ...                  and of these, which mean nothing here
 *     end 9ae16a3b2f90404f          the last line; the sum of all before it may be left out
 */
#ifndef HAK_CONTROL_POLICY_H
#define HAK_CONTROL_POLICY_H

#include "base/format.h"
#include "base/knobs.h"
#include "slab/size_class.h"

enum { HAK_POLICY_BYTES = 8192 };

struct hak_policy {
    bool has_knob[HAK_KNOB_COUNT];
    uint64_t knobs[HAK_KNOB_COUNT];
    uint16_t class_slots[HAK_CLASS_LIMIT]; /* 0: not set */
};

/* What the program is. */
struct hak_policy_program {
    const char *version;
    const unsigned char *build_id;
    size_t build_id_bytes;
};

/* Reads `text`, which ends with NUL. NULL when all is well; else what is wrong, and `policy` is undefined. */
HAK_COLD const char *hak_policy_parse(const char *text, const struct hak_policy_program *program,
                                      struct hak_policy *policy);

/* The program's build id in hexadecimal, as a policy says it. */
HAK_COLD void hak_policy_add_id(struct hak_text *out, const struct hak_policy_program *program);

/* FNV-1a. */
HAK_COLD uint64_t hak_policy_sum(const char *text, size_t length);

#endif
