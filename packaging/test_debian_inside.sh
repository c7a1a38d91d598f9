# The part of test_debian.sh that runs inside of the new root.
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt_get() { apt-get -y -q --no-install-recommends "$@"; }

# All files but those of package managers, and caches.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /mnt -o -path /tmp -o -path /var/lib/apt \
        -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \) -prune -o -print | sort
}

apt_get update
apt_get install python3 python3-pyelftools python3-rich gcc libc6-dev pkg-config
files >/mnt/before

apt_get install /mnt/old/*.deb
LD_PRELOAD=libhakmem.so.1 sleep 60 & # a program that runs during the upgrade
survivor=$!
apt_get install /mnt/new/*.deb
kill -0 $survivor
kill $survivor

# The command takes over, with the system's library.
library=$(readlink -f /usr/lib/*-linux-gnu/libhakmem.so.1)
hakmem run -- python3 -c pass
hakmem run -- python3 -c 'print(open("/proc/self/maps").read())' | grep -F "$library"
hakmem --version | grep -F "$library"
hakmem compare -n 2 --warmup 0 -- python3 -c pass
hakmem bench --help >/dev/null
ls /usr/share/man/man1/hakmem.1.gz /usr/share/man/man3/hakmem.3.gz /usr/share/man/man7/hakmem.7.gz
ls /usr/share/zsh/vendor-completions/_hakmem /usr/share/fish/vendor_completions.d/hakmem.fish
bash -c '. /usr/share/bash-completion/completions/hakmem && complete -p hakmem'

cd /mnt
status=0
hakmem compare -n 2 --html page.html -- true 2>said || status=$?
test $status = 2
grep -x 'hakmem: --html needs jinja2 and matplotlib: apt install python3-jinja2 python3-matplotlib' said

# Programs link to it.
gcc main.c -o program $(pkg-config --cflags --libs hakmem)
./program
gcc main.c -static -o program $(pkg-config --cflags --variable=object hakmem)
./program

apt_get purge hakmem libhakmem1 libhakmem-dev
files >/mnt/after
diff /mnt/before /mnt/after

# Debian's own versions of what only some commands need.
apt_get install /mnt/new/*.deb python3-jinja2 python3-matplotlib python3-numpy
hakmem compare -n 2 --warmup 0 --html page.html -- true
test -s page.html
hakmem profile --interval 1K -o profile -- python3 -c 'x = [str(i) * 20 for i in range(100000)]'
ls profile.*.pb.gz
