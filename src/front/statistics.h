/* Statistics of the whole process: what is counted, and what the controller does. */
#ifndef HAK_FRONT_STATISTICS_H
#define HAK_FRONT_STATISTICS_H

#include "control/report.h"
#include "observe/stats.h"

/* Neither form is longer. */
enum { HAK_STATISTICS_BYTES = HAK_SNAPSHOT_TEXT_BYTES + HAK_REPORT_BYTES };

/* As text for people, or as a JSON object by docs/statistics.schema.json. The snapshot is room to work in. Names of
 * threads are read from files. */
void hak_statistics_write_text(struct hak_snapshot *snapshot, bool with_names, struct hak_text *out);
void hak_statistics_write_json(struct hak_snapshot *snapshot, struct hak_text *out);

#endif
