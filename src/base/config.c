#include "base/config.h"

#include <signal.h>
#include <string.h>

#include "base/experiment.h"
#include "base/profile.h"

struct option {
    const char *name;
    enum hak_option_kind kind;
    uint64_t fallback;
    size_t offset; /* of the field in struct hak_config */
    const char *help;
};

static const struct option option_table[] = {
#define HAK_OPTION(field, name, kind, fallback, help)                                                                  \
    {name, HAK_OPTION_##kind, fallback, offsetof(struct hak_config, field), help},
#include "base/config.def"
#undef HAK_OPTION
};

enum { OPTION_COUNT = sizeof option_table / sizeof option_table[0] };

static const struct {
    const char *name;
    const char *now; /* the setting that takes its value; NULL: none */
    const char *text;
} former_table[] = {
#define HAK_FORMER(name, now, text) {name, now, text},
#include "base/former.def"
#undef HAK_FORMER
};

enum { FORMER_COUNT = sizeof former_table / sizeof former_table[0] };

_Static_assert(FORMER_COUNT <= 64, "a bit for each");

static const char *const kind_expected[] = {
    "0 or 1",
    "a number of bytes above 0, such as 4096 or 64K",
    "a number",
    "off, auto or on",
    "off, text[:FILE] or json[:FILE]",
    "none, HUP, USR1, USR2 or 35 to 64",
    "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds",
    "a number of milliseconds, 10 to 3600000",
    "profile, balanced, speed, memory or latency",
    HAK_PROFILE_NAMES,
    "0, 1 or auto",
    "none, or the name of a file",
    "0, 1 or 1:FILE",
    "0, 1, or 1/N with N from 1 to 1000000000",
    "none, or NAME:SHARE%:KNOB=NUMBER[:KNOB=NUMBER...], SHARE from 0.01 to 100"};

static uint64_t *field_of(struct hak_config *config, const struct option *option) {
    return (uint64_t *)(void *)((char *)config + option->offset);
}

bool hak_config_parse_number(const char *value, uint64_t *out) {
    uint64_t number = 0;
    const char *at = value;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (number > (UINT64_MAX - 9) / 10) return false;
        number = number * 10 + (uint64_t)(*at - '0');
    }
    if (at == value) return false;
    uint32_t shift = *at == 'K' ? 10 : *at == 'M' ? 20 : *at == 'G' ? 30 : 0;
    if (shift != 0) at++;
    if (*at != '\0' || number > UINT64_MAX >> shift) return false;
    *out = number << shift;
    return true;
}

static bool parse_bytes(const char *value, uint64_t *out) {
    uint64_t number;
    if (!hak_config_parse_number(value, &number) || number == 0) return false;
    *out = number;
    return true;
}

enum { LEAST_MS = 10, MOST_MS = 3600000 };

static bool parse_ms(const char *value, uint64_t *out) {
    uint64_t number;
    for (const char *at = value; *at != '\0'; at++)
        if (*at < '0' || *at > '9') return false;
    if (!hak_config_parse_number(value, &number) || number < LEAST_MS || number > MOST_MS) return false;
    *out = number;
    return true;
}

/* Lists of words end with NULL; a value is the number of its word. */
static const char *const mode_names[] = {"off", "auto", "on", NULL};
static const char *const goal_names[] = {"profile", "balanced", "speed", "memory", "latency", NULL};

