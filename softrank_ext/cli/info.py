"""`softrank info`."""

import json
from typing import Annotated

import tyro

from softrank_ext import build_info


def info(as_json: Annotated[bool, tyro.conf.arg(name="json", help="Print one JSON object.")] = False) -> None:
    """Say what this build is and what it runs on."""
    found = build_info()
    if as_json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {'none' if value == '' else value}")
