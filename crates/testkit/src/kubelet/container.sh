# Becomes a container: sh -c THIS sh DIR HOSTNAME [SOURCE TARGET ro|rw]... -- [NAME=VALUE]... PROGRAM [ARGUMENT]...
#
# In namespaces of its own. What an image would bring are the file systems of this machine, each under a layer that takes
# what is written. Descriptor 3 is the container's log.
set -euf
PATH=$PATH:/usr/sbin:/sbin
dir=$1
echo "$2" >/proc/sys/kernel/hostname
shift 2
exec 3>>"$dir/log"

points=$(cut -d ' ' -f 2 /proc/mounts | sort -u) # parents first
layers=$dir/layers root=$dir/layers/root layer=0
mount -t tmpfs layers "$layers"
mkdir "$root"
for point in $points; do
  case $point in /dev | /dev/* | /proc | /proc/* | /sys | /sys/*) continue ;; esac
  layer=$((layer + 1))
  mkdir -p "$layers/$layer/upper" "$layers/$layer/work"
  options=lowerdir=$point,upperdir=$layers/$layer/upper,workdir=$layers/$layer/work
  # A file, or a file system that takes no layer, is seen as it is.
  mount -t overlay -o "$options" layer "$root$point" 2>/dev/null || mount --bind -o ro "$point" "$root$point"
done

mount -t proc proc "$root/proc"
mount --bind -o ro /sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$root/dev"
mkdir -m 1777 "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"

while [ "$1" != -- ]; do
  # Made and resolved within: there, a link such as /var/run leads to this machine's own /run.
  if [ -d "$1" ]; then
    chroot "$root" mkdir -p "$2"
  else
    chroot "$root" sh -c 'mkdir -p "$(dirname "$1")" && touch "$1"' sh "$2"
  fi
  mount --bind -o "$3" "$1" "$root$(chroot "$root" realpath "$2")"
  shift 3
done
shift
exec chroot "$root" /usr/bin/env -i "$@"
