#!/usr/bin/env bash
# The image of docs/containers.md, from the package libhakmem1 of build/packages, as hakmem-VERSION.oci.tar beside it. Its
# base is a root of this system's release, made here: no registry of images is asked.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/container
rm -rf "$work"
mkdir -p "$work"
cp "$out"/libhakmem1_*.deb "$work" || { echo "./dev package debian comes first" && exit 1; }
recipe dockerfile >"$work/Dockerfile"
base=$(sed -n 's/^FROM //p' "$work/Dockerfile")
mmdebstrap --variant=minbase --dpkgopt=force-unsafe-io "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/base.tar"
container=$(buildah_here from scratch)
buildah_here add --quiet "$container" "$work/base.tar" /
buildah_here commit --quiet "$container" "docker.io/library/$base"
buildah_here bud --pull-never --tag hakmem "$work"
rm "$work/base.tar" "$work"/*.deb
buildah_here push --quiet hakmem "oci-archive:$out/hakmem-$version.oci.tar"
