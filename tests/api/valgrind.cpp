// Writes past the end of what new gave, asks what was not written, and leaks it: three errors for Valgrind to find.
int main() {
    volatile char *block = new char[5];
    block[5] = 1;
    if (block[2] != 0) block[0] = 1;
    block = nullptr;
    return 0;
}
