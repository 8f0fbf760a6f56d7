"""Fetches a model of the hub once for all hosts. The run knows it as a folder, and its commit is in the folder's path.

    CACHE/models--OWNER--NAME/snapshots/COMMIT/

On a cluster the folder is in storage that the hosts share: the hub's cache, or a copy under `run.directory`.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

from olmorl.config import Config
from olmorl.deploy.supervision import recipe_history
from olmorl.deploy.supervision.recipe_history import snapshot_of
from olmorl.errors import ModelError, unwritable

_FILES = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py")
_WEIGHTS = ("*.safetensors",)
_OTHER_FORMATS = ("original/*", "consolidated*", "onnx/*")
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def fetched(settings: Config, resume: bool) -> Config:
    """The settings with folders in place of the hub names of model and tokenizer. A resume keeps the run's commit.

    Raises:
        ModelError: the hub does not give it.
        ResourceError: the disk has no room for it.
    """
    before = recipe_history.kept_model(settings.run_dir) if resume else None
    for key, patterns in (("path", _FILES + _WEIGHTS), ("tokenizer", _FILES)):
        name = getattr(settings.model, key)
        if name is None or Path(name).is_dir():
            continue
        kept = Path(getattr(before, key, None) or "")
        kept_name, kept_commit = snapshot_of(str(kept))
        commit = kept_commit if kept_name == name else None
        is_here = commit is not None and kept.is_dir()
        folder = kept if is_here else _fetch(f"model.{key}", name, commit, patterns, settings)
        if folder is not None:
            print(f"model.{key}: {name} is at commit {folder.name}, in {folder}", flush=True)
            model = settings.model.model_copy(update={key: str(folder)})
            settings = settings.model_copy(update={"model": model})
    return settings


def _fetch(key: str, name: str, commit: str | None, patterns: tuple[str, ...], settings: Config) -> Path | None:
    """The folder of a model at a commit, by default the newest; None leaves an unreachable hub to the other hosts."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        folder = snapshot_download(
            name, revision=commit, allow_patterns=list(patterns), ignore_patterns=list(_OTHER_FORMATS)
        )
    except RevisionNotFoundError:
        raise ModelError(
            f"{key}: the hub no longer has {name} at commit {commit}, with which the run began: name a folder that has "
            f"it with --resume --change --{key} FOLDER"
        ) from None
    except Exception as error:  # the libraries below the hub's have errors of their own
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise unwritable(Path(error.filename or name), error, "HF_HOME") from None
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if settings.cluster.address is not None:
            print(f"{key}: {name} cannot be fetched here, so each host asks the hub for it: {reason}", flush=True)
            return None
        raise ModelError(f"{key}: {name} cannot be fetched from the hub: {reason}") from None
    return _where_all_hosts_see_it(Path(folder).absolute(), settings)


def _where_all_hosts_see_it(folder: Path, settings: Config) -> Path:
    """The folder itself if it is on the storage of the runs, which all hosts share; else a copy there."""
    if settings.cluster.address is None:
        return folder
    shared = settings.run.directory / "cache" / "hub" / folder.parts[-3] / "snapshots" / folder.name
    try:
        shared.parent.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_dev == shared.parent.stat().st_dev:
            return folder
        if not shared.exists():
            print(f"copying {folder} to {shared}, which all hosts see", flush=True)
            _copy(folder, shared)
    except OSError as error:
        raise unwritable(shared, error) from None
    return shared


def _copy(folder: Path, to: Path) -> None:
    """Copy a folder, whole or not at all."""
    part = Path(tempfile.mkdtemp(prefix=f"{to.name}.", dir=to.parent))
    try:
        shutil.copytree(folder, part / to.name)  # with the files behind its links
        (part / to.name).rename(to)
    except OSError:
        if not to.exists():  # else another start has made it meanwhile
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
