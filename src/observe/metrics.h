/* Metrics: statistics as OpenMetrics text (version 1.0), which Prometheus and its kin read.
 *
 * A total or counter is a metric of its name with hakmem_ before it; what only grows has _total behind it. Size classes
 * are told apart by labels. Threads come and go, and are left to the other forms.
 */
#ifndef HAK_OBSERVE_METRICS_H
#define HAK_OBSERVE_METRICS_H

#include "observe/stats.h"

/* It fits in HAK_SNAPSHOT_TEXT_BYTES. */
HAK_COLD void hak_snapshot_write_metrics(const struct hak_snapshot *snapshot, struct hak_text *out);

#endif
