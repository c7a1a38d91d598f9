#include "front/statistics.h"

#include "os/os.h"

void hak_statistics_write_text(struct hak_snapshot *snapshot, bool with_names, struct hak_text *out) {
    hak_snapshot_take(snapshot);
    hak_snapshot_write_text(snapshot, with_names, out);
    hak_report_write_text(out);
}

void hak_statistics_write_json(struct hak_snapshot *snapshot, struct hak_text *out) {
    hak_snapshot_take(snapshot);
    hak_snapshot_write_json(snapshot, hak_os_process_id(), out);
    hak_text_add(out, ",\n ");
    hak_report_write_json(out);
    hak_text_add(out, "}\n");
}
