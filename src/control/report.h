/* Report: what the controller does, for statistics. The controller's thread tells; any thread writes it out, from
 * relaxed atomics: a row that is being written may be half old. */
#ifndef HAK_CONTROL_REPORT_H
#define HAK_CONTROL_REPORT_H

#include "control/ace.h"
#include "control/dimension.h"
#include "control/phase.h"
#include "control/reward.h"

/* Before main: `first_values` are where the knobs of the dimensions stand, by number from HAK_CLASS_PLACES on. */
void hak_report_configure(const struct hak_ace_settings *settings, const uint64_t *first_values);

/* The controller begins now: times are counted from here. */
HAK_COLD void hak_report_begin(uint64_t now_ms);

/* In a child of fork, of which no other thread tells anything: nothing has happened yet. */
void hak_report_after_fork(void);

/* A switch, from and to these values or slots; of the bins of a class, its blocks are given, else 0. */
HAK_COLD void hak_report_event(const struct hak_move *move, uint32_t phase, uint64_t from, uint64_t to,
                               uint32_t block_bytes);

/* What a period has cost. */
void hak_report_costs(const struct hak_costs *costs, double cost, uint32_t phase, enum hak_life_state state);

/* Where the controller is; prospects and ratings are of the dimensions, by number. */
void hak_report_state(const struct hak_phases *phases, const struct hak_life_cycle *cycle,
                      const struct hak_prospect *prospects, const uint32_t *block_bytes,
                      const struct hak_rating *ratings);

/* The dimension that has another arm in force than the chosen one, HAK_DIMENSION_COUNT for none, and what the chosen
 * one gives it. */
void hak_report_trial(uint32_t dimension, uint32_t block_bytes, uint64_t chosen);

/* The state, the knobs, the events; for JSON, a member "control" of an object. */
HAK_COLD void hak_report_write_text(struct hak_text *out);
HAK_COLD void hak_report_write_json(struct hak_text *out);

/* JSON is at most so long. */
enum { HAK_REPORT_BYTES = 36 << 10 };

#endif
