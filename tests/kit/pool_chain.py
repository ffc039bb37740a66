"""A program of C steps, made by hand, that knows its result to the bit."""

import numpy as np

from ingot.run import library
from ingot.support import abi

LENGTH = 1000


class Chain:
    """A program of `steps` steps that negate and flip [LENGTH]: each part needs what another part wrote before."""

    def __init__(self, threads: int, parts: int, steps: int = 9, seed: int = 1):
        self.native = library.load()
        ffi = self.native.ffi
        self.x = np.random.default_rng(seed).standard_normal(LENGTH, np.float32)
        self.expected = (-self.x[::-1] if steps % 2 else self.x).tobytes()
        self.values = np.full((steps, LENGTH), np.nan, np.float32)
        self.args = ffi.new("elementwise_args[]", steps)
        rows = ffi.new("ingot_step[]", steps)
        for i in range(steps):
            self.args[i] = {"rank": 1, "shape": [LENGTH], "a_strides": [-1], "out_strides": [1]}
            self.args[i].out = ffi.cast("void *", self.values[i].ctypes.data)
            if i:
                self.args[i].a = ffi.cast("void *", self.values[i - 1].ctypes.data + 4 * (LENGTH - 1))
            pieces = 1 if i % 4 == 3 else parts
            rows[i] = (self.native.kernel("neg_f32", self.native.isa()), ffi.addressof(self.args, i), pieces, i > 0, 1)
        where = ffi.cast("void **", ffi.addressof(self.args[0], "a"))
        patches = ffi.new("ingot_patch[]", [(where, 0, 4 * (LENGTH - 1))])
        self.bindings = ffi.new("void *[]", [ffi.cast("void *", self.x.ctypes.data)])
        self.times = np.zeros((steps, threads, 2), np.int64)
        self.stop = np.zeros(1, np.int32)
        fields = {"steps": rows, "patches": patches, "step_count": steps, "patch_count": 1, "threads": threads}
        fields |= {"stop": ffi.from_buffer("int32_t[]", self.stop)}
        self.program = ffi.new("ingot_program *", fields)
        self.alive = (rows, patches, fields)

    def run(self) -> bool:
        """Whether the result has the bits that it must have."""
        self.values.fill(np.nan)
        code = self.native.entry.ingot_run(self.program, self.bindings, self.native.ffi.NULL)
        return code == 0 and self.values[-1].tobytes() == self.expected

    def run_stopped(self) -> int | None:
        """How many steps a run made before it was stopped; None for one that was not, and has its bits.

        Raises AssertionError when a step that was made is not whole, or one behind the next was begun.
        """
        self.values.fill(np.nan)
        fault = self.native.ffi.new("ingot_fault *")
        code = self.native.entry.ingot_run(self.program, self.bindings, fault)
        if code == 0:
            assert self.values[-1].tobytes() == self.expected
            return None
        assert code == abi.constant("INGOT_STOPPED") == fault.code
        whole = [i for i, row in enumerate(self.values) if not np.isnan(row).any()]
        assert whole == list(range(fault.step)) and np.isnan(self.values[fault.step + 1 :]).all()
        return int(fault.step)

    def run_timed(self, is_separate: bool) -> bool:
        self.values.fill(np.nan)
        self.times.fill(0)
        null, times = self.native.ffi.NULL, self.native.ffi.from_buffer("int64_t[]", self.times)
        code = self.native.entry.ingot_run_timed(self.program, self.bindings, null, times, is_separate)
        is_whole = self.times[:, 0].all() and (np.diff(self.times[:, 0].reshape(-1)) >= 0).all()
        return code == 0 and self.values[-1].tobytes() == self.expected and bool(is_whole)
