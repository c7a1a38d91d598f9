/* Two libraries of one shape. One exports what hakmem knows an interpreter of Python by. The other, IS_OTHER, has the
 * same code at the same places, by other names. */
#include <stddef.h>

#ifdef IS_OTHER
#define NAME(interpreters) other_##interpreters
#define VERSION 1
#else
#define NAME(interpreters) interpreters
#define VERSION 0x030d00f0
#endif

/* Names that the interpreter has given. NOLINTBEGIN(bugprone-reserved-identifier) */
extern const unsigned long NAME(Py_Version);
const unsigned long NAME(Py_Version) = VERSION;
unsigned long NAME(_PyRuntime)[4];
char NAME(PyCode_Type), NAME(PyUnicode_Type), NAME(PyBytes_Type);
/* NOLINTEND(bugprone-reserved-identifier) */
int plugin_calls;

void *NAME(PyGILState_GetThisThreadState)(void);
void *NAME(PyGILState_GetThisThreadState)(void) {
    plugin_calls++;
    return NULL;
}

int NAME(Py_IsFinalizing)(void);
int NAME(Py_IsFinalizing)(void) {
    plugin_calls++;
    return 0;
}
