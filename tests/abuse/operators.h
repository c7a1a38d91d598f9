/* What the C++ ABI calls new and delete, for programs in C. */
#ifndef ABUSE_OPERATORS_H
#define ABUSE_OPERATORS_H

#include <stddef.h>

extern void *new_block(size_t bytes) __asm__("_Znwm");
extern void *new_array(size_t bytes) __asm__("_Znam");
extern void *new_aligned(size_t bytes, size_t to) __asm__("_ZnwmSt11align_val_t");
extern void *new_array_aligned(size_t bytes, size_t to) __asm__("_ZnamSt11align_val_t");
extern void delete_block(void *block) __asm__("_ZdlPv");
extern void delete_array(void *block) __asm__("_ZdaPv");
extern void delete_sized(void *block, size_t bytes) __asm__("_ZdlPvm");
extern void delete_aligned(void *block, size_t to) __asm__("_ZdlPvSt11align_val_t");
extern void delete_array_aligned(void *block, size_t to) __asm__("_ZdaPvSt11align_val_t");
extern void delete_sized_aligned(void *block, size_t bytes, size_t to) __asm__("_ZdlPvmSt11align_val_t");

#endif
