"""Templates that extend others: their sections, and the entries of sections that are merged by name."""

from __future__ import annotations

from pathlib import Path

from ingot.errors import LoadError
from ingot.load.hf.document import Item, read_document


def merged_sections(root: Item, parents: Path, known: tuple[str, ...] = ()) -> dict[str, Item]:
    """Return the top-level keys of a document, merged with those of the template that it extends.

    known: the names of the templates that extend it.
    """
    found = root.fields(
        optional=(
            "extends", "kind", "config_in", "config", "let", "ropes", "linear", "norm", "prefix", "embedding", "parts",
            "layers", "output", "head", "classifier", "ignored", "renamed",
        )
    )  # fmt: skip
    if "extends" not in found:
        missing = [key for key in ("config", "prefix", "norm", "embedding", "layers") if key not in found]
        if missing:
            raise LoadError(f"{root.where}: missing keys, got {sorted(found)}, expected also {', '.join(missing)}")
        return found
    parent = found.pop("extends")
    if parent.text() in known:
        raise LoadError(f"{parent.where}: no such template, got {parent.text()!r}")
    return merged_sections(_parent(parent, parents), parents, (*known, parent.text())) | found


def _parent(name: Item, parents: Path) -> Item:
    """Return the document of a template that ships with Ingot. Raises LoadError for any other name."""
    if name.text() not in {path.stem for path in parents.glob("*.yaml")}:
        raise LoadError(f"{name.where}: no such template, got {name.text()!r}")
    return read_document(parents / f"{name.text()}.yaml")


def joined_section(root: Item, section: str, parents: Path) -> dict[str, Item]:
    """Return the entries of a section by name, merged with those of the template that the document extends.

    An entry that replaces an inherited one is put at its position, and so are the new entries before it, so that it can
    refer to them.
    """
    sections = root.entries()
    own = sections[section].entries() if section in sections else {}
    if "extends" not in sections:
        return own
    inherited = joined_section(_parent(sections["extends"], parents), section, parents)
    new: list[str] = []
    names_at = {name: [name] for name in inherited}
    for name in own:
        new.append(name)
        if name in inherited:
            names_at[name], new = new, []
    entries = inherited | own
    return {name: entries[name] for names in (*names_at.values(), new) for name in names}
