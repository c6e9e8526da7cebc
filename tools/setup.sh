# Sourced by tools/unicorn and tools/test: finds or installs what the project needs on Debian and Ubuntu.
#
# System packages come from apt (as root, or through sudo); Python packages go into .venv beside pyproject.toml. What can
# be neither found nor installed is named, and the script ends.

set -euo pipefail
project_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$project_root/.venv

say() { printf '%s\n' "unicorn_async set-up: $*" >&2; }

die() { say "$*"; exit 1; }

# install_system PACKAGE ...: installs those that are not there yet.
install_system() {
  local missing=() package sudo=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || die "please install: ${missing[*]} (there is no sudo, and you are not root)"
    sudo=(sudo)
  fi
  say "installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get could not install: ${missing[*]}"
}

find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      echo "$candidate"
      return
    fi
  done
}

# make_venv EXTRAS: .venv with the project in it, made anew when pyproject.toml or the extras change.
make_venv() {
  local extras=$1 python stamp
  python=$(find_python)
  [[ -n $python ]] || die "Python 3.11 or newer is needed; found $(python3 --version 2>&1 || echo none)"
  stamp="$("$python" --version) $extras $(sha256sum <"$project_root/pyproject.toml")"
  if [[ -x $venv/bin/python && $(cat "$venv/.stamp" 2>/dev/null) == "$stamp" ]]; then return; fi
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    install_system "$(basename "$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')")-venv"
  fi
  say "installing Python packages into ${venv#"$project_root"/}"
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$project_root$extras" ||
    die "pip could not install the Python packages"
  echo "$stamp" >"$venv/.stamp"
}

setup() {
  local extras=$1
  shift
  if command -v dpkg-query >/dev/null; then
    install_system libvulkan1 mesa-vulkan-drivers "$@"
  else
    say "no apt here: a Vulkan loader (libvulkan.so.1) and a Vulkan driver must be installed already"
  fi
  make_venv "$extras"
}
