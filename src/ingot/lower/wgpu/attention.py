"""How attention runs on a device of WebGPU: by tiles, by rows, or by parts of its keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ingot.lower.lowered import Step
from ingot.lower.wgpu.kernels import Kernel, Numbers, kernel_of
from ingot.lower.wgpu.wgsl import LANES
from ingot.ops.kv_cache import CACHE_BLOCK

_TILE_ROWS = 32  # as attention_tiles.wgsl has them
_FEW_PAIRS = 8  # rows of heads with the same keys that are not worth a tile
_LONG = 1024  # keys that are worth a dispatch more
_FEW_GROUPS = 256  # workgroups that leave a GPU idle
_PART_KEYS, _MOST_PARTS = 256, 64
_ONE_PART = """fn parts() -> i32 { return 1; }

fn leave(group: i32, out: i32, d: i32, sum: f32, most: f32, total: f32) { set_out(out + d, settled(sum, total)); }"""
_EACH_PART = """fn parts() -> i32 { return part_count(); }

fn leave(group: i32, out: i32, d: i32, sum: f32, most: f32, total: f32) {
  let place = part_place(group / parts(), group % parts());
  set_scratch(place + d, sum);
  if (d == 0) {
    set_scratch(place + arg_v_dim(), most);
    set_scratch(place + arg_v_dim() + 1, total);
  }
}"""


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention runs over keys that lie as a file of shaders/ says.

    rows: the fields that count its rows, the last of them those that may see the same keys. keys: how many a row may
    see, at most. shares: whether rows see the same keys. baked: as a kernel's.
    """

    file: str
    rows: tuple[str, ...]
    keys: Callable[[Numbers], int]
    shares: Callable[[Numbers], bool]
    baked: tuple[str, ...]

    def kernels(self, fields: Numbers) -> Sequence[Kernel]:
        """Tiles for many rows; for few, which see many keys, parts of these and what joins them; else rows."""
        columns = f"const COLUMNS: i32 = {-(-int(_product(fields, 'v_dim')) // LANES)};"
        part = f"const PART_KEYS: i32 = {self._part_keys(fields)};"
        if self.shares(fields) and self._pairs(fields) > _FEW_PAIRS:
            return [replace(self._kernel("tiles", self._tiles, columns), is_alone=True)]
        keys = self.keys(fields)
        if min(keys, _product(fields, "window") or keys) <= _LONG or self._groups(fields) > _FEW_GROUPS:
            return [self._kernel("rows", self._groups, columns, part, _ONE_PART)]
        return [
            self._kernel("rows", lambda f: self._groups(f) * self._parts(f), columns, part, _EACH_PART),
            self._kernel("join", self._groups, part),
        ]

    def scratch_floats(self, fields: Numbers) -> int:
        """What the parts of keys leave: sums, the largest score, and the total."""
        if len(self.kernels(fields)) == 1:
            return 0
        return int(self._groups(fields)) * int(self._parts(fields)) * (_product(fields, "v_dim") + 2)

    def _kernel(self, body: str, groups: Callable[[Numbers], int], *own: str) -> Kernel:
        return Kernel(f"attention_{body}", groups, lambda fields: "\n\n".join(own), self.baked, beside=self.file)

    def _pairs(self, fields: Numbers) -> int:
        """Rows with the same keys, one for each of the heads that read one head of them."""
        return _product(fields, self.rows[-1]) * (_product(fields, "heads") // _product(fields, "kv_heads"))

    def _groups(self, fields: Numbers) -> int:
        return _product(fields, "heads", *self.rows)

    def _tiles(self, fields: Numbers) -> int:
        return _product(fields, "kv_heads", *self.rows[:-1]) * -(-self._pairs(fields) // _TILE_ROWS)

    def _part_keys(self, fields: Numbers) -> int:
        """Keys of a part: more where there would be too many parts."""
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
    """Of numbers, 0 where a step leaves one out."""
    product = 1
    for name in names:
        value = fields.get(name, 0)
        assert isinstance(value, int), name
        product *= value
    return product


def attention_floats(kernel: str, fields: Numbers) -> int:
    """What a kernel of attention hands on between dispatches; 0 of another."""
    return ATTENTION[kernel].scratch_floats(fields) if kernel in ATTENTION else 0


def kernels_of(step: Step) -> Sequence[Kernel]:
    """What runs a step, one after another."""
    return ATTENTION[step.kernel].kernels(step.fields) if step.kernel in ATTENTION else [kernel_of(step)]
