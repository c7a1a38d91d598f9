/* Standard names for hakmem's functions: aliases, so that both are one address. Weak ones, where a program that is
 * linked to the static library may have a function of its own by that name. */
#ifndef HAK_API_OVERRIDE_H
#define HAK_API_OVERRIDE_H

#include "hakmem/hakmem.h"

#ifdef __clang__
#define HAK_OVERRIDE(target, name, parameters, result) HAK_API result name parameters __attribute__((alias(#target)))
#define HAK_OVERRIDE_WEAK(target, name, parameters, result)                                                            \
    HAK_API result name parameters __attribute__((weak, alias(#target)))
#else
#define HAK_OVERRIDE(target, name, parameters, result)                                                                 \
    HAK_API result name parameters __attribute__((alias(#target), copy(target)))
#define HAK_OVERRIDE_WEAK(target, name, parameters, result)                                                            \
    HAK_API result name parameters __attribute__((weak, alias(#target), copy(target)))
#endif

#endif
