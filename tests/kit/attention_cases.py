"""Shapes of attention that take each of WebGPU's ways, which samples of the ops are too small for."""

from ingot.ir.graph import Sample
from ingot.ops.define import sample

ROWS, TILES, PARTS = ["attention_rows"], ["attention_tiles"], ["attention_rows", "attention_join"]
# Heads in groups, dims and keys that leave a rest, masks, windows, rows that see nothing, and so many rows, or keys,
# that keys are in one part, or in longer ones.
_DENSE = [
    (ROWS, sample("q[1,6,2,40] k[1,2,70,40] v[1,2,70,72]", scale=0.2)),
    (TILES, sample("q[2,6,17,40] k[2,2,130,40] v[2,2,130,72]", scale=0.2)),
    (TILES, sample("q[1,2,70,8] k[1,2,70,8] v[1,2,70,5]", scale=0.4, causal=True)),
    (TILES, sample("q[1,2,66,8] k[1,1,65,8] v[1,1,65,9] m[1,2,66,65]", scale=0.4, causal=True, causal_offset=-3)),
    (TILES, sample("q[1,1,40,8] k[1,1,33,8] v[1,1,33,9] m:bool[40,33]", scale=0.4, safe=False)),
    (PARTS, sample("q[2,3,2,8] k[2,3,1030,8] v[2,3,1030,70]", scale=0.4)),
    (PARTS, sample("q[1,4,1,16] k[1,2,1100,16] v[1,2,1100,16] m:bool[1,1100]", scale=0.4)),
]
_CACHE = "k[{0},2,24,64] v[{0},2,64,72]"
_CACHED = [
    (TILES, sample(f"q[40,4,24] {_CACHE.format(5)} p:i32<320[40] o:i32<1[40] b:i32<5[1,5]", scale=0.3)),
    (TILES, sample(f"q[40,4,24] {_CACHE.format(5)} p:i32<320[40] o:i32<1[40] b:i32<5[1,5]", scale=0.3, window=70)),
    (PARTS, sample(f"q[1,4,24] {_CACHE.format(30)} p:i32>1000<1280[1] o:i32<1[1] b:i32<30[1,20]", scale=0.3)),
    (PARTS, sample(f"q[5,2,24] {_CACHE.format(30)} p:i32<1280[5] o:i32<3[5] b:i32<30[3,20]", scale=0.3, softcap=2.0)),
    (PARTS, sample(f"q[3,2,24] {_CACHE.format(30)} p:i32<2560[3] o:i32<2[3] b:i32<30[2,40]", scale=0.3, window=1030)),
    (ROWS, sample(f"q[3,2,24] {_CACHE.format(30)} p:i32<2560[3] o:i32<2[3] b:i32<30[2,40]", scale=0.3, window=80)),
    (ROWS, sample(f"q[70,4,24] {_CACHE.format(9)} p:i32<1280[70] o:i32<2[70] b:i32<9[2,20]", scale=0.3)),
    (
        TILES,
        sample(f"q[40,4,24] {_CACHE.format(5)} p:i32<320[40] o:i32<1[40] b:i32<5[1,5] none none s>-3<3[4]", scale=0.3),
    ),
    (
        PARTS,
        sample(f"q[5,2,24] {_CACHE.format(30)} p:i32<1280[5] o:i32<3[5] b:i32<30[3,20] none none s>-3<3[2]", scale=0.3),
    ),
    (
        ROWS,
        sample(
            f"q[3,2,24] {_CACHE.format(30)} p:i32<2560[3] o:i32<2[3] b:i32<30[2,40] none none s>-3<3[2]",
            scale=0.3,
            segment=90,
        ),
    ),
    (PARTS, sample("q[1,2,8] k[9,1,8,64] v[9,1,64,8] p:i32>18000<19200[1] o:i32<1[1] b:i32<9[1,300]", scale=0.3)),
]
ATTENTION: dict[str, list[tuple[list[str], Sample]]] = {"attention": _DENSE, "cached_attention": _CACHED}
