/* Exits with 0 when malloc, and the malloc that libc calls, are hakmem's. */
#include <hakmem/hakmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    void *volatile block = malloc(1);
    char *volatile copy = strdup("a block that the C library asks for");
    int owned = hak_owns(block) == 1 && hak_owns(copy) == 1;
    int stack_owned = hak_owns((void *)&block);
    printf("hakmem %s: malloc %s\n", hak_version(), owned && !stack_owned ? "is hakmem's" : "is NOT hakmem's");
    free(copy);
    free(block);
    return owned && !stack_owned ? 0 : 1;
}
