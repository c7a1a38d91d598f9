#!/usr/bin/env bash
# The Python package with the compiled library inside, for each processor, into build/packages. What is compiled is linked
# with the names of glibc 2.28 and no newer ones; auditwheel names each wheel after the newest that it uses. As many are for
# musl.
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

# Debian's musl for each processor is unpacked, not installed. Its specs make a compiler for musl of gcc; they name files
# where an installation has them. libc.so is musl's own name of itself, so it is no library to bring along. Functions for
# atomics that gcc calls on aarch64 ask a name that glibc alone has.
for processor in "${processors[@]}"; do
    root=$work/$processor-musl/root
    musl_root "$processor" "$root"
    specs=$root/usr/lib/$processor-linux-musl/musl-gcc.specs
    sed -i "s|/usr/|$root/usr/|g" "$specs"
    prefix=$([ "$processor" = "$(uname -m)" ] || echo "$processor-linux-gnu-")
    atomics=$([ "$processor" != aarch64 ] || echo -mno-outline-atomics)
    cat >"$work/$processor-musl/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $processor)
set(CMAKE_C_COMPILER ${prefix}gcc)
set(CMAKE_CXX_COMPILER ${prefix}g++)
set(CMAKE_C_FLAGS_INIT "-specs=$specs $atomics -idirafter $root/usr/include -idirafter $root/usr/include/$processor-linux-gnu")
END
    _PYTHON_HOST_PLATFORM=linux-$processor .venv/bin/pip wheel --disable-pip-version-check --no-deps --no-build-isolation \
        --wheel-dir "$work/$processor-musl" --config-settings=build-dir="$work/$processor-musl/build" \
        --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$work/$processor-musl/toolchain.cmake" .
    PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --plat auto --only-plat --exclude libc.so \
        --ldpaths "$root/lib/$processor-linux-musl" --wheel-dir "$out" "$work/$processor-musl"/*.whl
done
