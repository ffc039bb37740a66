#!/usr/bin/env bash
# `make test-aarch64`: the wheel and emitted C cross-compiled, their bits compared with those of this machine in an
# emulated process.
# An emulated Python comes from Debian's packages, those of its modules that hold machine code from PyPI.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly build=$PWD/build/aarch64 python=${PYTHON:-$PWD/.venv/bin/python}
readonly root=$build/root modules=$build/modules

missing=()
for tool in aarch64-linux-gnu-gcc qemu-aarch64-static; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
if [ "${#missing[@]}" -gt 0 ]; then
  packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
  if [ "$(id -u)" -ne 0 ]; then
    echo "${missing[*]}: no such command, expected those of Debian's packages: apt-get install ${packages[*]}" >&2
    exit 1
  fi
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
fi

# apt with lists and a cache of its own: the machine's stay as they are.
if [ ! -e "$root.stamp" ]; then
  mkdir -p "$build/apt/state/lists/partial" "$build/apt/cache/archives/partial" "$root"
  : > "$build/apt/status"
  apt=(apt-get -q -o "Dir::State=$build/apt/state" -o "Dir::Cache=$build/apt/cache"
       -o "Dir::State::status=$build/apt/status" -o APT::Architecture=arm64 -o APT::Architectures=arm64)
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends --download-only python3-minimal libpython3-stdlib libstdc++6
  for package in "$build"/apt/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$root"
  done
  touch "$root.stamp"
fi

emulated() { qemu-aarch64-static -L "$root" "$root/usr/bin/python3" "$@"; }

if [ ! -e "$modules.stamp" ]; then
  version=$(emulated -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -m pip --quiet install --target "$modules" --no-deps --only-binary=:all: --python-version "$version" \
    --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
    --requirement <("$python" -m pip freeze | grep -iE '^(numpy|ml.dtypes|cffi|onnx|safetensors|tokenizers|markupsafe|pyyaml)==')
  touch "$modules.stamp"
fi

# The wheel as it is shipped; its build is kept, so that only what has changed is compiled again. What builds it is this
# machine's, and must be there before pip is told of the other one.
if [ ! -e "$build/tools.stamp" ]; then
  "$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
    > "$build/tools.txt"
  "$python" -m pip --quiet install --target "$build/tools" --requirement "$build/tools.txt"
  touch "$build/tools.stamp"
fi
rm -rf "$build/wheel" "$build/installed"
PATH=$(dirname "$python"):$PATH PYTHONPATH=$build/tools _PYTHON_HOST_PLATFORM=linux-aarch64 \
  CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc" \
  "$python" -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir "$build/wheel" \
  -C build-dir="$build/library" .
"$python" -m pip --quiet install --target "$build/installed" --no-deps --only-binary=:all: \
  --platform linux_aarch64 "$build"/wheel/ingot_compiler-*-py3-none-linux_aarch64.whl

"$python" tests/kit/bits_elsewhere.py write "$build/bits"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH=$modules:$build/installed:$PWD/tests/kit:$site INGOT_LIBRARY= \
  emulated tests/kit/bits_elsewhere.py compare "$build/bits"
PYTHONPATH=$PWD/src:$PWD/tests/kit "$python" tests/kit/emitted_on_aarch64.py
