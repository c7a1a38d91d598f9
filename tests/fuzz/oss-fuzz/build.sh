#!/bin/bash -eu
# Run by OSS-Fuzz in the root of the sources: CC, CXX, their flags, LIB_FUZZING_ENGINE, WORK and OUT are its own.
defines="-D_GNU_SOURCE -DHAK_NO_OVERRIDE=1 -DHAK_CHECK_LEVEL=2 -DFUZZ_HAK -DFUZZ_WRAPPED -DHAK_KERNEL_BY_LIBC=1"
wrapped="-Wl,--wrap=mmap,--wrap=munmap,--wrap=mremap,--wrap=madvise,--wrap=mprotect,--wrap=syscall"
objects=()
for source in src/hakmem.c tests/fuzz/{program,kernel,inside,oracle,execute,libfuzzer}.c; do
    object=$WORK/$(basename "$source" .c).o
    $CC $CFLAGS -std=gnu17 -fno-builtin $defines -Isrc -Iinclude -c "$source" -o "$object"
    objects+=("$object")
done
$CXX $CXXFLAGS "${objects[@]}" $LIB_FUZZING_ENGINE $wrapped -pthread -o "$OUT/fuzz_hakmem"
zip -jq "$OUT/fuzz_hakmem_seed_corpus.zip" tests/fuzz/corpus/*
printf '[libfuzzer]\nmax_len = 808\nrss_limit_mb = 0\n[asan]\ndetect_leaks = 0\n' >"$OUT/fuzz_hakmem.options"
