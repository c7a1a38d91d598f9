#!/usr/bin/env bash
# The binary interface has all that the last release's had (packaging/*.abi), as it was; the version stands in one place;
# the bill of materials names what the wheel brings.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

abi=hakmem.$(uname -m).abi
if [ -f "packaging/$abi" ]; then
    abidiff --no-added-syms "packaging/$abi" "$out/$abi"
else
    echo "no release has left $abi to compare with"
fi

.venv/bin/python - "$out/hakmem-$version.cdx.json" "$version" <<'END'
import json, sys

made = json.load(open(sys.argv[1]))
names = {one["name"]: one["version"] for one in made["components"]}
assert made["bomFormat"] == "CycloneDX"
assert names["hakmem"] == sys.argv[2], names
wanted = {"click", "rich", "msgspec", "pyelftools", "jinja2", "matplotlib", "numpy", "protobuf"}
assert wanted <= {name.lower() for name in names}, names
END

# The header is the only place with the version, pyproject.toml with the address and the maintainers; what is built reads
# them there.
LD_PRELOAD=$out/wheel/$(uname -m)/build/libhakmem.so HAKMEM_STATS=text /usr/bin/python3 -c pass 2>&1 |
    grep -qx "hakmem $version statistics"
fails git grep -nF "$homepage" -- . ':!pyproject.toml'
fails git grep -nF "${maintainer%% <*}" -- . ':!pyproject.toml'
fails git grep -nF "$version" -- pyproject.toml CMakeLists.txt cmake lab/hakmem packaging \
    ':!packaging/*.txt' ':!packaging/*.abi'
