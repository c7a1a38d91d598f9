#!/usr/bin/env bash
# libhakmem1, libhakmem-dev and hakmem for the Debian or Ubuntu that this is, into build/packages, from the source's
# tarball. What the laboratory needs and Debian has too old goes into the package hakmem.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

packaging/source.sh
work=$out/debian
rm -rf "$work" "$out"/*.deb "$out"/*.buildinfo "$out"/*.changes
mkdir -p "$work"
tar -xf "$out/hakmem-$version.tar.xz" -C "$work"
tree=$work/hakmem-$version
mv "$tree/packaging/debian" "$tree/debian"
filled packaging/debian/control >"$tree/debian/control"

cat >"$tree/debian/changelog" <<END
hakmem ($version-1~$(. /etc/os-release && echo "$ID$VERSION_ID")) $(. /etc/os-release && echo "$VERSION_CODENAME"); urgency=medium

  * CHANGELOG.md tells what is new.

 -- $maintainer  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
END

python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pinned click msgspec protobuf >"$work/requirements.txt"
.venv/bin/pip download --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$python" \
    --dest "$tree/debian/wheels" -r "$work/requirements.txt"

(cd "$tree" && dpkg-buildpackage --build=binary --no-sign)
mv "$work"/*.deb "$work"/*.buildinfo "$work"/*.changes "$out"
lintian --fail-on error "$out"/hakmem_*.changes
