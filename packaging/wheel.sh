#!/usr/bin/env bash
# The Python package with the compiled library inside, into build/packages; auditwheel names the oldest C library that it runs on.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/wheel
rm -rf "$work" "$out"/*.whl
.venv/bin/pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work" \
    --config-settings=build-dir="$work/build" .
.venv/bin/auditwheel show "$work"/*.whl
PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --wheel-dir "$out" "$work"/*.whl
