"""Chooses the files of a folder: those of one split, so that no test row is trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from olmorl.errors import DataError
from olmorl.learner.data.row_files import PACKED_SUFFIXES, SUFFIXES, suffix_of

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation", "heldout", "holdout", "held"),
}
"""Words in the names of files and folders, as `datasets` reads them, and those of rows that are held out."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[a-z]+?(?=(?:set|data|split)?s?(?![a-z]))")
"""A word of lower-case letters; `test` in `testset` and in `testdata`."""
_SHARD = re.compile(r"(.+)-\d+-of-\d+\b")
"""The name of a shard, which begins with its split."""
_DECLARED = re.compile(r"^[-\s]*(config_name|split):\s*(\S+)", re.MULTILINE)
"""A set of files in the card of a data set of the hub."""
_NAMED = 3
"""The most files that an error names."""


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote the folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def files_of(folder: Path, split: str, held_out: bool) -> list[Path]:
    """The files of one split. Folders inside are looked through too. Files of no named split are all taken together.

    Raises:
        DataError: the folder holds no rows, not those of the split, or files of which the split is not clear.
    """
    found = [path for path in folder.rglob("*") if path.is_file() and _may_hold_rows(path.relative_to(folder))]
    if not found:
        others = ", ".join(suffix for suffix in SUFFIXES if suffix not in (".jsonl", ".json", ".parquet"))
        raise DataError(
            f"{folder}: the folder holds no .jsonl and no .parquet file, nor {others}, nor one of them packed "
            f"({', '.join(PACKED_SUFFIXES)}); a .json file counts if its name says the split, as in train.json"
        )
    own = None if canonical(split) in SPLITS else split
    by_split: dict[str, list[Path]] = {}
    for path in sorted(found):
        by_split.setdefault(_split_of(path.relative_to(folder), own), []).append(path)
    if set(by_split) == {""}:
        _refuse_other_names(folder, found)
        shards = {shard[1] for path in found if (shard := _SHARD.match(path.name))}
        if len(shards) > 1:  # splits with names of their own, such as easy and hard
            by_split = {shard: [] for shard in shards}
    files = by_split[own if own in by_split else chosen(str(folder), by_split, split, held_out)]
    _refuse_several_sets(folder, files)
    return files


def chosen(name: str, splits: Mapping[str, object], split: str, held_out: bool) -> str:
    """The one of `splits` to read: `split`; for an evaluation set the only one that is not trained on.

    Raises:
        DataError: it is not there, or not clear.
    """
    if set(splits) == {""}:
        return ""
    wanted = canonical(split)
    if "" in splits:
        raise DataError(
            f"{name}: the split of {_first_files(splits[''])} is not clear, and other files are of the splits "
            f"{_and(splits)}: name the files to read, or move the others out of the folder"
        )
    others = [one for one in splits if one != wanted]
    if held_out and len(others) == 1:
        return others[0]
    if held_out and others:
        raise DataError(f"{name}: it has the splits {_and(splits)}: name the files, or the folder, of one of them")
    if wanted not in splits:
        raise DataError(
            f"{name}: data.split is {split!r}, and the splits there are {_and(splits)}: set data.split, or name files"
        )
    return wanted


def canonical(split: str) -> str:
    """`validation` for `dev`, and so on; a name that is not a common one stays."""
    return next((name for name, words in SPLITS.items() if split.lower() in words), split)


def _may_hold_rows(path: Path) -> bool:
    if any(part.startswith((".", "__")) for part in path.parts):
        return False
    # Other .json files describe models and data sets.
    return suffix_of(path) in SUFFIXES and (suffix_of(path) != ".json" or bool(_split_of(path)))


def _split_of(path: Path, own: str | None = None) -> str:
    """The split that the name of a file says, else that of its folders; empty when they say none, or several.

    Args:
        own: a split with a name that is not a common one.
    """
    for part in (path.name, *reversed(path.parts[:-1])):
        if own is not None and own in re.split(r"[-. ]", part):
            return own
        words = set(_WORD.findall(_HUMP.sub("-", part).lower()))
        if found := [name for name, known in SPLITS.items() if words.intersection(known)]:
            return found[0] if len(found) == 1 else ""
    return ""


def _refuse_other_names(folder: Path, found: Sequence[Path]) -> None:
    """Files of which only the card of a clone says what they are, as a.csv for training and b.csv for tests."""
    card = folder / "README.md"
    declared: dict[str, set[str]] = {}
    for kind, name in _DECLARED.findall(card.read_text("utf-8", "replace") if card.is_file() else ""):
        declared.setdefault(kind, set()).add(name)
    several = next((names for names in declared.values() if len(names) > 1), None)
    if several and len(found) > 1:
        raise DataError(
            f"{folder}: {card.name} has the parts {_and(several)}, which the names of the files do not say: name the "
            "files to read"
        )


def _refuse_several_sets(folder: Path, files: Sequence[Path]) -> None:
    """Files that lie in several folders inside are several data sets, unless a split has given the folder its name."""
    sets = {
        "/".join(part for part in path.relative_to(folder).parts[:-1] if not _split_of(Path(part))) for path in files
    }
    if len(sets) > 1:
        raise DataError(
            f"{folder}: it holds several data sets, in the folders {', '.join(sorted(one or '.' for one in sets))}: "
            "name one of them, or several as entries of their own"
        )


def _first_files(paths: object) -> str:
    names = [path.name for path in paths] if isinstance(paths, list) else []
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _and(splits: Iterable[str]) -> str:
    return " and ".join(sorted(filter(None, splits)))
