/* Entry points of libFuzzer, and of whatever speaks its language (AFL++, honggfuzz, Centipede). */
#include <string.h>

#include "execute.h"

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t length, size_t capacity) __attribute__((weak));
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t length, size_t capacity, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_length, const uint8_t *other, size_t other_length,
                                 uint8_t *out, size_t capacity, unsigned seed);

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    execute_begin(*arguments);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    static struct program program;
    program_decode(&program, bytes, length);
    execute(&program);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t length, size_t capacity, unsigned seed) {
    if (seed % 4 == 0 && LLVMFuzzerMutate != NULL) return LLVMFuzzerMutate(bytes, length, capacity);
    return program_mutate(bytes, length, capacity, bytes, length, seed);
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_length, const uint8_t *other, size_t other_length,
                                 uint8_t *out, size_t capacity, unsigned seed) {
    size_t length = one_length < capacity ? one_length : capacity;
    memcpy(out, one, length);
    return program_mutate(out, length, capacity, other, other_length, seed);
}
