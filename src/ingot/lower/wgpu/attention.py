"""Attention on WebGPU devices: by tiles, by rows, or by splits of the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ingot.lower.lowered import Step
from ingot.lower.wgpu.kernels import Kernel, Numbers, kernel_of
from ingot.lower.wgpu.wgsl import LANES
from ingot.ops.kv_cache import CACHE_BLOCK

_TILE_ROWS = 32  # as in attention_tiles.wgsl
_FEW_PAIRS = 8  # up to this many rows of heads with the same keys, a tile does not pay off
_LONG = 1024  # from this many keys on, an additional dispatch pays off
_FEW_GROUPS = 256  # up to this many workgroups leave a GPU idle
_PART_KEYS, _MOST_PARTS = 256, 64
_ONE_PART = """fn parts() -> i32 { return 1; }

fn leave(group: i32, out: i32, d: i32, sum: f32, most: f32, total: f32) {
  set_out(out + d, settled(sum, total, most, group / row_count() % arg_heads()));
}"""
_EACH_PART = """fn parts() -> i32 { return part_count(); }

fn leave(group: i32, out: i32, d: i32, sum: f32, most: f32, total: f32) {
  let offset = part_offset(group / parts(), group % parts());
  set_scratch(offset + d, sum);
  if (d == 0) {
    set_scratch(offset + arg_v_dim(), most);
    set_scratch(offset + arg_v_dim() + 1, total);
  }
}"""


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention over keys in the layout of a file of shaders/.

    rows: the fields whose product is the number of rows; the last one counts the rows that may see the same keys. keys:
    the maximum number of keys of a row. shares: whether rows see the same keys. baked: as in `Kernel`.
    """

    file: str
    rows: tuple[str, ...]
    keys: Callable[[Numbers], int]
    shares: Callable[[Numbers], bool]
    baked: tuple[str, ...]

    def kernels(self, fields: Numbers) -> Sequence[Kernel]:
        """Return kernels: tiles for many rows; splits of keys and a join for few rows with many keys; else rows."""
        columns = f"const COLUMNS: i32 = {-(-int(_product(fields, 'v_dim')) // LANES)};"
        part = f"const PART_KEYS: i32 = {self._part_keys(fields)};"
        if self.shares(fields) and self._pairs(fields) > _FEW_PAIRS:
            return [replace(self._kernel("tiles", self._tiles, columns), is_alone=True)]
        keys = self.keys(fields)
        if (
            min(keys, _product(fields, "window") or keys, _product(fields, "segment") or keys) <= _LONG
            or self._groups(fields) > _FEW_GROUPS
        ):
            return [self._kernel("rows", self._groups, columns, part, _ONE_PART)]
        return [
            self._kernel("rows", lambda f: self._groups(f) * self._parts(f), columns, part, _EACH_PART),
            self._kernel("join", self._groups, part),
        ]

    def scratch_floats(self, fields: Numbers) -> int:
        """Return the scratch of the splits of keys: sums, the largest score, and the total."""
        if len(self.kernels(fields)) == 1:
            return 0
        return int(self._groups(fields)) * int(self._parts(fields)) * (_product(fields, "v_dim") + 2)

    def _kernel(self, body: str, groups: Callable[[Numbers], int], *own: str) -> Kernel:
        return Kernel(f"attention_{body}", groups, lambda fields: "\n\n".join(own), self.baked, library=self.file)

    def _pairs(self, fields: Numbers) -> int:
        """Return the number of rows with the same keys, counting each query head of a key head."""
        return _product(fields, self.rows[-1]) * (_product(fields, "heads") // _product(fields, "kv_heads"))

    def _groups(self, fields: Numbers) -> int:
        return _product(fields, "heads", *self.rows)

    def _tiles(self, fields: Numbers) -> int:
        return _product(fields, "kv_heads", *self.rows[:-1]) * -(-self._pairs(fields) // _TILE_ROWS)

    def _part_keys(self, fields: Numbers) -> int:
        """Return the keys of a split; more if there would be too many splits."""
        return _PART_KEYS * max(1, -(-int(self.keys(fields)) // (_PART_KEYS * _MOST_PARTS)))

    def _parts(self, fields: Numbers) -> int:
        return -(-self.keys(fields) // self._part_keys(fields))


_DENSE = Attention(
    "attention_dense",
    ("batch", "q_len"),
    lambda fields: _product(fields, "kv_len"),
    lambda fields: True,
    ("causal", "mask_kind"),
)
_CACHED = Attention(
    "attention_cached",
    ("rows",),
    lambda fields: _product(fields, "blocks_each") * CACHE_BLOCK,
    lambda fields: _product(fields, "sequences") == 1,
    ("softcap",),
)
ATTENTION = {"attention_f32": _DENSE, "attention_f32_online": _DENSE, "cached_attention_f32": _CACHED}


def _product(fields: Numbers, *names: str) -> int:
    """Multiply fields; 0 if a step omits one."""
    product = 1
    for name in names:
        value = fields.get(name, 0)
        assert isinstance(value, int), name
        product *= value
    return product


def attention_floats(kernel: str, fields: Numbers) -> int:
    """Return the f32 numbers that an attention kernel passes between dispatches; 0 for other kernels."""
    return ATTENTION[kernel].scratch_floats(fields) if kernel in ATTENTION else 0


def kernels_of(step: Step) -> Sequence[Kernel]:
    """Return the kernels of a step, in order."""
    return ATTENTION[step.kernel].kernels(step.fields) if step.kernel in ATTENTION else [kernel_of(step)]
