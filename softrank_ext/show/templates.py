"""Pages that are one file: a template of this folder with the style that pages share and the data written into it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def filled_page(template: str, data: Mapping[str, Any]) -> str:
    """The page of a template, such as "tour.html": page.css for {{style}}, and the data as JSON for {{data}}."""
    style = (_FOLDER / "page.css").read_text(encoding="utf-8").rstrip()
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (_FOLDER / template).read_text(encoding="utf-8").replace("{{style}}", style).replace("{{data}}", text)
