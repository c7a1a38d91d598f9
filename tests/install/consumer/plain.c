/* Asks for memory through libc alone: it names neither malloc nor hakmem. */
#include <stdio.h>

int main(void) {
    FILE *file = fopen("/proc/self/status", "r");
    int first = file == NULL ? EOF : getc(file);
    if (file != NULL) fclose(file);
    return first == EOF;
}
