#!/usr/bin/env bash
# The Python package with the compiled library inside, for each processor, into build/packages. What is compiled is linked
# with the names of glibc 2.28 and no newer ones; auditwheel names each wheel after the newest that it uses.
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
