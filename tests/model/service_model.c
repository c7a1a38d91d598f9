/* The service: the background thread sees it begin, and it ends when it is told to, whatever it was doing; the next one finds what
 * it had as it left it.
 */
#include "library.h"

static void setup(void) {
    library_start(1, 1, 3, 1);
    library_let_serve();
}
static void setup_refused(void) {
    setup();
    fake_os.refuses_channel = true;
}
static void setup_filtered(void) {
    setup();
    fake_os.gets_filter = true;
}

static void start_and_stop(void) {
    hak_service_start(false);
    hak_service_stop();
}
static void start_and_stop_twice(void) {
    start_and_stop();
    start_and_stop();
}

static void serve(void) {
    while (hak_atomic_load(&fake_os_service, acquire) == 0) hak_cpu_relax();
    fake_os.service();
    hak_atomic_store(&fake_os_service, 0, release);
}
static void serve_twice(void) {
    serve();
    serve();
}

static void check(void) { model_assert(fake_os_service == 0, "it has ended, and was joined"); }

MODEL_HARNESS(service, setup, check, start_and_stop, serve);
MODEL_HARNESS(service_again, setup, check, start_and_stop_twice, serve_twice);
MODEL_HARNESS(service_refused, setup_refused, check, start_and_stop_twice, serve_twice);
MODEL_HARNESS(service_filtered, setup_filtered, check, start_and_stop, serve);
