# Shared by the scripts here: where the state is, how to ask for a port or a process, how to install what is missing.
state=${WATCHFIRE_TESTBED:-${XDG_CACHE_HOME:-$HOME/.cache}/watchfire/testbed}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The processes of a control plane, in the order in which they are started.
# shellcheck disable=SC2034
components=(etcd kube-apiserver kube-controller-manager kube-scheduler kwok)

# Debian keeps servers in /usr/sbin, which is not on every user's PATH.
export PATH=$PATH:/usr/sbin

say() { echo "testbed: $*" >&2; }

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# runs FILE: whether the process that FILE names is still the one that was started.
runs() {
  local pid started
  read -r pid started 2>/dev/null <"$1" || return 1
  # One that was gone before it could be asked has none.
  [[ -n $started && $(started_at "$pid") == "$started" ]]
}

# The kernel's start time of a process: a number that its successor under the same id does not have.
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f1,20 | grep -v '^Z' | cut -d' ' -f2 || true; }

# Installs a Debian package without starting the service it brings. In a shell of its own, which takes the policy away
# however it ends: no other package on this machine could start a service under it.
install() (
  say "installing $1 with apt-get"
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$1"; } >&2
)
