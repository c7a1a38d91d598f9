#include "observe/metrics.h"

#include <string.h>

#include "base/experiment.h"

/* What comes before the samples of a metric. The format wants a unit said where a name ends with one. */
static void begin_metric(struct hak_text *out, const char *name, const char *kind, const char *text) {
    size_t length = strlen(name);
    hak_text_add(out, "# TYPE hakmem_%s %s\n", name, kind);
    if (length > 6 && strcmp(name + length - 6, "_bytes") == 0) hak_text_add(out, "# UNIT hakmem_%s bytes\n", name);
    hak_text_add(out, "# HELP hakmem_%s %s\n", name, text);
}

static void write_metric(struct hak_text *out, const char *name, const char *kind, const char *text, uint64_t value) {
    begin_metric(out, name, kind, text);
    hak_text_add(out, "hakmem_%s%s %lu\n", name, strcmp(kind, "counter") == 0 ? "_total" : "", (unsigned long)value);
}

static void write_classes(const struct hak_snapshot *snapshot, struct hak_text *out) {
    begin_metric(out, "class_slabs", "gauge", "slabs of a size class");
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        if (snapshot->classes[i].slabs != 0)
            hak_text_add(out, "hakmem_class_slabs{size=\"%u\"} %lu\n", hak_size_classes[i].block_bytes,
                         (unsigned long)snapshot->classes[i].slabs);
    begin_metric(out, "class_blocks", "gauge", "blocks of a size class: live, in front caches, free in slabs");
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_class_stats *stats = &snapshot->classes[i];
        if (stats->slabs == 0) continue;
#define ROW(state)                                                                                                     \
    hak_text_add(out, "hakmem_class_blocks{size=\"%u\",state=\"" #state "\"} %lu\n", hak_size_classes[i].block_bytes,  \
                 (unsigned long)stats->state##_blocks);
        ROW(live) ROW(cached) ROW(free)
#undef ROW
    }
}

void hak_snapshot_write_metrics(const struct hak_snapshot *snapshot, struct hak_text *out) {
    begin_metric(out, "build", "info", "the hakmem that this process runs on");
    hak_text_add(out, "hakmem_build_info{version=\"%s\"} 1\n", hak_version());
    if (hak_experiment.name[0] != '\0') {
        begin_metric(out, "experiment", "info", "the experiment that this process takes part in, and its host's arm");
        hak_text_add(out, "hakmem_experiment_info{name=\"%s\",arm=\"%s\"} 1\n", hak_experiment.name,
                     hak_experiment_arm());
    }
#define HAK_TOTAL(field, kind, text) write_metric(out, #field, #kind, text, snapshot->total.field);
#include "observe/totals.def"
#undef HAK_TOTAL
#define HAK_COUNTER(name, text) write_metric(out, #name, "counter", text, snapshot->name);
#include "base/counters.def"
#undef HAK_COUNTER
    write_classes(snapshot, out);
    hak_text_add(out, "# EOF\n");
}
