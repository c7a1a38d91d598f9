/* confined: runs a command under a seccomp filter.
 *
 *     confined FILTER COMMAND [ARGUMENT...]
 *
 * FILTER is a file of struct sock_filter, as units.py writes it. The filter is in force from the exec on, for the
 * dynamic linker and all that is preloaded too. Exit status 125: no such filter, or the kernel doesn't take it; 127: no
 * such command. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **arguments) {
    static struct sock_filter instructions[BPF_MAXINSNS];
    FILE *file = count >= 3 ? fopen(arguments[1], "re") : NULL;
    if (!file) {
        fprintf(stderr, "usage: confined FILTER COMMAND [ARGUMENT...]\n");
        return 125;
    }
    size_t length = fread(instructions, sizeof *instructions, BPF_MAXINSNS, file);
    fclose(file);
    struct sock_fprog filter = {.len = (unsigned short)length, .filter = instructions};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) {
        perror("confined: seccomp");
        return 125;
    }
    execvp(arguments[2], arguments + 2);
    perror(arguments[2]);
    return 127;
}
