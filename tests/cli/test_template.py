"""--template: commands that read a language model whose architecture Ingot does not have, by a file."""

import json
import shutil
from pathlib import Path

import pytest

from ingot.llm import LLM

SHIPPED = Path(__file__).parents[2] / "src/ingot/models/tiny-lm"
NEW = "a_new_one"
TRAIN = "train {folder} {text} --steps 1 --context 8 --batch 1 --merge {output} -o {output}-tuned"
COMMANDS = {
    "emit-c": ["emit-c", "{folder}", "--context", 64, "-o", "{output}"],
    "emit-c --mode train": ["emit-c", "{folder}", "--mode", "train", "--context", 8, "-o", "{output}"],
    "emit-web": ["emit-web", "{folder}", "--context", 64, "-o", "{output}"],
    "train": f"{TRAIN} --lora 2".split(),
    "train --lora 0": f"{TRAIN} --lora 0".split(),
    "quantize": ["quantize", "{folder}", "--format", "int8", "-o", "{output}"],
    "quantize --calibrate": "quantize {folder} --format int4 --calibrate {text} -o {output}".split(),
    "quantize --report": ["quantize", "{folder}", "--format", "int8", "--report"],
}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, by path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_template_given_is_as_one_in_the_folder(call, tmp_path: Path, monkeypatch, arguments: list) -> None:
    monkeypatch.chdir(tmp_path)
    text, template = tmp_path / "text", tmp_path / "new.yaml"
    text.write_text("def add(a, b):\n    return a + b\n" * 100)
    config = json.loads((SHIPPED / "config.json").read_text())
    template.write_text(f"extends: {config['model_type']}\n")
    made = []
    for name in ("own", "given"):
        folder, output = tmp_path / name / "model", tmp_path / name / "out"
        shutil.copytree(SHIPPED, folder)
        (folder / "config.json").write_text(json.dumps(config | {"model_type": NEW}))
        words = [str(word).format(folder=folder, text=text, output=output) for word in arguments]
        if name == "own":
            shutil.copy(template, folder / "ingot.yaml")
        else:
            code, _, err = call(*words)
            assert code == 69 and NEW in err and "--template" in err and not output.exists()
            words += ["--template", template]
        code, out, err = call(*words)
        assert code == 0, err
        made.append(contents(output) if output.exists() else out)
    assert made[0] == made[1]
    if (output / "config.json").exists():  # a folder, which selects its own loader
        assert LLM(output, context=64).complete("def", max_tokens=2).tokens


@pytest.mark.parametrize("command", ["emit-c", "emit-web"])
def test_a_model_without_tokens_takes_none(call, tmp_path: Path, command: str) -> None:
    code, _, err = call(command, "digits", "--template", "new.yaml", "-o", tmp_path / "out")
    assert code == 2 and "--template: not for a model without tokens" in err
