"""Hooks of the documentation site: pages outside of `docs/`, and links to files that are no pages."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {name: ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")} | {
    path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "benchmarks").rglob("*.md"))
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside of `docs/`."""
    for uri, path in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site. A link to a file that is no page becomes its path in the repository."""
    up = "../" * page.file.src_uri.count("/")

    def replace(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        inside = _repository_path(page.file.src_uri, target)
        uri = inside.removeprefix("docs/")
        if inside in PAGES or (inside.startswith("docs/") and (ROOT / inside).is_file()):
            return f"[{text}]({up}{uri}{anchor or ''})"
        return f"{text} (`{inside}`)"

    return re.sub(r"\[([^\]]*)\]\(((?!https?:|#|/)[^)#\s]+)(#[^)\s]*)?\)", replace, markdown)


def _repository_path(uri: str, target: str) -> str:
    """Resolve a link of a page to a path in the repository, relative to the page's own path."""
    source = uri if uri in PAGES else f"docs/{uri}"
    return str((ROOT / source).parent.joinpath(target).resolve().relative_to(ROOT))
