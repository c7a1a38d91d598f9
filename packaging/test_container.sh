#!/usr/bin/env bash
# Follows the recipes of docs/containers.md: the image, Kubernetes' pod by hand, the service.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

work=$out/container-test
rm -rf "$work"
mkdir -p "$work/volume"
count=(grep -c libhakmem /proc/self/maps)
base=docker.io/library/$(recipe dockerfile | sed -n 's/^FROM //p')

# run IMAGE COMMAND...: in a container of its own, made with the options.
run() {
    local container status=0
    container=$(buildah_here from --pull-never "$1")
    shift
    buildah_here run "${options[@]}" "$container" "$@" || status=$?
    buildah_here rm "$container" >/dev/null
    return $status
}

# The image.
options=()
run hakmem "${count[@]}"
fails run "$base" "${count[@]}" # the base has none of it

# The deployment is one, to Kubernetes; its containers do what they say.
recipe yaml >"$work/deployment.yaml"
.venv/bin/kubernetes-validate --strict "$work/deployment.yaml"
mapfile -t pod < <(.venv/bin/python - "$work/deployment.yaml" <<'END'
import sys, yaml

pod = yaml.safe_load(open(sys.argv[1]))["spec"]["template"]["spec"]
print(pod["initContainers"][0]["command"][2])
(variable,) = pod["containers"][0]["env"]
print(f"{variable['name']}={variable['value']}")
print(*(one["volumeMounts"][0]["mountPath"] for one in pod["initContainers"] + pod["containers"]))
END
)
read -r first second <<<"${pod[2]}"
options=(--volume "$work/volume:$first")
run hakmem sh -c "${pod[0]}"
options=(--volume "$work/volume:$second:ro" --env "${pod[1]}")
run "$base" "${count[@]}"

# The drop-in is one, to systemd; what it sets works where the package is.
mkdir -p "$work/service.service.d"
printf '[Service]\nExecStart=/bin/true\n' >"$work/service.service"
recipe ini >"$work/service.service.d/hakmem.conf"
SYSTEMD_UNIT_PATH=$work: systemd-analyze verify "$work/service.service" 2>&1 | tee "$work/said"
fails grep -F "$work" "$work/said"
options=()
run hakmem env --ignore-environment "$(recipe ini | sed -n 's/^Environment=//p')" /bin/"${count[0]}" "${count[@]:1}"
