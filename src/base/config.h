/* Settings: HAKMEM_* variables, parsed once into a snapshot that never changes afterwards.
 *
 * Owns the table of settings (config.def), from which the parser and the help are made. Parsing is pure: it reads an
 * environment it is given and writes messages into a text. front/process.c reads the process's environment and prints.
 */
#ifndef HAK_BASE_CONFIG_H
#define HAK_BASE_CONFIG_H

#include "base/format.h"
#include "base/knobs.h"

enum hak_option_kind {
    HAK_OPTION_BOOL,         /* 0 or 1 */
    HAK_OPTION_BYTES,        /* a decimal number above 0, with K, M or G for powers of 1024 */
    HAK_OPTION_NUMBER,       /* the same of anything, or 0 */
    HAK_OPTION_MODE,         /* off, auto, on */
    HAK_OPTION_STATS,        /* text, json, or either with :FILE */
    HAK_OPTION_SIGNAL,       /* HUP, USR1, USR2, or the number of a real-time signal */
    HAK_OPTION_KNOBS,        /* NAME=NUMBER, several with colons between them */
    HAK_OPTION_MS,           /* a decimal number of milliseconds */
    HAK_OPTION_GOAL,         /* enum hak_goal */
    HAK_OPTION_PROFILE,      /* the name or the alias of a row of profile.def */
    HAK_OPTION_CHOICE,       /* 0, 1, auto */
    HAK_OPTION_FILE,         /* the name of a file, for hak_config_file */
    HAK_OPTION_HEAP_PROFILE, /* 0, 1, or 1:FILE */
    HAK_OPTION_GUARD,        /* 0, 1, or 1/N: the value is N */
    HAK_OPTION_EXPERIMENT,   /* NAME:SHARE%:KNOBS: the value is the text, for hak_config_file */
};

enum { HAK_CHOICE_AUTO = 2 };

/* What the controller is to save (control/reward.h). */
enum hak_goal { HAK_GOAL_OF_PROFILE, HAK_GOAL_BALANCED, HAK_GOAL_SPEED, HAK_GOAL_MEMORY, HAK_GOAL_LATENCY };

enum hak_stats_format { HAK_STATS_OFF, HAK_STATS_TEXT, HAK_STATS_JSON };

struct hak_config {
#define HAK_OPTION(field, name, kind, fallback, help) uint64_t field;
#include "base/config.def"
#undef HAK_OPTION
    uint64_t knob_values[HAK_KNOB_COUNT]; /* where bit i of `knobs` is set, for knob i */
    uint64_t experiment_knobs,
        experiment_values[HAK_KNOB_COUNT]; /* the same, for hosts in the experiment's treatment */
    uint64_t experiment_share; /* of HAK_EXPERIMENT_WHOLE; what the experiment is called is its text up to the colon */
    uint64_t former;           /* bit i: row i of former.def was given */
    const char *stats_file;    /* points into the environment; NULL for standard error */
    const char *heap_profile_file; /* the same; NULL for hakmem.PID.prof */
};

/* Reads "NAME=VALUE" strings up to a NULL. A setting that is unknown or malformed adds one line to `messages` and keeps
 * its default; one of a former version does not. `environment` may be NULL: all defaults. */
struct hak_config hak_config_parse(char *const *environment, struct hak_text *messages);

/* What a variable of the environment is set to; NULL where it is not there. `environment` may be NULL. */
const char *hak_config_variable(char *const *environment, const char *name);

/* HAKMEM_SEED alone, for what is picked before there is a place for messages; 0 where it is not set, or malformed. */
uint64_t hak_config_seed(char *const *environment);

/* The value of a setting that is the name of a file, or another text, which lies in the environment; NULL for none. */
HAK_INLINE const char *hak_config_file(uint64_t value) { return (const char *)(uintptr_t)value; }

/* A decimal number, with K, M or G for powers of 1024, and nothing else. */
bool hak_config_parse_number(const char *value, uint64_t *out);

/* The name of a file in a setting, with %p replaced by the process id. */
void hak_config_add_path(struct hak_text *path, const char *pattern, int process_id);

/* One line per setting, and per knob as it is now: name, value, default, help. Then one per setting of a former version
 * that was given: what does its work. */
void hak_config_help(const struct hak_config *config, struct hak_text *out);

#endif
