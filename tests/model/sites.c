/* The registry: one entry per use of a hak_atomic_* macro in the program's source, however many copies of it the
 * compiler made, and one per tag of the harnesses; and the mutants of each.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* Bounds of the section that MODEL_SITE fills; absent when nothing does. */
extern struct model_site *const __start_model_sites[] __attribute__((weak));
extern struct model_site *const __stop_model_sites[] __attribute__((weak));

enum { TAGS = 32 };

static struct model_entry *entries; /* never moves: sites point into it */
static size_t entry_count, tag_count;

static const char *const order_names[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};
static const char *const operation_names[] = {"load",     "store",     "exchange", "fetch_add", "fetch_sub",
                                              "fetch_or", "fetch_and", "cas",      "fence"};

const char *model_order_name(enum model_order order) { return order_names[order]; }

const char *model_operation_name(enum model_operation operation) { return operation_names[operation]; }

/* The path from its last src/ or tests/ on: how a file is named in the repository, wherever that lies. */
static const char *repository_path(const char *path) {
    const char *found = NULL;
    for (const char *at = path; at && *at; at = strchr(at, '/')) {
        at += *at == '/';
        if (strncmp(at, "src/", 4) == 0 || strncmp(at, "tests/", 6) == 0) found = at;
    }
    return found ? found : model_base_name(path);
}

static int compare_lines(const struct model_site *a, const struct model_site *b) {
    int by_path = strcmp(repository_path(a->file), repository_path(b->file));
    if (by_path) return by_path;
    return a->line != b->line ? a->line - b->line : (int)a->operation - (int)b->operation;
}

static int compare_in_unit(const void *left, const void *right) {
    const struct model_site *a = *(struct model_site *const *)left, *b = *(struct model_site *const *)right;
    int by_line = compare_lines(a, b), by_unit = strcmp(a->unit, b->unit);
    return by_line ? by_line : by_unit ? by_unit : a->counter - b->counter;
}

static int compare_sites(const void *left, const void *right) {
    const struct model_site *a = *(struct model_site *const *)left, *b = *(struct model_site *const *)right;
    int by_line = compare_lines(a, b);
    return by_line ? by_line : a->ordinal - b->ordinal;
}

static void check_orders(const struct model_site *site) {
    enum model_order order = site->order, failure = site->failure;
    bool fits = failure != MODEL_ORDER_release && failure != MODEL_ORDER_acq_rel;
    if (site->operation == MODEL_LOAD) fits = fits && order != MODEL_ORDER_release && order != MODEL_ORDER_acq_rel;
    if (site->operation == MODEL_STORE) fits = fits && order != MODEL_ORDER_acquire && order != MODEL_ORDER_acq_rel;
    if (site->operation == MODEL_FENCE) fits = fits && order != MODEL_ORDER_relaxed;
    if (!fits) model_fail("%s:%d: %s cannot have this order", site->file, site->line, operation_names[site->operation]);
}

static bool is_beside(const struct model_site *a, const struct model_site *b) {
    return compare_lines(a, b) == 0 && strcmp(a->unit, b->unit) == 0;
}

/* Sites of one line and operation get a number: the same in every unit that includes the line. */
static void number_sites(struct model_site **sites, size_t count) {
    qsort(sites, count, sizeof(struct model_site *), compare_in_unit);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && is_beside(sites[i - 1], sites[i])) sites[i]->ordinal = sites[i - 1]->ordinal + 1;
        else sites[i]->ordinal = i + 1 < count && is_beside(sites[i], sites[i + 1]);
    }
}

static struct model_entry *new_entry(const struct model_site *site) {
    struct model_entry *entry = &entries[entry_count++];
    entry->site = site;
    entry->order = site->order;
    entry->failure = site->failure;
    int used = snprintf(entry->name, sizeof(entry->name), "%s:%d:%s", model_base_name(site->file), site->line,
                        operation_names[site->operation]);
    if (site->ordinal && used > 0 && (size_t)used < sizeof(entry->name))
        snprintf(entry->name + used, sizeof(entry->name) - (size_t)used, "#%d", site->ordinal);
    return entry;
}

