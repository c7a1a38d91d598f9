/* The service: a thread that answers requests from outside (os/channel.h, front/requests.h) and writes the metrics
 * file.
 *
 * The background thread starts it and ends it, and so outlives it. It is there where that one is, and `hakmem ctl` is
 * allowed to be (setting HAKMEM_CTL), or metrics are to be written. A process with more rights than its caller has
 * none; nor has one whose system calls are filtered, unless a setting asks for it. It asks for no memory of the heap,
 * and has no heap.
 *
 *   V1  Only the background thread starts and ends it; it waits for both to be done.
 */
#ifndef HAK_FRONT_SERVICE_H
#define HAK_FRONT_SERVICE_H

#include "base/platform.h"

/* True when a setting asks for the service, however small the process is. */
bool hak_service_is_wanted(void);

/* True when somebody outside wishes for it (os/channel.h), and may. */
bool hak_service_is_asked(void);

/* True while it is there, and was asked something in the last minute. */
bool hak_service_is_in_use(void);

/* Both to be called by the background thread, at its beginning and at its end; `is_filtered` are its system calls. */
HAK_COLD void hak_service_start(bool is_filtered);
HAK_COLD void hak_service_stop(void);

/* In a child after fork: there is no such thread. */
void hak_service_after_fork(void);

#endif
