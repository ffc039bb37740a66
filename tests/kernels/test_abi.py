"""abi.py compared with the C compiler: the declarations that it reads, and the sizes of scratch."""

import re
import subprocess

import pytest

from ingot.support import abi

TYPES = {"int8_t": 1, "uint8_t": 1, "int32_t": 4, "uint32_t": 4, "float": 4}  # the others have 8 bytes


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Each constant, and each field's offset and size, as the compiler has them, in the order of abi.py."""
    lines = [f'printf("%d\\n", (int){name});' for name in abi.constants()]
    for struct, fields in abi.structs().items():
        for field in fields:
            name = f"{struct}, {field.name}"
            lines.append(f'printf("%zu %zu\\n", offsetof({name}), sizeof((({struct} *)0)->{field.name}));')
        lines.append(f'printf("%zu\\n", sizeof({struct}));')
    folder = tmp_path_factory.mktemp("abi")
    source = '#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include "abi.h"\nint main(void) {\n'
    (folder / "abi.c").write_text(source + "\n".join(lines) + "\n}\n")
    subprocess.run(["cc", "-I", abi.CSRC, "abi.c", "-o", "abi"], cwd=folder, check=True)
    return subprocess.run([folder / "abi"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_constants(compiled: list[str]) -> None:
    assert list(map(str, abi.constants().values())) == compiled[: len(abi.constants())]


def test_structs(compiled: list[str]) -> None:
    expected = []
    for fields in abi.structs().values():
        end, widest = 0, 1
        for field in fields:
            size = 8 if field.is_pointer else TYPES.get(field.type, 8)
            end, widest = -(-end // size) * size, max(widest, size)
            expected.append(f"{end} {size * field.count}")
            end += size * field.count
        expected.append(str(-(-end // widest) * widest))
    assert expected == compiled[len(abi.constants()) :]


ROWS = re.compile(r'^ *#include "(?!\w+_args)\w+\.def"', re.MULTILINE)
# table.c, which alone makes strings of the names, is read by the compiler only.
READERS = [
    f.relative_to(abi.CSRC).as_posix()
    for f in sorted(abi.CSRC.rglob("*.*"))
    if ROWS.search(f.read_text()) and f.name != "table.c"
]


@pytest.mark.parametrize("name", READERS)
def test_rows_of_tables(name: str) -> None:
    """A file with the rows of .def files in their place is what the preprocessor makes of it."""
    assert preprocessed(abi.source(name)) == preprocessed((abi.CSRC / name).read_text())
    assert not ROWS.search(abi.source(name))


def preprocessed(text: str) -> str:
    """Macros expanded, of the included files only rows, without blanks."""
    lines = [line for line in text.splitlines() if "#include" not in line or ".def" in line]
    command = ["cc", "-E", "-P", "-I", abi.CSRC, "-x", "c", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    return "".join(done.stdout.split())


def test_kernels_with_scratch_say_how_much() -> None:
    """By the fields of their own struct alone; except those that need none or receive addresses."""
    sizes = {}
    for kernel, struct in abi.kernels().items():
        numbers = {field.name: 1 for field in abi.structs()[struct] if not field.is_pointer and field.count == 1}
        sizes[kernel] = abi.scratch_floats(kernel, numbers)
        assert sizes[kernel] == 0 or "scratch" in {field.name for field in abi.structs()[struct]}
    taking = {k for k, struct in abi.kernels().items() if "scratch" in {field.name for field in abi.structs()[struct]}}
    needing_none = {"fused_f32", "conv2d_f32_depthwise", "conv2d_bf16_depthwise"}
    needing_none |= {k for k in taking if k.startswith("scatter_")} - {"scatter_f32"}
    assert {kernel for kernel, size in sizes.items() if size} == taking - needing_none


def test_scratch_of_examples() -> None:
    """Worked by hand: 24 rows of q, scores and sums, panels of keys and values."""
    fields = {"heads": 4, "kv_heads": 2, "q_len": 3, "kv_len": 600, "head_dim": 40, "v_dim": 40}
    own, chunk = 24 * (64 + 16 + 17 * 64), 256
    assert abi.scratch_floats("attention_f32", fields) == own + 608 * (6 + 32) + 128 * 40
    assert abi.scratch_floats("attention_f32_online", fields) == own + 512 * (6 + 32) + 128 * 40
    assert abi.scratch_floats("attention_f32", fields | {"q_len": 13}) == own + 608 * (24 + 32) + 608 * 40
    cached = 24 * (48 + chunk + 16 + 9 * 64)
    assert abi.scratch_floats("cached_attention_f32", fields) == cached + chunk * 64
    assert abi.scratch_floats("cached_attention_f32", fields | {"v_dim": 48}) == cached
    assert abi.scratch_floats("cached_attention_i8", fields) == cached + chunk * (64 + 40)
    window = {"channels": 96, "groups": 2, "kernel_h": 3, "kernel_w": 5, "out_channels": 80}
    assert abi.scratch_floats("conv2d_f32_planes", window) == 60 * (720 + 32 + 64) + 16
    assert abi.scratch_floats("conv2d_f32", window) == 720 * 32
