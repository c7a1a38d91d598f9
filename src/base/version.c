#include "base/version.h"

const char *hak_version(void) { return HAK_VERSION_TEXT; }
