#!/usr/bin/env bash
# `make test-cpus`: emitted C on CPUs and systems that are not this machine's, by Debian's cross compilers and emulators.
set -euo pipefail
cd "$(dirname "$0")/../.."

missing=()
for tool in {riscv64,s390x,aarch64}-linux-gnu-gcc arm-linux-gnueabihf-gcc arm-none-eabi-gcc qemu-{riscv64,s390x,aarch64,arm}-static \
            qemu-system-arm; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
if [ "${#missing[@]}" -gt 0 ]; then
  packages=(gcc-riscv64-linux-gnu libc6-dev-riscv64-cross gcc-s390x-linux-gnu libc6-dev-s390x-cross
            gcc-aarch64-linux-gnu libc6-dev-arm64-cross
            gcc-arm-linux-gnueabihf libc6-dev-armhf-cross gcc-arm-none-eabi libnewlib-arm-none-eabi
            qemu-user-static qemu-system-arm)
  if [ "$(id -u)" -ne 0 ]; then
    echo "${missing[*]}: no such command, expected those of Debian's packages: apt-get install ${packages[*]}" >&2
    exit 1
  fi
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
fi

"${PYTHON:-.venv/bin/python}" -m pytest -q tests/kit/cpus.py "$@"
