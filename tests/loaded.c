/* loaded COMMAND [ARGUMENT]...: becomes the command, unless hakmem was not preloaded: then a test of hakmem would be one
 * of the C library. Exit status 3, as of tests that find it out themselves. */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words) {
    if (dlsym(RTLD_DEFAULT, "hak_owns") == NULL) {
        fprintf(stderr, "hakmem is not loaded\n");
        return 3;
    }
    if (count > 1) execvp(words[1], words + 1);
    perror("loaded");
    return 2;
}
