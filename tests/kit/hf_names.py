"""Print the names and shapes of the tensors of tiny models: python tests/kit/hf_names.py TYPE..."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

from hf_case import Case
from hf_models import CASES, save_model


def main() -> None:
    first = {case.type: case for case in reversed(CASES)}
    for type in sys.argv[1:]:
        print(type)
        with tempfile.TemporaryDirectory() as folder:
            save_model(first.get(type) or Case(type, type), Path(folder))
            with safe_open(Path(folder) / "model.safetensors", "pt") as file:
                for name in sorted(file.keys()):
                    print(f"  {name} {list(file.get_slice(name).get_shape())}")


if __name__ == "__main__":
    main()
