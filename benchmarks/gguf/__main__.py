"""Compare both engines, and judge."""

from __future__ import annotations

import sys

from benchmarks.harness import packages, page


def main() -> None:
    """Compare, report, and end with 1 where an id or a token differs."""
    asked = page.options(__package__).parse_args()
    packages.require("llama.cpp", "gguf")
    from benchmarks.gguf.comparison import compare  # it imports llama.cpp

    parts, failed = compare()
    page.publish(__package__, asked, "GGUF files", ["ingot", "llama.cpp", "gguf"], *parts)
    sys.exit(failed)


if __name__ == "__main__":
    main()
