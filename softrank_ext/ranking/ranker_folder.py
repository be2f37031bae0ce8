"""A ranker on disk: ranker.json (parameters, preprocessing, report) and a folder per member. Nothing is pickled."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softrank_ext import model_folder
from softrank_ext.atomic_files import has_file, read_files, save_files
from softrank_ext.model import SoftRankModel

RANKER_FILE = "ranker.json"
FORMAT = 1


def save_ranker(folder: str | Path, state: Mapping[str, Any], members: Sequence[SoftRankModel]) -> None:
    """Write the members, then the state with their hashes; state: what JSON can hold."""
    folder = Path(folder)
    for number, member in enumerate(members):
        model_folder.save_pretrained(member, folder / f"member-{number}")
    hashes = [model_folder.hash_of(folder / f"member-{number}") for number in range(len(members))]
    whole = {"format": FORMAT, **state, "members": hashes}
    save_files(folder, {RANKER_FILE: (json.dumps(whole, indent=1) + "\n").encode()})


def read_ranker(folder: str | Path) -> tuple[dict[str, Any], list[SoftRankModel]]:
    """The state and the members that `save_ranker` wrote; raises ValueError if they do not belong together."""
    folder = Path(folder)
    if not has_file(folder, RANKER_FILE):
        raise FileNotFoundError(f"{folder / RANKER_FILE} is missing: a saved ranker is a folder with it")
    try:
        state = json.loads(read_files(folder, (RANKER_FILE,))[RANKER_FILE])
        if state["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {state['format']!r}")
        hashes = list(state["members"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / RANKER_FILE} is no ranker: {error}") from error
    members = []
    for number, wanted in enumerate(hashes):
        own = folder / f"member-{number}"
        member = model_folder.load_model(own)
        if model_folder.hash_of(own) != wanted or not isinstance(member, SoftRankModel):
            raise ValueError(f"{own} does not belong to {folder / RANKER_FILE}: save the ranker again")
        members.append(member)
    return state, members
