#include "front/follow.h"

#include <errno.h>
#include <string.h>

#include "base/config.h"
#include "control/policy.h"
#include "front/process.h"
#include "hakmem/hakmem.h"
#include "os/os.h"
#include "pool/bin_size.h"

static const char unreadable[] = "can't be read";

/* ---- A policy's values ------------------------------------------------------------------------------------------- */

/* A knob that has a setting of its own, which says something else than the default: the setting wins. */
static bool is_set_apart(enum hak_knob_number knob) {
    bool has_setting =
        knob == HAK_KNOB_huge_page_mode || knob == HAK_KNOB_prefault_mode || knob == HAK_KNOB_lazy_purge_mode;
    return has_setting && hak_knob_get(knob) != hak_knob_table[knob].initial;
}

static void give_values(const struct hak_policy *policy) {
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) {
        enum hak_knob_number knob = (enum hak_knob_number)i;
        if (policy->has_knob[i] && !is_set_apart(knob)) hak_knob_give(knob, policy->knobs[i]);
    }
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        hak_atomic_store(&hak_class_slots[i], policy->class_slots[i], relaxed);
}

/* Reads an open file, and closes it. NULL when it is followed, else what is wrong with it. */
static const char *follow_file(int descriptor, const struct hak_policy_program *program) {
    static char text[HAK_POLICY_BYTES + 1];
    struct hak_policy policy;
    size_t length = 0, got = 1;
    while (got != 0 && length < sizeof text - 1)
        length += got = hak_os_read(descriptor, text + length, sizeof text - 1 - length);
    hak_os_close(descriptor);
    text[length] = '\0';
    if (!hak_process_initialize()) return "no memory";
    const char *problem = hak_policy_parse(text, program, &policy);
    if (problem == NULL) give_values(&policy);
    return problem;
}

/* ---- Where it lies ----------------------------------------------------------------------------------------------- */

enum place { USERS, SYSTEMS, PLACES };

/* The value of a variable that is an absolute path; else NULL. */
static const char *absolute_path_in(char *const *environment, const char *name) {
    const char *value = hak_config_variable(environment, name);
    return value != NULL && value[0] == '/' ? value : NULL;
}

/* False when there is no such place. */
static bool add_path(struct hak_text *path, enum place place, char *const *environment,
                     const struct hak_policy_program *program) {
    const char *configuration = absolute_path_in(environment, "XDG_CONFIG_HOME"),
               *home = absolute_path_in(environment, "HOME");
    if (place == SYSTEMS) hak_text_add(path, "/etc");
    else if (configuration != NULL) hak_text_add(path, "%s", configuration);
    else if (home != NULL) hak_text_add(path, "%s/.config", home);
    if (path->length == 0) return false;
    hak_text_add(path, "/hakmem/policies/");
    hak_policy_add_id(path, program);
    return !path->truncated;
}

static bool follow_found(char *const *environment, bool explains, const struct hak_policy_program *program,
                         struct hak_text *messages) {
    static char buffer[4096];
    if (program->build_id_bytes == 0) {
        if (explains) hak_text_add(messages, "hakmem: HAKMEM_POLICY=auto: the program has no build id\n");
        return false;
    }
    for (enum place place = USERS; place < PLACES; place++) {
        const char *problem;
        struct hak_text path = hak_text_in(buffer, sizeof buffer);
        if (!add_path(&path, place, environment, program)) continue;
        int descriptor = hak_os_open_regular_file(path.start, HAK_POLICY_BYTES, true, &problem);
        if (descriptor >= 0) problem = follow_file(descriptor, program);
        else if (explains && problem == NULL && errno != ENOENT && errno != ENOTDIR) problem = unreadable;
        if (problem != NULL) hak_text_add(messages, "hakmem: policy %s ignored: %s\n", path.start, problem);
        if (descriptor < 0 || problem != NULL) continue;
        if (explains) hak_text_add(messages, "hakmem: policy %s is followed\n", path.start);
        return true;
    }
    if (!explains) return false;
    hak_text_add(messages, "hakmem: HAKMEM_POLICY=auto: there is no policy for build id ");
    hak_policy_add_id(messages, program);
    hak_text_add(messages, "\n");
    return false;
}

bool hak_follow_policy(const char *setting, char *const *environment, bool explains, struct hak_text *messages) {
    unsigned char build_id[HAK_BUILD_ID_BYTES];
    struct hak_policy_program program = {hak_version(), build_id, hak_os_build_id(build_id, sizeof build_id)};
    if (strcmp(setting, "auto") == 0) return follow_found(environment, explains, &program, messages);
    const char *problem;
    int descriptor = hak_os_open_regular_file(setting, HAK_POLICY_BYTES, false, &problem);
    if (descriptor >= 0) problem = follow_file(descriptor, &program);
    else if (problem == NULL) problem = unreadable;
    if (problem != NULL) hak_text_add(messages, "hakmem: setting HAKMEM_POLICY=%s ignored: %s\n", setting, problem);
    return problem == NULL;
}
