"""Find a model by name: a path, a model that ships, or a model of the hub, cached or fetched.

The cache is the one of `huggingface_hub`, shared with other programs. A cached model is used without contacting the
hub; only `plan_fetch` and `fetch` access the network.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingot.errors import EXHAUSTED, FetchError, LoadError, MissingFileError, ResourceError
from ingot.load.hf.folder import TEMPLATES, is_whole, weight_files

_INGOT = importlib.resources.files("ingot")
SHIPPED = {"digits": str(_INGOT / "data" / "digits.onnx"), "tiny-lm": str(_INGOT / "models" / "tiny-lm")}
_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>\w[\w.-]*(?:/\w[\w.-]*)*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE = re.compile(rf"\w[\w.-]*|{TEMPLATES}/\w[\w.-]*\.jinja")  # of a model's own folder
_SETTINGS = (".json", ".jinja")
_OLDER_TOKENIZER = ("tokenizer.model", "merges.txt", "vocab.txt")  # of folders without a tokenizer.json
_SHORT_COMMIT = 8
# Suffixes of files: a name with one of them is a path, even if nothing is there.
_FILES = (".onnx", ".pt2", ".gguf", ".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".ingot", ".json", ".txt", ".npy")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub at a revision: a branch, a tag, or the hash of a commit."""

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.repository if self.revision == "main" else f"{self.repository}@{self.revision}"

    @property
    def command(self) -> str:
        """The shell command that fetches it on a machine with network access."""
        revision = "" if self.revision == "main" else f" --revision {self.revision}"
        patterns = (*(f"'*{suffix}'" for suffix in (*_SETTINGS, ".safetensors")), *_OLDER_TOKENIZER)
        return f"hf download {self.repository}{revision} {' '.join(f'--include {each}' for each in patterns)}"


@dataclass(frozen=True, slots=True)
class Fetch:
    """The plan of a fetch: the current commit of the revision, the files, and the number of bytes that are not
    cached.
    """

    model: HubModel
    commit: str
    settings: tuple[str, ...]
    weights: tuple[str, ...]
    missing_bytes: int

    @property
    def pinned(self) -> str:
        """The model at its commit."""
        return f"{self.model.repository}@{self.commit}"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model on this machine that has a name. nbytes: the size of its files. used: the time of the last read, in
    seconds since 1970; None for one that ships.
    """

    name: str
    path: str
    nbytes: int
    used: float | None


def hub_model(name: str) -> HubModel | None:
    """Return the hub model named `org/name` or `org/name@revision`; None if the name must be a path."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in name or name.endswith(_FILES):
        return None
    return HubModel(match["repository"], match["revision"] or "main")


def located(path: str | os.PathLike[str], agree: Callable[[Fetch], None] | None = None) -> str:
    """Return the path of a model that is given by path, by the name of a shipped model, or by its hub name; the last is
    fetched if needed.

    agree: called with the planned fetch before it starts; raises to reject it. A name that can only be a path is
    returned even if nothing is there.

    Raises MissingFileError for a path to nothing, and the errors of `found`, `plan_fetch` and `fetch`.
    """
    name = os.fspath(path)
    here = found(name)
    model = hub_model(name)
    if here is not None or model is None:
        return name if here is None else here
    if os.path.isdir(os.path.dirname(name)):
        raise MissingFileError(2, "no such file or folder, nor is it in the hub's cache; `ingot pull` fetches", name)
    wanted = plan_fetch(model)
    if agree is not None:
        agree(wanted)
    return fetch(wanted)


def found(name: str) -> str | None:
    """Return the path of a name on this machine; None if it has none. The hub is not contacted.

    Raises ResourceError for the name of a hub model if `huggingface_hub` is not installed.
    """
    if os.path.exists(name):
        return name
    if name in SHIPPED:
        return SHIPPED[name]
    model = hub_model(name)
    return None if model is None else _cached(model)


def shown_name(path: str) -> str:
    """Return the display name of a model: its name and commit on the hub, or its path."""
    for name, shipped in SHIPPED.items():
        if path == shipped:
            return name
    snapshots, commit = os.path.split(path)
    repository = os.path.basename(os.path.dirname(snapshots))
    if os.path.basename(snapshots) != "snapshots" or not repository.startswith("models--"):
        return path
    return f"{repository.removeprefix('models--').replace('--', '/', 1)}@{commit[:_SHORT_COMMIT]}"


