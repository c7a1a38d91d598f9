/* Standard names for hakmem's functions: aliases, so that both are one address. */
#ifndef HAK_API_OVERRIDE_H
#define HAK_API_OVERRIDE_H

#include "hakmem/hakmem.h"

#ifdef __clang__
#define HAK_OVERRIDE(target, name, parameters, result) HAK_API result name parameters __attribute__((alias(#target)))
#else
#define HAK_OVERRIDE(target, name, parameters, result)                                                                 \
    HAK_API result name parameters __attribute__((alias(#target), copy(target)))
#endif

#endif
