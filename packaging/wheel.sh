#!/usr/bin/env bash
# The Python package with the compiled library inside, for each processor, into build/packages. What is compiled is linked
# with the names of glibc 2.28 and no newer ones; auditwheel names each wheel after the newest that it uses. One more is
# for musl on this processor.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

glibc=2.28
work=$out/wheel
rm -rf "$work" "$out"/*.whl
for processor in "${processors[@]}"; do
    .venv/bin/python packaging/sysroot.py $processor $glibc "$work/$processor/sysroot"
    _PYTHON_HOST_PLATFORM=linux-$processor .venv/bin/pip wheel --disable-pip-version-check --no-deps --no-build-isolation \
        --wheel-dir "$work/$processor" --config-settings=build-dir="$work/$processor/build" \
        --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$work/$processor/sysroot/toolchain.cmake" .
    .venv/bin/auditwheel show "$work/$processor"/*.whl
    PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --plat auto --only-plat --wheel-dir "$out" \
        "$work/$processor"/*.whl
done

# musl-gcc doesn't look where the kernel's headers are, which the laboratory's helpers use. libc.so is musl's own name of
# itself, so it is no library to bring along.
CFLAGS="-idirafter /usr/include -idirafter /usr/include/$(uname -m)-linux-gnu" .venv/bin/pip wheel \
    --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work/musl" \
    --config-settings=build-dir="$work/musl/build" --config-settings=cmake.define.CMAKE_C_COMPILER=musl-gcc .
PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --plat auto --only-plat --exclude libc.so \
    --ldpaths "/usr/lib/$(uname -m)-linux-musl" --wheel-dir "$out" "$work/musl"/*.whl
