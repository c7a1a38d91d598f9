/* Process: start, settings, fork. */
#ifndef HAK_FRONT_PROCESS_H
#define HAK_FRONT_PROCESS_H

#include "base/config.h"

/* Makes hakmem ready, once; whoever comes second waits for the first. Called by the first miss of the process, which
 * may be long before main. False when there is no address space, and in a signal handler that has interrupted the
 * first of them; a later call tries again. */
bool hak_process_initialize(void);

/* The settings: read once, by a constructor. All 0 before that. */
const struct hak_config *hak_process_config(void);

/* The setting HAKMEM_DEEPBIND, also before the settings are read: libraries whose constructors come first may open
 * plug-ins. */
bool hak_process_keeps_deepbind(void);

#endif
