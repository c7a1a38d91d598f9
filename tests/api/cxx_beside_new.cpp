// The program of cxx_new_alone.cpp: what is made by new and freed by free is a mismatch all the same.
#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

void *made_elsewhere();

int main() {
    int status;
    pid_t child = fork();
    if (child == 0) {
        std::free(made_elsewhere());
        _exit(0);
    }
    bool is_found = waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    return is_found ? EXIT_SUCCESS : EXIT_FAILURE;
}
