"""Hostile .pt2 files: each gets one typed error, and nothing in them is run."""

import contextlib
import copy
import io
import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from attacks.hostile_pt2 import ATTACKS, PROGRAM, SAMPLES, WEIGHTS_CONFIG, Attack, Small, code, pickled, records, write
from ingot.errors import IngotError
from ingot.ir.text import dump
from ingot.load.aten import load_exported, load_pt2
from models import block, convnet


@pytest.fixture(autouse=True)
def path_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders put their folder on the path, where a hostile module waits."""
    monkeypatch.syspath_prepend("")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack[0])
def test_attack(attack: Attack, tmp_path: Path) -> None:
    _, build, error, fragment = attack
    build(tmp_path)
    with pytest.raises(IngotError) as caught:
        load_pt2(tmp_path / "model.pt2")
    assert type(caught.value) is error and fragment in str(caught.value), f"{type(caught.value)}: {caught.value}"
    assert len(str(caught.value)) < 2000
    assert not (tmp_path / "ran").exists()


def test_what_is_not_needed_is_not_read(tmp_path: Path) -> None:
    """Sample inputs, notes, guards, traces and compiled libraries that would run make no difference."""
    write(tmp_path / "plain.pt2", records())
    document = json.loads(records()[PROGRAM])
    document["guards_code"] = [code(tmp_path)]
    for node in document["graph_module"]["graph"]["nodes"]:
        node["metadata"] |= {
            "stack_trace": f"\n{code(tmp_path)}\n",
            "source_fn_stack": "x,torch.os.system",
            "custom": "{",
        }
    other = {
        SAMPLES: pickled(tmp_path),
        PROGRAM: json.dumps(document).encode(),
        "data/aotinductor/model/model.so": b"\x7fELF",
        "data/extra/notes": pickled(tmp_path),
        "models/other.json": b"{",
    }
    write(tmp_path / "model.pt2", records() | other)
    assert dump(load_pt2(tmp_path / "model.pt2")) == dump(load_pt2(tmp_path / "plain.pt2"))
    assert not (tmp_path / "ran").exists()


class Sizes(nn.Module):
    """Sizes by every function that dims have."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.shape
        total = y.sum(0, keepdim=True) / (rows * rows + columns)
        return (
            x[: (rows + 1) // 2, : columns - 1], x.reshape(-1), torch.cat([x, x], 1), total,
            torch.zeros(max(rows, 3), min(columns, 40)), x.new_zeros(rows % 3 + 1),
        )  # fmt: skip


def small() -> tuple[nn.Module, tuple]:
    return Small(), (torch.randn(2, 4),)


def dynamic(module: nn.Module, inputs: tuple) -> tuple[nn.Module, tuple, tuple]:
    """With both sizes of every input free, where the module allows it."""
    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    return module, inputs, tuple(sizes for _ in inputs)


PROGRAMS = {
    "small": small,
    "convnet": convnet,
    "attention": lambda: dynamic(*block("sdpa", True)),
    "sizes": lambda: dynamic(Sizes(), (torch.randn(5, 7), torch.randn(5, 7))),
    "no weights": lambda: (nn.ReLU(), (torch.randn(3),)),
    "shared": lambda: (nn.Sequential(*[nn.Linear(3, 3)] * 2), (torch.randn(2, 3),)),
    "bfloat16": lambda: (nn.Linear(3, 2).to(torch.bfloat16), (torch.randn(2, 3).bfloat16(),)),
}


@pytest.mark.parametrize("build", PROGRAMS.values(), ids=PROGRAMS)
def test_a_saved_program_is_the_program(build, tmp_path: Path) -> None:
    module, inputs, *sizes = build()
    with torch.no_grad():
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=sizes[0] if sizes else None, strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    graph, expected = load_pt2(tmp_path / "model.pt2"), load_exported(program)
    assert dump(graph) == dump(expected)
    for name, value in expected.values.items():
        if value.data is not None:
            assert graph.values[name].data.tobytes() == value.data.tobytes(), name


ODD = (None, True, -1, 1 << 40, 0.5, "", "x", "s0", [], {}, "Infinity", [None], {"as_int": 0}, {"as_none": True})


def mutate(document: object, choose: random.Random) -> None:
    """Replaces, removes or moves one value somewhere in a document."""
    places = []
    waiting = [document]
    while waiting:
        part = waiting.pop()
        keys = list(part) if isinstance(part, dict) else range(len(part))
        places += [(part, key) for key in keys]
        waiting += [part[key] for key in keys if isinstance(part[key], (dict, list))]
    part, key = choose.choice(places)
    match choose.randrange(4):
        case 0:
            del part[key]
        case 1:
            part[key] = None
        case _:
            other, there = choose.choice(places)
            part[key] = copy.deepcopy(choose.choice([*ODD, other[there]]))


def mutant(choose: random.Random) -> bytes:
    """The small model's file with a few changed bytes, or a few changed values in one of its documents."""
    file = io.BytesIO()
    if choose.random() < 0.2:
        write(file, records())
        content = bytearray(file.getvalue())
        for _ in range(choose.randint(1, 4)):
            content[choose.randrange(len(content))] = choose.randrange(256)
        return bytes(content)
    record = choose.choice([PROGRAM, PROGRAM, WEIGHTS_CONFIG])
    document = json.loads(records()[record])
    for _ in range(choose.randint(1, 3)):
        mutate(document, choose)
    write(file, records() | {record: json.dumps(document).encode()})
    return file.getvalue()


@pytest.mark.parametrize("seed", range(3))
def test_mutants(seed: int, tmp_path: Path) -> None:
    """A file with changes anywhere is loaded or gets a typed error."""
    choose = random.Random(seed)
    for _ in range(30):
        (tmp_path / "model.pt2").write_bytes(mutant(choose))
        with contextlib.suppress(IngotError):
            load_pt2(tmp_path / "model.pt2")
