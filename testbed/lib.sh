# Shared by testbed/up and testbed/down: where the state is, and how to ask for a port or a process.
state=${WATCHFIRE_TESTBED:-${XDG_CACHE_HOME:-$HOME/.cache}/watchfire/testbed}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Debian keeps servers in /usr/sbin, which is not on every user's PATH.
export PATH=$PATH:/usr/sbin

say() { echo "testbed: $*" >&2; }

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# runs FILE: whether the process that FILE names is still the one that was started.
runs() {
  local pid started
  read -r pid started 2>/dev/null <"$1" || return 1
  [[ $(started_at "$pid") == "$started" ]]
}

# The kernel's start time of a process: a number that its successor under the same id does not have.
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f1,20 | grep -v '^Z' | cut -d' ' -f2 || true; }
