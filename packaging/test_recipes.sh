#!/usr/bin/env bash
# Has each recipe of build/packages/recipes read, and where that can be built, by its package manager or what stands for
# it, and compares the version that it then names.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

recipes=$out/recipes
work=$out/recipes-test
rm -rf "$work"
mkdir -p "$work"
fails grep -rn '@[A-Z0-9]*@' "$recipes"

# is VERSION: it is the project's.
is() { [ "$1" = "$version" ] || { echo "version ${1:-none}, not $version" && return 1; }; }

echo "== rpm"
rpm_here=(--define "_topdir $work/rpm" --define "_sourcedir $out" --define "_dbpath $work/rpm/db")
is "$(rpmspec --query --srpm --queryformat '%{version}' "${rpm_here[@]}" "$recipes/rpm/hakmem.spec")"
rpmbuild -bb --nodeps "${rpm_here[@]}" "$recipes/rpm/hakmem.spec"
rpm --query --list --package "$work"/rpm/RPMS/*/hakmem-"$version"-*.rpm | grep -E '/libhakmem\.so\.1$'
rpmlint --strict --config packaging/rpm/rpmlint.toml "$recipes/rpm/hakmem.spec" "$work"/rpm/RPMS/*/*.rpm

echo "== Arch"
shellcheck --shell=bash --exclude=SC2034,SC2154,SC2164 "$recipes/arch/PKGBUILD" # names that makepkg reads and sets
mkdir "$work/arch"
cp "$recipes/arch/PKGBUILD" "$work/arch"
user=()
if [ "$(id -u)" = 0 ]; then # makepkg refuses root, and wants a pacman
    user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    chown 65534:65534 "$work/arch"
fi
is "$(cd "$work/arch" && "${user[@]}" env PACMAN=true makepkg --printsrcinfo | sed -n 's/^\tpkgver = //p')"

echo "== Alpine"
shellcheck --shell=dash --exclude=SC2034,SC2154 "$recipes/alpine/APKBUILD"
tar -xf "$out/hakmem-$version.tar.xz" -C "$work"
(cd "$work/hakmem-$version" && sh -euc '. "$1"; pkgdir=$2; build; package' sh "$recipes/alpine/APKBUILD" "$work/alpine")
[ -e "$work/alpine/usr/lib/libhakmem.so.1" ]
is "$(sh -c '. "$1"; echo "$pkgver"' sh "$recipes/alpine/APKBUILD")"
(cd "$out" && sh -c '. "$1"; echo "$sha512sums"' sh "$recipes/alpine/APKBUILD" | sha512sum --check)

echo "== Homebrew"
ruby -c "$recipes/homebrew/hakmem.rb"
is "$(sed -n 's/^  version "\(.*\)"$/\1/p' "$recipes/homebrew/hakmem.rb")"

echo "== vcpkg"
is "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["version"])' "$recipes/vcpkg/vcpkg.json")"
cat >"$work/port.cmake" <<'END'
foreach(name download_distfile extract_source_archive cmake_configure cmake_install cmake_config_fixup fixup_pkgconfig install_copyright)
    cmake_language(EVAL CODE "function(vcpkg_${name})\n message(STATUS \"${name} \${ARGN}\")\nendfunction()")
endforeach()
include(${PORT})
END
cmake -DPORT="$recipes/vcpkg/portfile.cmake" -DVERSION="$version" -DCURRENT_PACKAGES_DIR="$work/vcpkg" -P "$work/port.cmake"

echo "== Conan"
python3 -m venv "$work/conan"
"$work/conan/bin/pip" install --quiet --disable-pip-version-check conan==2.34.0
export CONAN_HOME=$work/conan/home
"$work/conan/bin/conan" profile detect
"$work/conan/bin/conan" create "$recipes/conan" --format=json --test-folder= >"$work/conan.json"
is "$("$work/conan/bin/conan" inspect "$recipes/conan" --format=json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')"
[ -n "$(find "$work/conan/home/p" -name libhakmem.so.1)" ]

echo "== Spack"
is "$(python3 - "$recipes/spack/package.py" <<'END'
import ast, sys

calls = (node for node in ast.walk(ast.parse(open(sys.argv[1]).read())) if isinstance(node, ast.Call))
print(next(call.args[0].value for call in calls if getattr(call.func, "id", "") == "version"))
END
)"

echo "== Nix"
export NIX_STATE_DIR=$work/nix NIX_STORE_DIR=$work/nix/store NIX_CONF_DIR=$work/nix
is "$(nix-instantiate --eval --strict --expr "(import $recipes/nix/default.nix {
    lib = { licenses.mit = \"MIT\"; }; stdenv.mkDerivation = facts: facts; fetchurl = facts: facts; cmake = 1; ninja = 1;
}).version" | tr -d '"')"

echo "== Files of forges"
.venv/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
.venv/bin/check-jsonschema --builtin-schema vendor.gitlab-ci --data-transform gitlab-ci .gitlab-ci.yml
.venv/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
find .github/ISSUE_TEMPLATE -name '*.yml' ! -name config.yml \
    -exec .venv/bin/check-jsonschema --builtin-schema vendor.github-issue-forms {} +
grep -q '.ci/run' .github/workflows/test.yml
grep -q '.ci/run' .gitlab-ci.yml