static bool parse_word(const char *value, const char *const *words, uint64_t *out) {
    for (size_t i = 0; words[i] != NULL; i++) {
        if (strcmp(value, words[i]) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

static bool parse_choice(const char *value, uint64_t *out) {
    if (strcmp(value, "auto") == 0) *out = HAK_CHOICE_AUTO;
    else if ((value[0] == '0' || value[0] == '1') && value[1] == '\0') *out = (uint64_t)(value[0] - '0');
    else return false;
    return true;
}

static bool parse_stats(const char *value, uint64_t *out, const char **file) {
    if (strcmp(value, "off") == 0) {
        *out = HAK_STATS_OFF;
        *file = NULL;
        return true;
    }
    size_t word = strcspn(value, ":");
    if (word != 4 || (value[word] == ':' && value[word + 1] == '\0')) return false;
    if (memcmp(value, "text", word) == 0) *out = HAK_STATS_TEXT;
    else if (memcmp(value, "json", word) == 0) *out = HAK_STATS_JSON;
    else return false;
    *file = value[word] == ':' ? value + word + 1 : NULL;
    return true;
}

static const struct {
    const char *name;
    uint64_t number;
} signal_names[] = {{"none", 0}, {"HUP", SIGHUP}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};

enum { SIGNAL_NAMES = sizeof signal_names / sizeof signal_names[0], REAL_TIME_FIRST = 35, REAL_TIME_LAST = 64 };

/* A name, or a number that C libraries leave to programs. */
static bool parse_signal(const char *value, uint64_t *out) {
    for (size_t i = 0; i < SIGNAL_NAMES; i++) {
        if (strcmp(value, signal_names[i].name) != 0) continue;
        *out = signal_names[i].number;
        return true;
    }
    uint64_t number;
    if (!hak_config_parse_number(value, &number) || number < REAL_TIME_FIRST || number > REAL_TIME_LAST) return false;
    *out = number;
    return true;
}

static void add_signal(struct hak_text *out, uint64_t number) {
    for (size_t i = 0; i < SIGNAL_NAMES; i++)
        if (signal_names[i].number == number) {
            hak_text_add(out, "%s", signal_names[i].name);
            return;
        }
    hak_text_add(out, "%lu", (unsigned long)number);
}

_Static_assert(HAK_KNOB_COUNT <= 64, "a bit for each knob");

/* Of NAME=NUMBER, `length` bytes. False where it is none, or beyond the knob's bounds; *knob is HAK_KNOB_COUNT where
 * there is no such knob. */
static bool parse_knob(const char *piece, size_t length, enum hak_knob_number *knob, uint64_t *value) {
    size_t name_length = strcspn(piece, "=:");
    char number[24];
    *knob = hak_knob_find(piece, name_length);
    if (*knob == HAK_KNOB_COUNT || piece[name_length] != '=' || length - name_length > sizeof number) return false;
    memcpy(number, piece + name_length + 1, length - name_length - 1);
    number[length - name_length - 1] = '\0';
    const struct hak_knob_row *row = &hak_knob_table[*knob];
    return hak_config_parse_number(number, value) && *value >= row->lowest && *value <= row->highest;
}

static bool parse_knobs(const char *value, uint64_t *knobs, uint64_t *knob_values) {
    uint64_t given = 0, values[HAK_KNOB_COUNT] = {0};
    for (;; value++) {
        size_t length = strcspn(value, ":");
        enum hak_knob_number knob;
        uint64_t number;
        if (!parse_knob(value, length, &knob, &number)) return false;
        values[knob] = number;
        given |= UINT64_C(1) << knob;
        value += length;
        if (*value == '\0') break;
    }
    *knobs = given;
    memcpy(knob_values, values, sizeof values);
    return true;
}

/* Which knob it is that parse_knobs did not take, and what it takes. */
static void add_wrong_knob(struct hak_text *out, const char *value) {
    enum hak_knob_number knob;
    uint64_t number;
    size_t length;
    while (parse_knob(value, length = strcspn(value, ":"), &knob, &number) && value[length] == ':') value += length + 1;
    if (knob < HAK_KNOB_COUNT) {
        const struct hak_knob_row *row = &hak_knob_table[knob];
        hak_text_add(out, "; %s takes %lu to %lu", row->name, (unsigned long)row->lowest, (unsigned long)row->highest);
    } else if ((length = strcspn(value, "=:")) != 0) {
        hak_text_add(out, "; there is no knob ");
        for (size_t i = 0; i < length; i++) hak_text_add(out, "%c", value[i]);
    }
}

/* Of a percentage with two decimals at most, and the sign behind it: hundredths. NULL when it is none; else what comes
 * after it. */
static const char *parse_share(const char *at, uint64_t *out) {
    uint64_t hundredths = 0;
    int decimals = -1; /* before the point */
    const char *start = at;
    for (; (*at >= '0' && *at <= '9' && decimals < 2) || (*at == '.' && decimals < 0); at++) {
        if (*at != '.') hundredths = hundredths * 10 + (uint64_t)(*at - '0');
        if (*at == '.' || decimals >= 0) decimals++;
        if (hundredths > HAK_EXPERIMENT_WHOLE) return NULL;
    }
    if (at == start || *start == '.' || at[-1] == '.' || *at != '%') return NULL;
    for (; decimals < 2; decimals++)
        if (decimals >= 0) hundredths *= 10;
    *out = hundredths;
    return at + 1;
}

static bool is_name(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        bool is_letter = (text[i] | 32) >= 'a' && (text[i] | 32) <= 'z';
        if (!is_letter && !(text[i] >= '0' && text[i] <= '9') && strchr("-_.", text[i]) == NULL) return false;
    }
    return length > 0 && length <= HAK_EXPERIMENT_NAME_BYTES;
}

static bool parse_experiment(const char *value, struct hak_config *config) {
    size_t length = strcspn(value, ":");
    uint64_t share = 0;
    const char *at = value[length] == ':' && is_name(value, length) ? parse_share(value + length + 1, &share) : NULL;
    if (at == NULL || *at != ':' || share == 0 || share > HAK_EXPERIMENT_WHOLE ||
        !parse_knobs(at + 1, &config->experiment_knobs, config->experiment_values))
        return false;
    config->experiment = (uintptr_t)value;
    config->experiment_share = share;
    return true;
}

static bool parse_heap_profile(const char *value, uint64_t *out, const char **file) {
    if ((value[0] != '0' && value[0] != '1') ||
        (value[1] != '\0' && (value[0] == '0' || value[1] != ':' || value[2] == '\0')))
        return false;
    *out = (uint64_t)(value[0] - '0');
    *file = value[1] == ':' ? value + 2 : NULL;
    return true;
}

enum { USUAL_GUARD_SHARE = 5000 };

static bool parse_guard(const char *value, uint64_t *out) {
    const struct hak_knob_row *row = &hak_knob_table[HAK_KNOB_guard_share];
    uint64_t number = value[0] == '0' ? 0 : USUAL_GUARD_SHARE;
    if (value[0] == '1' && value[1] == '/') {
        if (value[2 + strspn(value + 2, "0123456789")] != '\0') return false; /* no K and M, as bytes have */
        if (!hak_config_parse_number(value + 2, &number) || number == 0 || number > row->highest) return false;
    } else if ((value[0] != '0' && value[0] != '1') || value[1] != '\0') {
        return false;
    }
    *out = number;
    return true;
}

static bool parse_value(struct hak_config *config, const struct option *option, const char *value) {
    uint64_t *field = field_of(config, option);
    switch (option->kind) {
    case HAK_OPTION_BOOL:
        if ((value[0] != '0' && value[0] != '1') || value[1] != '\0') return false;
        *field = (uint64_t)(value[0] - '0');
        return true;
    case HAK_OPTION_BYTES: return parse_bytes(value, field);
    case HAK_OPTION_NUMBER: return hak_config_parse_number(value, field);
    case HAK_OPTION_MODE: return parse_word(value, mode_names, field);
    case HAK_OPTION_GOAL: return parse_word(value, goal_names, field);
    case HAK_OPTION_MS: return parse_ms(value, field);
    case HAK_OPTION_SIGNAL: return parse_signal(value, field);
    case HAK_OPTION_KNOBS:
        if (strcmp(value, "none") != 0) return parse_knobs(value, &config->knobs, config->knob_values);
        config->knobs = 0;
        return true;
    case HAK_OPTION_EXPERIMENT:
        if (strcmp(value, "none") != 0) return parse_experiment(value, config);
        config->experiment = 0;
        return true;
    case HAK_OPTION_STATS: return parse_stats(value, field, &config->stats_file);
    case HAK_OPTION_PROFILE:
        return parse_word(value, hak_profile_names, field) || parse_word(value, hak_profile_aliases, field);
    case HAK_OPTION_CHOICE: return parse_choice(value, field);
    case HAK_OPTION_FILE: *field = strcmp(value, "none") == 0 ? 0 : (uintptr_t)value; return true;
    case HAK_OPTION_GUARD: return parse_guard(value, field);
    case HAK_OPTION_HEAP_PROFILE: return parse_heap_profile(value, field, &config->heap_profile_file);
    }
    return false;
}

void hak_config_add_path(struct hak_text *path, const char *pattern, int process_id) {
    for (; *pattern != '\0'; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'p') {
            hak_text_add(path, "%d", process_id);
            pattern++;
        } else {
            hak_text_add(path, "%c", *pattern);
        }
    }
}

static const struct option *find_option(const char *name, size_t length) {
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (strlen(option_table[i].name) == length && memcmp(option_table[i].name, name, length) == 0)
            return &option_table[i];
    return NULL;
}

/* The row of former.def; FORMER_COUNT when there is none. */
static size_t find_former(const char *name, size_t length) {
    size_t i = 0;
    while (i < FORMER_COUNT &&
           (strlen(former_table[i].name) != length || memcmp(former_table[i].name, name, length) != 0))
        i++;
    return i;
}

const char *hak_config_variable(char *const *environment, const char *name) {
    size_t length = strlen(name);
    for (; environment != NULL && *environment != NULL; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=') return *environment + length + 1;
    return NULL;
}

/* True if the environment sets the variable to something. */
static bool is_set(char *const *environment, const char *name) {
    const char *value = hak_config_variable(environment, name);
    return value != NULL && value[0] != '\0';
}

struct hak_config hak_config_parse(char *const *environment, struct hak_text *messages) {
    char *const *const all = environment;
    struct hak_config config = {.former = 0};
    for (size_t i = 0; i < OPTION_COUNT; i++) *field_of(&config, &option_table[i]) = option_table[i].fallback;
    for (; environment != NULL && *environment != NULL; environment++) {
        const char *variable = *environment;
        if (strncmp(variable, "HAKMEM_", 7) != 0) continue;
        size_t length = strcspn(variable, "=");
        const struct option *option = find_option(variable, length);
        size_t former = option == NULL ? find_former(variable, length) : FORMER_COUNT;
        if (former < FORMER_COUNT) {
            const char *now = former_table[former].now;
            config.former |= UINT64_C(1) << former;
            if (now == NULL || is_set(all, now)) continue;
            option = find_option(now, strlen(now));
        }
        if (option != NULL && variable[length] == '=' && variable[length + 1] == '\0')
            continue; /* as if it weren't set */
        if (option == NULL) {
            hak_text_add(messages, "hakmem: unknown setting %s ignored (HAKMEM_HELP=1 lists all)\n", variable);
        } else if (variable[length] != '=' || !parse_value(&config, option, variable + length + 1)) {
            hak_text_add(messages, "hakmem: setting %s ignored: expected %s", variable, kind_expected[option->kind]);
            if (option->kind == HAK_OPTION_KNOBS && variable[length] == '=')
                add_wrong_knob(messages, variable + length + 1);
            hak_text_add(messages, "\n");
        }
    }
    return config;
}

uint64_t hak_config_seed(char *const *environment) {
    static const char name[] = "HAKMEM_SEED=";
    uint64_t seed = 0;
    for (; environment != NULL && *environment != NULL; environment++)
        if (strncmp(*environment, name, sizeof name - 1) == 0)
            hak_config_parse_number(*environment + sizeof name - 1, &seed);
    return seed;
}

/* `file` is what is said behind a colon, or NULL. */
static void add_value(struct hak_text *out, const struct option *option, uint64_t value, const char *file) {
    static const char *const formats[] = {"off", "text", "json"};
    switch (option->kind) {
    case HAK_OPTION_MODE: hak_text_add(out, "%s", mode_names[value]); break;
    case HAK_OPTION_GOAL: hak_text_add(out, "%s", goal_names[value]); break;
    case HAK_OPTION_PROFILE: hak_text_add(out, "%s", hak_profile_names[value]); break;
    case HAK_OPTION_SIGNAL: add_signal(out, value); break;
    case HAK_OPTION_STATS: hak_text_add(out, "%s", formats[value]); break;
    case HAK_OPTION_EXPERIMENT:
    case HAK_OPTION_FILE: hak_text_add(out, "%s", value == 0 ? "none" : hak_config_file(value)); break;
    case HAK_OPTION_KNOBS: hak_text_add(out, "%s", value == 0 ? "none" : "as below"); break;
    case HAK_OPTION_GUARD:
        if (value == 0) hak_text_add(out, "0");
        else hak_text_add(out, "1/%lu", (unsigned long)value);
        break;
    case HAK_OPTION_CHOICE:
        if (value == HAK_CHOICE_AUTO) hak_text_add(out, "auto");
        else hak_text_add(out, "%lu", (unsigned long)value);
        break;
    case HAK_OPTION_BOOL:
    case HAK_OPTION_BYTES:
    case HAK_OPTION_NUMBER:
    case HAK_OPTION_HEAP_PROFILE:
    case HAK_OPTION_MS: hak_text_add(out, "%lu", (unsigned long)value); break;
    }
    if (file != NULL) hak_text_add(out, ":%s", file);
}

static const char *file_of(const struct hak_config *config, const struct option *option) {
    if (option->kind == HAK_OPTION_STATS) return config->stats_file;
    return option->kind == HAK_OPTION_HEAP_PROFILE ? config->heap_profile_file : NULL;
}

void hak_config_help(const struct hak_config *config, struct hak_text *out) {
    hak_text_add(out, "hakmem: settings (value, default, meaning)\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *option = &option_table[i];
        hak_text_add(out, "  %-28s = ", option->name);
        add_value(out, option, *(const uint64_t *)(const void *)((const char *)config + option->offset),
                  file_of(config, option));
        hak_text_add(out, " (default ");
        add_value(out, option, option->fallback, NULL);
        hak_text_add(out, "): %s\n", option->help);
    }
    hak_text_add(out, "hakmem: knobs (value, default, bounds, meaning)\n");
    for (size_t i = 0; i < HAK_KNOB_COUNT; i++) {
        const struct hak_knob_row *row = &hak_knob_table[i];
        hak_text_add(out, "  %-19s = %lu (default %lu, %lu to %lu): %s\n", row->name,
                     (unsigned long)hak_knob_get((enum hak_knob_number)i), (unsigned long)row->initial,
                     (unsigned long)row->lowest, (unsigned long)row->highest, row->text);
    }
    for (size_t i = 0; i < FORMER_COUNT; i++)
        if (config->former >> i & 1)
            hak_text_add(out, "hakmem: %s is of a former version; its work is done by %s\n", former_table[i].name,
                         former_table[i].text);
}
