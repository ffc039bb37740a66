"""What does emitted C need on a microcontroller, compared with C of another generator?

Models as C on a Cortex-M4 with its single-precision FPU, batch 1, by `ingot emit-c --freestanding`; with --emx by
emx-onnx-cgen, too. It takes arm-none-eabi-gcc and qemu-system-arm, as `make test-cpus` installs them.
"""
