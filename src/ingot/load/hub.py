"""A model's name -> where it lies: a path, a model that ships, or a folder of the hub, cached or fetched.

The cache is the one that `huggingface_hub` keeps for everybody. What is found there is taken without asking the hub;
only `plan_fetch` and `fetch` go to the network.
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
from ingot.load.hf.folder import is_whole, weight_files

_INGOT = importlib.resources.files("ingot")
SHIPPED = {"digits": str(_INGOT / "data" / "digits.onnx"), "tiny-lm": str(_INGOT / "models" / "tiny-lm")}
_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>\w[\w.-]*(?:/\w[\w.-]*)*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE = re.compile(r"\w[\w.-]*")  # of a model's own folder
_SETTINGS = (".json", ".jinja")
_SHORT_COMMIT = 8
# Suffixes of files: what ends in one is a path, though nothing is there.
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
        """The line for a shell that fetches it where there is a network."""
        revision = "" if self.revision == "main" else f" --revision {self.revision}"
        return (
            f"hf download {self.repository}{revision} --include '*.json' --include '*.jinja' --include '*.safetensors'"
        )


@dataclass(frozen=True, slots=True)
class Fetch:
    """What fetching a model takes: the commit that its revision is now, its files, and the bytes not yet there."""

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
    """A model that is here and goes by a name. nbytes: of its files. used: when it was last read, in seconds since
    1970; None for one that ships.
    """

    name: str
    path: str
    nbytes: int
    used: float | None


def hub_model(name: str) -> HubModel | None:
    """The model of the hub that `org/name` or `org/name@revision` is; None for what must be a path."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in name or name.endswith(_FILES):
        return None
    return HubModel(match["repository"], match["revision"] or "main")


def located(path: str | os.PathLike[str], agree: Callable[[Fetch], None] | None = None) -> str:
    """The path of a model that is named by its path, as one that ships, or as on the hub, whence it is fetched.

    agree: is told what is about to be fetched, and raises where it must not be. A name that can only be a path is given
    back, whatever is there.

    Raises MissingFileError for what may be a path to nothing, and what `found`, `plan_fetch` and `fetch` do.
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
    """The path that a name has on this machine; None where it has none. Nothing is asked of the hub.

    Raises ResourceError for the name of a model of the hub without the package that knows its cache.
    """
    if os.path.exists(name):
        return name
    if name in SHIPPED:
        return SHIPPED[name]
    model = hub_model(name)
    return None if model is None else _cached(model)


def shown_name(path: str) -> str:
    """What a model is called in front of facts about it: its name and commit on the hub, or its path."""
    for name, shipped in SHIPPED.items():
        if path == shipped:
            return name
    snapshots, commit = os.path.split(path)
    repository = os.path.basename(os.path.dirname(snapshots))
    if os.path.basename(snapshots) != "snapshots" or not repository.startswith("models--"):
        return path
    return f"{repository.removeprefix('models--').replace('--', '/', 1)}@{commit[:_SHORT_COMMIT]}"


def plan_fetch(model: HubModel) -> Fetch:
    """Asks the hub what a model is made of. Configuration, tokenizer and weights as safetensors alone are wanted: of
    what else there is, such as code and pickled weights, nothing is.

    Raises MissingFileError for no such model or revision, LoadError for one without safetensors, FetchError where the
    hub cannot be reached or refuses, ResourceError where `huggingface_hub` is not installed.
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
    settings = tuple(sorted(name for name in files if name.endswith(_SETTINGS)))
    commit = str(info.sha)
    if _COMMIT.fullmatch(commit) is None:
        raise FetchError(f"{model}: not a hub's answer, got commit {commit!r}, expected 40 hexadecimal digits")
    kept = os.path.join(_repository(model.repository), "blobs")
    missing = 0
    for name in (*settings, *weights):
        one = files[name]
        content = one.blob_id if one.lfs is None else one.lfs.sha256  # by which the cache knows it, in any commit
        missing += 0 if content and os.path.exists(os.path.join(kept, content)) else one.size or 0
    return Fetch(model, commit, settings, weights, missing)


def fetch(wanted: Fetch) -> str:
    """Fetches what is missing, weights last, and only then notes that the revision is this commit. Returns the folder.

    A bar shows on stderr if that is a terminal. Files that came whole before an error are kept. Raises as `plan_fetch`
    does.
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
    """The models that ship, then those in the cache that are whole. Raises as `found` does."""
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
    """The folder of a model that is whole in the cache."""
    commit: str | None = model.revision
    if not _COMMIT.fullmatch(model.revision):
        noted = Path(_repository(model.repository), "refs", model.revision)
        commit = noted.read_text().strip() if noted.is_file() else None
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
    """Gives errors of the hub, and of the way to it, their types."""
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
            raise ResourceError(f"{model}: cannot be kept, {error.strerror}") from error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FetchError(
            f"{model}: not in the hub's cache, and fetching failed ({reason}); what came whole is kept. Where"
            f" there is a network: {model.command}"
        ) from error
