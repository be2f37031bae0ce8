"""Pages that are one file: a template of this folder with the style and script that pages share and the data."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def filled_page(template: str, data: Mapping[str, Any]) -> str:
    """A template, such as "tour.html", with page.css for {{style}}, page.js for {{script}} and JSON for {{data}}."""
    page = (_FOLDER / template).read_text(encoding="utf-8")
    for mark, name in (("{{style}}", "page.css"), ("{{script}}", "page.js")):
        page = page.replace(mark, (_FOLDER / name).read_text(encoding="utf-8").rstrip())
    # "<" cannot end the script element that holds the data, nor begin a comment in it.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return page.replace("{{data}}", text)