def plan_fetch(model: HubModel) -> Fetch:
    """Ask the hub for the files of a model. Only configuration, tokenizer and safetensors weights are fetched, no code
    and no pickled weights.

    Raises MissingFileError for an unknown model or revision, LoadError for a model without safetensors, FetchError if
    the hub cannot be reached or rejects the request, ResourceError if `huggingface_hub` is not installed.
    """
    _expect_package()
    from huggingface_hub import HfApi

    with _asking(model):
        info = HfApi().model_info(model.repository, revision=model.revision, files_metadata=True)
    files = {file.rfilename: file for file in info.siblings or [] if _FILE.fullmatch(file.rfilename)}
    weights = weight_files(files)
    if not weights:
        others = sorted(name for name in files if name.endswith((".bin", ".gguf", ".pt", ".pth", ".onnx")))
        file = next((f"; `hf download {model.repository} {n}` fetches a GGUF file" for n in others if "gguf" in n), "")
        raise LoadError(f"{model}: no weights as safetensors, got {', '.join(others[:3]) or 'none'}{file}")
    settings = tuple(sorted(name for name in files if name.endswith(_SETTINGS) or name in _OLDER_TOKENIZER))
    commit = str(info.sha)
    if _COMMIT.fullmatch(commit) is None:
        raise FetchError(f"{model}: not a hub's answer, got commit {commit!r}, expected 40 hexadecimal digits")
    blobs = os.path.join(_repository(model.repository), "blobs")
    missing = 0
    for name in (*settings, *weights):
        one = files[name]
        content = one.blob_id if one.lfs is None else one.lfs.sha256  # the cache key, the same for every commit
        missing += 0 if content and os.path.exists(os.path.join(blobs, content)) else one.size or 0
    return Fetch(model, commit, settings, weights, missing)


def fetch(wanted: Fetch) -> str:
    """Fetch the missing files, weights last, and only then record that the revision is this commit. Returns the
    folder.

    A progress bar is shown on stderr if that is a terminal. Files that are complete before an error stay cached. Raises
    as `plan_fetch` does.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    model = wanted.model
    with contextlib.nullcontext() if sys.stderr.isatty() else disable_progress_bars(), _asking(model):
        for files in (wanted.settings, wanted.weights):
            folder = snapshot_download(model.repository, revision=wanted.commit, allow_patterns=list(files))
        if model.revision != wanted.commit:
            snapshot_download(model.repository, revision=model.revision, allow_patterns=["config.json"])
    if not is_whole(folder):
        raise FetchError(f"{wanted.pinned}: files of weights are missing that its index names, got {folder}")
    return folder


def named_models() -> Iterator[NamedModel]:
    """Yield the models that ship, then the complete models of the cache. Raises as `found` does."""
    for name, path in SHIPPED.items():
        files = list(Path(path).iterdir()) if os.path.isdir(path) else [Path(path)]
        yield NamedModel(name, path, sum(file.stat().st_size for file in files), None)
    _expect_package()
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return
    for repository in sorted(cache.repos, key=lambda each: each.repo_id):
        for revision in sorted(repository.revisions, key=lambda each: -each.last_modified):
            folder = os.fspath(revision.snapshot_path)
            if repository.repo_type == "model" and is_whole(folder):
                named = min(revision.refs, key=lambda ref: (ref != "main", ref), default=revision.commit_hash)
                used = max(file.blob_last_accessed for file in revision.files)
                yield NamedModel(str(HubModel(repository.repo_id, named)), folder, revision.size_on_disk, used)


def _cached(model: HubModel) -> str | None:
    """Return the folder of a model that is complete in the cache."""
    commit: str | None = model.revision
    if not _COMMIT.fullmatch(model.revision):
        ref_file = Path(_repository(model.repository), "refs", model.revision)
        commit = ref_file.read_text().strip() if ref_file.is_file() else None
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    folder = _snapshot(model.repository, commit)
    return folder if is_whole(folder) else None


def _snapshot(repository: str, commit: str) -> str:
    return os.path.join(_repository(repository), "snapshots", commit)


def _repository(repository: str) -> str:
    _expect_package()
    from huggingface_hub import constants

    return os.path.join(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}")


def _expect_package() -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ResourceError("huggingface_hub is not installed; run: pip install 'ingot-compiler[llm]'")


@contextlib.contextmanager
def _asking(model: HubModel) -> Iterator[None]:
    """Convert errors of the hub, and of the connection to it, to Ingot's errors."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise FetchError(
            f"{model}: gated, got no access, expected that its terms are agreed to on its page of the hub, and"
            " `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        what = "no such file or folder, and no such model on the hub; a private one needs `hf auth login`"
        raise MissingFileError(2, what, str(model)) from error
    except errors.RevisionNotFoundError as error:
        raise MissingFileError(2, f"no such revision on the hub, got {model.revision!r}", model.repository) from error
    except (errors.HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise ResourceError(f"{model}: cannot be stored, {error.strerror}") from error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FetchError(
            f"{model}: not in the hub's cache, and fetching failed ({reason}); complete files stay cached. Where"
            f" there is a network: {model.command}"
        ) from error
