"""Templates that come with a model and do harm or mean nothing: (name, builder of a folder, error type, fragment)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attacks.hostile_configs import write_llama
from attacks.hostile_folders import Attack
from ingot.errors import IngotError, LimitError, LoadError

LLAMA = "extends: llama\n"
DOUBLED = "".join(f", &a{i + 1} [*a{i}, *a{i}]" for i in range(20))
_DEEP = 200


def _folder(text: str | bytes, name: str = "ingot.yaml") -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        write_llama(folder)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder

    return build


def _link(folder: Path) -> Path:
    write_llama(folder)
    outside = folder.parent / "outside.yaml"
    outside.write_text(LLAMA)
    (folder / "ingot.yaml").symlink_to(outside)
    return folder


def attack(name: str, text: str | bytes, error: type[IngotError], fragment: str) -> Attack:
    return name, _folder(text), error, fragment


def with_let(expression: str) -> str:
    return f"{LLAMA}let:\n  x: {expression}\n"


def with_steps(steps: str) -> str:
    return f"{LLAMA}output:\n{steps}"


ATTACKS: list[Attack] = [
    ("link out of the folder", _link, LoadError, "leads outside the folder"),
    attack("empty", "", LoadError, "empty file"),
    attack(
        "an input of layers that the embedding has not",
        with_steps("  - layer_input: {gate: a, out: b}\n"),
        LoadError,
        "layer_input: no inputs of layers, expected 'layer_inputs'",
    ),
    attack(
        "norms of heads of rows",
        with_steps("  - norm: {name: a, over: heads}\n"),
        LoadError,
        "over: got heads of rows",
    ),
    attack(
        "a number of layers that is a word",
        f"{LLAMA}config:\n  layers: {{key: model_type, type: word}}\n",
        LoadError,
        "layers: got 'llama', expected an integer",
    ),
    attack(
        "options that a projection does not read",
        f"{LLAMA}parts:\n  a:\n    - attention: {{qkv: a, split: stacked, out: b, gated: 'true'}}\n",
        LoadError,
        "options of separate projections, got gated",
    ),
    attack("a list", "- 1\n", LoadError, "expected a mapping"),
    attack("bytes that are no text", b"\xff\xfe\x00", LoadError, "not UTF-8"),
    attack("a tag of Python", "!!python/object/apply:os.system ['true']\n", LoadError, "expected a mapping"),
    attack("two documents", LLAMA + "---\nextends: gemma\n", LoadError, "not YAML"),
    attack("large", "# " + "x" * (1 << 18), LimitError, "too large"),
    attack("deep", "output: " + "[" * _DEEP + "]" * _DEEP, LimitError, "nested too deep"),
    attack("an endless alias", "extends: llama\noutput: &a\n  - residual: *a\n", LimitError, "with aliases expanded"),
    attack("aliases that double", f"{LLAMA}ignored: [&a0 [x]{DOUBLED}]\n", LimitError, "with aliases expanded"),
    attack("a parent that is a path", "extends: ../../etc/passwd\n", LoadError, "no such template"),
    attack("a parent that is not there", "extends: nothing\n", LoadError, "no such template"),
    attack("itself as parent", "extends: ingot\n", LoadError, "no such template"),
    attack("no sections", "kind: decoder\n", LoadError, "missing keys"),
    attack("a long name", f"{LLAMA}prefix: {'x' * 2000}\n", LimitError, "too long"),
    attack("a long expression", with_let("1" + "+1" * 200), LoadError, "too long"),
    attack("nested parentheses", with_let("(" * 149 + "1" + ")" * 149 + ")"), LoadError, "not an expression"),
    attack("a power of powers", with_let("9 ** 9 ** 9 ** 9"), LoadError, "cannot be computed"),
    attack("a huge product", with_let(" * ".join(["99999999"] * 20)), LoadError, "cannot be computed"),
    attack("text that is repeated", with_let('"\\"a\\" * 999999999999"'), LoadError, "cannot be computed"),
    attack("a list that is repeated", with_let("'[0] * 999999999999'"), LoadError, "cannot be computed"),
    attack("text that is filled", with_let("'\"%999999999d\" % 1'"), LoadError, "cannot be computed"),
    attack("infinite", with_let("1e999 * 2"), LoadError, "cannot be computed"),
    attack("an unknown name", with_let("nothing + 1"), LoadError, "no such name"),
    attack("a call", with_let("'open(1)'"), LoadError, "not allowed"),
    attack("a width of text", f"{LLAMA}let:\n  width: '\"wide\"'\n", LoadError, "width: got 'wide'"),
    attack("heads of half", f"{LLAMA}let:\n  heads: 4.5\n", LoadError, "heads: got 4.5"),
    attack("no context", f"{LLAMA}let:\n  context: 0\n", LoadError, "context: got 0"),
    attack("scaled by text", with_steps("  - scale: '\"x\"'\n"), LoadError, "expected a number"),
    attack("capped by a list", with_steps("  - softcap: '[1]'\n"), LoadError, "expected a number"),
    attack("an mlp of half", with_steps("  - mlp: {up: a, down: b, size: 1 / 2}\n"), LoadError, "expected an integer"),
    attack("a negative mlp", with_steps("  - mlp: {up: a, down: b, size: -4}\n"), LoadError, "expected an integer"),
    attack(
        "an activation that is none",
        with_steps("  - mlp: {up: a, down: b, activation: width}\n"),
        LoadError,
        "expected one of silu",
    ),
    attack(
        "many experts",
        with_steps(
            "  - mixture: {router: r, gate: g, up: u, down: d, count: 10 ** 12, chosen: 1, normalised: true, size: 4}\n"
        ),
        LoadError,
        "expected an integer",
    ),
    attack(
        "a rope of a list",
        with_steps("  - attention: {q: a, k: b, v: c, out: d, rope: '[1]'}\n"),
        LoadError,
        "no such rope",
    ),
    attack("tensors that are not there", with_steps("  - norm: other\n"), LoadError, "ingot.yaml:3"),
]
