#include "control/policy.h"

#include <string.h>

#include "pool/bin_size.h"

static const char damaged[] = "damaged";

uint64_t hak_policy_sum(const char *text, size_t length) {
    uint64_t sum = 0xcbf29ce484222325;
    for (size_t i = 0; i < length; i++) sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3;
    return sum;
}

void hak_policy_add_id(struct hak_text *out, const struct hak_policy_program *program) {
    for (size_t i = 0; i < program->build_id_bytes; i++)
        hak_text_add(out, "%s%lx", program->build_id[i] < 16 ? "0" : "", (unsigned long)program->build_id[i]);
}

/* If the text at *at begins with `word`, goes on behind it. */
static bool take(const char **at, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0) return false;
    *at += length;
    return true;
}

static bool take_number(const char **at, uint64_t *number) {
    const char *start = *at;
    *number = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        if (*number > (UINT64_MAX - 9) / 10) return false;
        *number = *number * 10 + (uint64_t)(**at - '0');
    }
    return *at != start;
}

static bool take_digits(const char **at, uint32_t digits, uint64_t *number) {
    *number = 0;
    for (; digits > 0; digits--, ++*at) {
        const char *digit = **at == '\0' ? NULL : strchr("0123456789abcdef", **at);
        if (digit == NULL) return false;
        *number = *number << 4 | (uint64_t)(digit - "0123456789abcdef" < 10 ? **at - '0' : **at - 'a' + 10);
    }
    return true;
}

/* "program ..." up to the end of the line. */
static const char *check_program(const char **at, const struct hak_policy_program *program) {
    if (take(at, "program any\n")) return NULL;
    if (!take(at, "program ")) return damaged;
    for (size_t i = 0; i < program->build_id_bytes; i++) {
        uint64_t byte;
        if (!take_digits(at, 2, &byte) || byte != program->build_id[i]) return "made for another program";
    }
    return program->build_id_bytes > 0 && take(at, "\n") ? NULL : "made for another program";
}

static bool take_knob(const char **at, struct hak_policy *policy) {
    uint32_t knob = hak_knob_find(*at, strcspn(*at, " \n"));
    if (knob == HAK_KNOB_COUNT) return false;
    *at += strcspn(*at, " \n");
    policy->has_knob[knob] = true;
    return take(at, " ") && take_number(at, &policy->knobs[knob]) &&
           policy->knobs[knob] >= hak_knob_table[knob].lowest && policy->knobs[knob] <= hak_knob_table[knob].highest &&
           take(at, "\n");
}

static bool take_class(const char **at, struct hak_policy *policy) {
    uint64_t bytes, slots;
    if (!take_number(at, &bytes) || !take(at, " ") || !take_number(at, &slots) || !take(at, "\n")) return false;
    if (slots < HAK_LEAST_SLOTS || slots > HAK_CLASS_MOST_SLOTS) return false;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        if (hak_size_classes[i].block_bytes == bytes) {
            policy->class_slots[i] = (uint16_t)slots;
            return true;
        }
    return false;
}

/* What comes after "end". */
static bool is_whole(const char *at, const char *text, size_t length) {
    uint64_t sum;
    if (take(&at, " ") && (!take_digits(&at, 16, &sum) || sum != hak_policy_sum(text, length))) return false;
    return strcmp(at, "\n") == 0;
}

const char *hak_policy_parse(const char *text, const struct hak_policy_program *program, struct hak_policy *policy) {
    const char *at = text;
    memset(policy, 0, sizeof *policy);
    if (!take(&at, "hakmem policy 1\n")) return "not a policy";
    if (!take(&at, "version ")) return damaged;
    if (!take(&at, program->version) || !take(&at, "\n")) return "made for another version of hakmem";
    const char *problem = check_program(&at, program);
    while (problem == NULL) {
        const char *line = at;
        if (take(&at, "end")) return is_whole(at, text, (size_t)(line - text)) ? NULL : damaged;
        bool is_good = take(&at, "knob ") ? take_knob(&at, policy) : take(&at, "class ") && take_class(&at, policy);
        if (!is_good && take(&at, "evidence ")) {
            at += strcspn(at, "\n");
            is_good = take(&at, "\n");
        }
        if (!is_good) problem = damaged;
    }
    return problem;
}
