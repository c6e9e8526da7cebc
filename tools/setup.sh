# Sourced by tools/unicorn and tools/test: finds or installs what the project needs on Debian and Ubuntu.
#
# System packages come from apt (as root, or through sudo), and only where something is really missing. Python packages
# go into .venv beside pyproject.toml, so the system's own Python is left alone. What can be neither found nor installed
# is named, and the script ends.

set -euo pipefail
project_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$project_root/.venv

say() { printf '%s\n' "unicorn_async set-up: $*" >&2; }

die() { say "$*"; exit 1; }

# install_system PACKAGE ...: installs those that are not there yet.
install_system() {
  local missing=() package sudo=()
  command -v apt-get >/dev/null || die "please install what Debian calls: $* (there is no apt here)"
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || die "please install: ${missing[*]} (there is no sudo, and you are not root)"
    sudo=(sudo)
  fi
  say "installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq >/dev/null || say "apt-get update failed; trying with the package lists that are here"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get could not install: ${missing[*]}"
}

has_vulkan_loader() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep 'libvulkan\.so\.1' >/dev/null; }

# has_vulkan_driver PATTERN: whether a driver's manifest of this name is there.
has_vulkan_driver() {
  local folder
  for folder in /usr/share /usr/local/share /etc "${XDG_DATA_HOME:-${HOME:-/root}/.local/share}"; do
    if compgen -G "$folder/vulkan/icd.d/$1" >/dev/null; then return 0; fi
  done
  return 1
}

find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
}

# missing_packages PATTERN: names of the system packages without which it can't go on, on one line.
missing_packages() {
  local packages=() python
  has_vulkan_loader || packages+=(libvulkan1)
  has_vulkan_driver "$1" || packages+=(mesa-vulkan-drivers)
  python=$(find_python)
  if [[ -n $python ]]; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=("python$(python_version "$python")-venv")
  elif ! command -v python3 >/dev/null; then
    packages+=(python3 python3-venv)
  fi
  echo "${packages[*]}"
}

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# make_venv EXTRAS: .venv with the project in it, made anew when Python, the checkout's place or pyproject.toml change.
make_venv() {
  local extras=$1 python stamp version
  python=$(find_python)
  [[ -n $python ]] || die "Python 3.11 or newer is needed; found $(python3 --version 2>&1 || echo none)"
  version=$(python_version "$python")
  stamp="Python $version $project_root $extras $(sha256sum <"$project_root/pyproject.toml")"
  if [[ -x $venv/bin/unicorn && $(cat "$venv/.stamp" 2>/dev/null) == "$stamp" ]]; then return; fi
  if [[ -f $venv/.stamp && $(cat "$venv/.stamp") != "Python $version $project_root "* ]]; then
    "$python" -m venv --clear "$venv" || die "Python could not make $venv"
  elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv "$venv" || die "Python could not make $venv"
  fi
  say "installing Python packages into $venv (a minute or two, once)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$project_root$extras" ||
    die "pip could not install the Python packages"
  printf '%s\n' "$stamp" >"$venv/.stamp"
}

# setup EXTRAS PATTERN: everything; a Vulkan driver whose manifest has a name of this pattern has to be there.
setup() {
  local packages
  read -ra packages <<<"$(missing_packages "$2")"
  # The tests build the NPU's kernels for the CPU, to compare their results.
  [[ $1 != *dev* ]] || command -v g++ >/dev/null || packages+=(g++)
  [[ ${#packages[@]} -eq 0 ]] || install_system "${packages[@]}"
  make_venv "$1"
}
