"""Print the names and shapes of the tensors of tiny models: python tests/kit/hf_names.py [--keep FOLDER] TYPE...

Each model is that of the first case of its type. With --keep it is left in FOLDER/TYPE, for the commands of Ingot.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from safetensors import safe_open

from hf_case import Case
from hf_models import CASES, save_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="+", metavar="TYPE")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the models")
    options = parser.parse_args()
    first = {case.type: case for case in reversed(CASES)}
    for type in options.types:
        print(type)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(options.keep or temporary) / type
            save_model(first.get(type) or Case(type, type), folder)
            with safe_open(folder / "model.safetensors", "pt") as file:
                for name in sorted(file.keys()):
                    print(f"  {name} {list(file.get_slice(name).get_shape())}")


if __name__ == "__main__":
    main()
