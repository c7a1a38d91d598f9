/* The version of this library. hak_version, which gives it to programs, is declared in the public header. */
#ifndef HAK_BASE_VERSION_H
#define HAK_BASE_VERSION_H

#include "hakmem/hakmem.h"

#define HAK_VERSION_TEXT_OF(number) #number
#define HAK_VERSION_TEXT_OF_THREE(major, minor, patch)                                                                 \
    HAK_VERSION_TEXT_OF(major) "." HAK_VERSION_TEXT_OF(minor) "." HAK_VERSION_TEXT_OF(patch)
#define HAK_VERSION_TEXT HAK_VERSION_TEXT_OF_THREE(HAK_VERSION_MAJOR, HAK_VERSION_MINOR, HAK_VERSION_PATCH)

#endif
