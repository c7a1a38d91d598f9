/* A C program, started without a C++ runtime, that loads a C++ library: `cxx_host LIBRARY CASE`, CASE being local or
 * global. */
#include "expect.h"

#include <dlfcn.h>

int main(int argc, char **argv) {
    EXPECT(argc == 3, "cxx_host LIBRARY CASE");
    void *library = dlopen(argv[1], RTLD_NOW | (strcmp(argv[2], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL));
    EXPECT(library != NULL, "%s", dlerror());
    int (*go)(void) = (int (*)(void))dlsym(library, "go");
    EXPECT(go != NULL, "%s", dlerror());
    int wrong = go();
    EXPECT(wrong == 0, "new in a plugin: %d", wrong);
    return 0;
}
