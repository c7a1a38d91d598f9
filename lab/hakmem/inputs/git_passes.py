"""git_passes.py: git reads a whole repository, PASSES times: history with patches, a check, a pack made afresh.

    git_passes.py GIT REPOSITORY PASSES

Writes nothing into the repository. The pack is printed as its checksum: one thread makes it the same every time."""

import hashlib
import subprocess
import sys

git, repository, passes = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(passes):
    for arguments in (
        ["log", "--all", "-p", "--stat", "--find-copies-harder"],
        ["fsck", "--full", "--no-progress"],
        ["-c", "pack.threads=1", "pack-objects", "-q", "--all", "--no-reuse-delta", "--window=50", "--stdout"],
    ):
        done = subprocess.run([git, "-C", repository, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        print(*arguments, done.returncode, len(done.stdout), hashlib.sha256(done.stdout).hexdigest())
