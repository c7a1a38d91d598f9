#include "explain_profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "observe/profile_tables.h"

/* The record that begins at this word of the tables; NULL where none can be. */
static const struct hak_profile_site *record_at(const struct hak_profile_tables *tables, uint32_t where) {
    uint64_t room = (HAK_PROFILE_SITE_WORDS - (uint64_t)where) * sizeof tables->words[0];
    const struct hak_profile_site *site = (const void *)&tables->words[where];
    if (where >= HAK_PROFILE_SITE_WORDS || room < sizeof *site || site->depth > HAK_PROFILE_STACK_MOST ||
        room < sizeof *site + site->depth * sizeof site->addresses[0]) {
        return NULL;
    }
    return site;
}

/* Its stack. */
static void write_site(FILE *out, const struct hak_profile_site *site, uint32_t where) {
    fprintf(out, "{\"site\": %" PRIu32 ", \"addresses\": [", where);
    for (uint64_t i = 0; i < site->depth; i++) {
        fprintf(out, "%s%" PRIu64, i == 0 ? "" : ", ", (uint64_t)site->addresses[i]);
    }
    fprintf(out, "]}");
}

/* A function of Python: its name, a tab and its file, as numbers: they may be in any script. */
static void write_function(FILE *out, const struct hak_profile_site *function, uint32_t where) {
    const unsigned char *text = (const unsigned char *)function->addresses;
    fprintf(out, "{\"function\": %" PRIu32 ", \"text\": [", where);
    for (uint64_t i = 0; i < function->depth * sizeof function->addresses[0] && text[i] != 0; i++) {
        fprintf(out, "%s%d", i == 0 ? "" : ", ", text[i]);
    }
    fprintf(out, "]}");
}

/* Each once. The list goes from newer records to older ones, which lie below; what doesn't ends it. */
static void write_records(FILE *out, const struct hak_profile_tables *tables, const struct hak_profile_index *index,
                          void (*write)(FILE *, const struct hak_profile_site *, uint32_t)) {
    const struct hak_profile_site *record;
    const char *separator = "\n   ";
    uint32_t most = HAK_PROFILE_SITE_SLOTS;
    fprintf(out, "[");
    for (uint32_t where = hak_atomic_load(&index->newest, relaxed);
         where != 0 && most-- != 0 && (record = record_at(tables, where)) != NULL; where = record->next) {
        fputs(separator, out);
        write(out, record, where);
        separator = ",\n   ";
    }
    fprintf(out, "]");
}

static void write_samples(FILE *out, const struct process *process, const struct hak_profile_tables *tables) {
    const char *separator = "\n   ";
    fprintf(out, ", \"samples\": [");
    for (uint32_t i = 0; i < HAK_PROFILE_SAMPLE_SLOTS; i++) {
        const struct hak_profile_entry *sample = &tables->samples[i];
        uint64_t block = hak_atomic_load(&tables->blocks[i], relaxed), end = block + sample->block_bytes;
        if (block == 0 || end <= block || end - block > (uint64_t)1 << 47) {
            continue;
        }
        fprintf(out,
                "%s{\"address\": %" PRIu64 ", \"site\": %" PRIu32 ", \"size\": %" PRIu64 ", \"block_bytes\": %" PRIu64
                ", \"weight\": %" PRIu64 ", \"born_ms\": %" PRIu64 ", \"resident\": %" PRIu64 "}",
                separator, block, sample->site, sample->size, sample->block_bytes, sample->weight, sample->born_ms,
                process_resident(process, block, end));
        separator = ",\n   ";
    }
    fprintf(out, "]");
}

void profile_write(FILE *out, const struct heap_view *view) {
    struct hak_profile_tables *tables = process_grow(NULL, 1, sizeof *tables);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now); /* as hak_os_clock_ms */
    if (view->profile == 0 || !process_read(view->process, view->profile, tables, sizeof *tables)) {
        fprintf(out, ",\n \"profile\": null");
        free(tables);
        return;
    }
    fprintf(out,
            ",\n \"profile\": {\"interval_bytes\": %" PRIu64 ", \"runs_since_ms\": %" PRIu64 ", \"began_ms\": %" PRIu64
            ", \"now_ms\": %" PRIu64 ", \"lost_samples\": %" PRIu64,
            hak_atomic_load(&tables->interval_bytes, relaxed), hak_atomic_load(&tables->runs_since_ms, relaxed),
            tables->began_ms, (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000,
            hak_atomic_load(&tables->lost_samples, relaxed));
    fprintf(out, ", \"sites\": ");
    write_records(out, tables, &tables->sites, write_site);
    fprintf(out, ", \"functions\": ");
    write_records(out, tables, &tables->functions, write_function);
    write_samples(out, view->process, tables);
    fprintf(out, "}");
    free(tables);
}
