#!/usr/bin/env bash
# `make test-aarch64`: the library and emitted C cross-compiled, their bits compared with those of this machine in an
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

cmake=$(dirname "$python")/cmake
[ -x "$cmake" ] || cmake=cmake
"$cmake" -S . -B "$build/library" -G Ninja -DCMAKE_MAKE_PROGRAM="$(dirname "$python")/ninja" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DPython3_EXECUTABLE="$python" > /dev/null
"$cmake" --build "$build/library"

"$python" tests/kit/bits_elsewhere.py write "$build/bits"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH=$modules:$PWD/src:$PWD/tests/kit:$site INGOT_LIBRARY=$build/library/libingot.so \
  emulated tests/kit/bits_elsewhere.py compare "$build/bits"
PYTHONPATH=$PWD/src:$PWD/tests/kit "$python" tests/kit/emitted_on_aarch64.py