void model_sites_build(void) {
    size_t count = (size_t)(__stop_model_sites - __start_model_sites);
    if (entries) return;
    entries = calloc(count + TAGS, sizeof(*entries));
    struct model_site **sites = calloc(count + 1, sizeof(struct model_site *));
    if (!entries || !sites) model_fail("no memory for %zu sites", count);
    for (size_t i = 0; i < count; i++) {
        sites[i] = __start_model_sites[i];
        check_orders(sites[i]);
    }
    number_sites(sites, count);
    qsort(sites, count, sizeof(struct model_site *), compare_sites);
    for (size_t i = 0; i < count; i++)
        sites[i]->entry =
            i > 0 && compare_sites(&sites[i - 1], &sites[i]) == 0 ? sites[i - 1]->entry : new_entry(sites[i]);
    free(sites);
}

size_t model_entries(struct model_entry **all) {
    model_sites_build();
    *all = entries;
    return entry_count;
}

struct model_entry *model_tag_entry(const char *name) {
    model_sites_build();
    for (size_t i = 0; i < entry_count; i++)
        if (!entries[i].site && strcmp(entries[i].name + strlen("tag "), name) == 0) return &entries[i];
    if (tag_count++ == TAGS) model_fail("more than %d tags", TAGS);
    struct model_entry *entry = &entries[entry_count++];
    snprintf(entry->name, sizeof(entry->name), "tag %s", name);
    return entry;
}

bool model_entry_is_in(const struct model_entry *entry, const char *path_prefix) {
    return !entry->site || strncmp(repository_path(entry->site->file), path_prefix, strlen(path_prefix)) == 0;
}

/* One step down; two ways from acq_rel. */
static unsigned weaker_orders(enum model_operation operation, enum model_order order, enum model_order weaker[2]) {
    switch (order) {
    case MODEL_ORDER_seq_cst:
        weaker[0] = operation == MODEL_LOAD    ? MODEL_ORDER_acquire
                    : operation == MODEL_STORE ? MODEL_ORDER_release
                                               : MODEL_ORDER_acq_rel;
        return 1;
    case MODEL_ORDER_acq_rel:
        weaker[0] = MODEL_ORDER_acquire;
        weaker[1] = MODEL_ORDER_release;
        return 2;
    case MODEL_ORDER_acquire:
    case MODEL_ORDER_release:
        weaker[0] = MODEL_ORDER_relaxed; /* for a fence: as if it were not there */
        return 1;
    default: return 0;
    }
}

size_t model_mutants_of(struct model_entry *entry, struct model_mutant mutants[4]) {
    enum model_order weaker[2];
    size_t count = 0;
    if (!entry->site) {
        mutants[0] = (struct model_mutant){entry, MODEL_DROP_TAG, MODEL_ORDER_relaxed};
        return 1;
    }
    unsigned ways = weaker_orders(entry->site->operation, entry->site->order, weaker);
    for (unsigned i = 0; i < ways; i++) mutants[count++] = (struct model_mutant){entry, MODEL_WEAKEN_ORDER, weaker[i]};
    if (weaker_orders(MODEL_LOAD, entry->site->failure, weaker))
        mutants[count++] = (struct model_mutant){entry, MODEL_WEAKEN_FAILURE, weaker[0]};
    return count;
}

void model_mutant_apply(const struct model_mutant *mutant) {
    switch (mutant->weakening) {
    case MODEL_WEAKEN_ORDER: mutant->entry->order = mutant->order; break;
    case MODEL_WEAKEN_FAILURE: mutant->entry->failure = mutant->order; break;
    case MODEL_DROP_TAG: mutant->entry->dropped = true; break;
    }
}

void model_mutant_revert(const struct model_mutant *mutant) {
    mutant->entry->dropped = false;
    if (mutant->entry->site) {
        mutant->entry->order = mutant->entry->site->order;
        mutant->entry->failure = mutant->entry->site->failure;
    }
}

void model_mutant_name(const struct model_mutant *mutant, char *name, size_t size) {
    snprintf(name, size, "%s%s:%s", mutant->entry->name, mutant->weakening == MODEL_WEAKEN_FAILURE ? ".failure" : "",
             mutant->weakening == MODEL_DROP_TAG ? "dropped" : order_names[mutant->order]);
}
