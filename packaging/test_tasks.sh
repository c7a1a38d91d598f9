#!/usr/bin/env bash
# Does three tasks as a user does, each in a new root of this system's release that has python3 and a clone: is my Python
# service better off with hakmem, put it into this Dockerfile, who holds my memory? The guides alone say what is typed. Each
# is to be done, with the right answer, within ten minutes. TASKS=NAME... does some of them.
. "$(dirname "${BASH_SOURCE[0]}")/facts.sh"

longest_s=600
work=$out/tasks
. /etc/os-release

# follow TASK: its script, in a new root. What was typed and said is in TASK.txt then, the seconds are in TASK.s, and what is
# in ~/service, in the folder service. Packages are fetched through what this machine fetches them through, and questions are answered by yes.
follow() {
    local setup=()
    for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [ ! -f $file ] || setup+=("--customize-hook=upload $file $file")
    done
    mmdebstrap --quiet --variant=apt --format=null --dpkgopt=force-unsafe-io --include=python3,ca-certificates \
        --aptopt='APT::Get::Assume-Yes "true"' "${setup[@]}" \
        --customize-hook="tar-in $work/inside.tar /mnt" --customize-hook='mkdir -p "$1/mnt/home/service"' \
        --customize-hook="chroot \"\$1\" env HOME=/mnt/home bash -c 'cd /mnt/hakmem
            bash ../$1.sh >../said 2>&1 </dev/null; status=\$?
            echo \$SECONDS >../seconds
            cat ../said; exit \$status'" \
        --customize-hook="download /mnt/said $work/$1.txt" --customize-hook="download /mnt/seconds $work/$1.s" \
        --customize-hook="copy-out /mnt/home/service $work" "$VERSION_CODENAME"
}

# says TASK PATTERN...: each is of a line of what was said.
says() {
    local task=$1 pattern
    for pattern in "${@:2}"; do grep -qE -- "$pattern" "$work/$task.txt" || { echo "$task does not say: $pattern" && return 1; }; done
}

measure() {
    says measure '^python3: nothing stands against hakmem$' '^hakmem +[0-9].*(better|worse|no difference|don.t know)$'
}

# The largest line is that of live blocks. What the profile says is live is that, but for a fifth: it is sampled.
holders() {
    says holders '^live blocks .*[5-9][0-9]\.[0-9]%' '^later.prof minus now.prof.*: live [1-9]'
    python3 - "$work/holders.txt" <<'END'
import re, sys

text = open(sys.argv[1]).read()
explained = float(re.search(r"^live blocks +([\d.]+) MiB", text, re.MULTILINE)[1])
sampled = float(re.search(r"^now.prof.*: live ([\d.]+) MiB", text, re.MULTILINE)[1])
assert 0.8 < sampled / explained < 1.25, (sampled, explained)
assert re.search(r"^profile\.\d+\.prof.*: live ", text, re.MULTILINE), "no table of the second run"
END
}

# The image is built here: buildah, as a chroot, stands for docker.
dockerfile() {
    local start=$SECONDS image=$work/service container
    { recipe dockerfile && echo 'CMD ["grep", "-c", "libhakmem", "/proc/self/maps"]'; } >"$image/Dockerfile"
    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io "$VERSION_CODENAME" "$image/base.tar"
    container=$(buildah_here from scratch)
    buildah_here add --quiet "$container" "$image/base.tar" /
    rm "$image/base.tar"
    buildah_here commit --quiet "$container" "docker.io/library/$(recipe dockerfile | sed -n 's/^FROM //p')"
    buildah_here bud --pull-never --tag task "$image"
    container=$(buildah_here from --pull-never task)
    buildah_here run "$container" grep -c libhakmem /proc/self/maps
    buildah_here rm "$container" >/dev/null
    echo $(($(cat "$work/dockerfile.s") + SECONDS - start)) >"$work/dockerfile.s"
}

for task in ${TASKS:-measure dockerfile holders}; do
    follow $task
    $task
    printf '%-12s %4d s\n' $task "$(cat "$work/$task.s")"
done
for task in ${TASKS:-measure dockerfile holders}; do [ "$(cat "$work/$task.s")" -lt $longest_s ]; done
