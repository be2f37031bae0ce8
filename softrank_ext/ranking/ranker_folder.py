"""A ranker on disk: ranker.json (parameters, preprocessing, report) and a folder per member. Nothing is pickled.

A member's folder is named by its number and hash, and ranker.json is written last: a save that breaks off leaves the
ranker that was there.
"""

import json
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softrank_ext import model_folder
from softrank_ext.atomic_files import has_file, read_files, save_files
from softrank_ext.model import SoftRankModel

RANKER_FILE = "ranker.json"
FORMAT = 1
_MEMBER = re.compile(r"member-\d+(-[0-9a-f]{8}|-new-[0-9a-f]{8})?")


def check_ranker_folder(folder: str | Path) -> None:
    """Raise ValueError if a file is where the folder, or a folder above it, would be."""
    for path in (Path(folder), *Path(folder).parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file: a ranker is saved in a folder")


def save_ranker(folder: str | Path, state: Mapping[str, Any], members: Sequence[SoftRankModel]) -> None:
    """Write the members, then the state with their hashes; state: what JSON can hold."""
    folder = Path(folder)
    check_ranker_folder(folder)
    hashes = [_save_member(folder, number, member) for number, member in enumerate(members)]
    whole = {"format": FORMAT, **state, "members": hashes}
    save_files(folder, {RANKER_FILE: (json.dumps(whole, indent=1) + "\n").encode()})
    kept = [_member_name(number, hash) for number, hash in enumerate(hashes)]
    for path in list(folder.iterdir()):
        if _MEMBER.fullmatch(path.name) and path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _member_name(number: int, hash: str) -> str:
    return f"member-{number}-{hash[:8]}"


def _save_member(folder: Path, number: int, member: SoftRankModel) -> str:
    """Write a member beside those that are there; returns its hash."""
    new = folder / f"member-{number}-new-{secrets.token_hex(4)}"
    model_folder.save_pretrained(member, new)
    hash = model_folder.hash_of(new)
    own = folder / _member_name(number, hash)
    if own.exists():  # the same member, or a damaged one
        shutil.rmtree(own)
    new.rename(own)
    return hash


def read_ranker(folder: str | Path) -> tuple[dict[str, Any], list[SoftRankModel]]:
    """The state and the members that `save_ranker` wrote; raises ValueError if they do not belong together."""
    folder = Path(folder)
    if not has_file(folder, RANKER_FILE):
        raise FileNotFoundError(f"{folder / RANKER_FILE} is missing: a saved ranker is a folder with it")
    try:
        state = json.loads(read_files(folder, (RANKER_FILE,))[RANKER_FILE])
        if state["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {state['format']!r}")
        hashes = state["members"]
        is_list = isinstance(hashes, list) and len(hashes) > 0
        if not is_list or not all(isinstance(hash, str) and re.fullmatch("[0-9a-f]{64}", hash) for hash in hashes):
            raise ValueError("members must be a list of SHA-256 hashes, at least one")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder / RANKER_FILE} is no ranker: {error}") from error
    members = []
    for number, wanted in enumerate(hashes):
        own = folder / _member_name(number, wanted)
        member = model_folder.load_model(own)
        if model_folder.hash_of(own) != wanted or not isinstance(member, SoftRankModel):
            raise ValueError(f"{own} does not belong to {folder / RANKER_FILE}: save the ranker again")
        members.append(member)
    return state, members
