#!/usr/bin/env bash
# Installs build/packages/*.deb into a new root of this system's release, over packages of an older version, and uses
# them; then removes them, and looks for what they left behind.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/debian-test
rm -rf "$work"
mkdir -p "$work/new" "$work/old"
cp packaging/test_debian_inside.sh tests/install/consumer/main.c "$work"
for package in "$out"/*hakmem*_*.deb; do
    [[ $package != *-dbgsym_* ]] || continue
    cp "$package" "$work/new"
    # The same as an older release, for what an upgrade does.
    dpkg-deb -R "$package" "$work/package"
    sed -i "s/$version-[^ )]*/0.0.1-1/" "$work/package/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$work/package" "$work/old" >/dev/null
    rm -r "$work/package"
done
tar -C "$work" -cf "$work/inside.tar" new old test_debian_inside.sh main.c
. /etc/os-release
mmdebstrap --variant=apt --format=null --dpkgopt=force-unsafe-io \
    --customize-hook="tar-in $work/inside.tar /mnt" \
    --customize-hook='chroot "$1" sh -eux /mnt/test_debian_inside.sh' "$VERSION_CODENAME"
