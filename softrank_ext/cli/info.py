"""`softrank info`."""

from softrank_ext import build_info, list_pretrained
from softrank_ext.cli.options import AsJson, tell
from softrank_ext.pretrained import trained_for


def info(as_json: AsJson = False) -> None:
    """Say what this build is, what it runs on, and what the bundled models were trained for."""
    found = build_info()
    models = {model.name: {"purpose": model.purpose, **trained_for(model.name)} for model in list_pretrained()}
    width = max(map(len, found))
    lines = [f"{name:<{width}}  {'none' if value == '' else value}" for name, value in found.items()]
    lines += ["", "bundled models"]
    for name, about in models.items():
        lines += [f"  {name}: {about['purpose']}", f"    {about['items']}; {about['trained_for']}"]
    tell(as_json, {**found, "models": models}, "\n".join(lines))
