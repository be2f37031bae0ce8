"""Models on the Hugging Face hub: push a model with its card, fetch one, list those of an author.

Needs huggingface_hub: `pip install "softrank_ext[hub]"`. A model's repository holds the files of its folder
(`model_folder`), with the manifest whose SHA-256 hashes are compared when the model is read, and a card, README.md,
with the hub's metadata: tags, datasets and metrics. Nothing is pickled, and no code is fetched.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softrank_ext import model_folder
from softrank_ext.atomic_files import MANIFEST_FILE
from softrank_ext.model import OrderModel

LIBRARY = "softrank_ext"  # the tag by which the hub finds models of this package
TAGS = (LIBRARY, "permutations", "ranking", "diffusion")
FILES = (model_folder.CONFIG_FILE, model_folder.WEIGHTS_FILE, MANIFEST_FILE)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class Metric(NamedTuple):
    """A measured number of a card: its name and value, and what it was measured on, `data`."""

    name: str
    value: float
    data: str


class HubModel(NamedTuple):
    """A model on the hub: its repository, "user/name", the latest revision, and its tags."""

    name: str
    revision: str
    tags: tuple[str, ...]


def is_repository(name: str) -> bool:
    """Whether a name has the form user/name."""
    return _REPOSITORY.fullmatch(name) is not None


def metrics_of_rows(rows: Iterable[Mapping[str, Any]], data: str) -> list[Metric]:
    """The metrics of rows of `evaluate`, for a card; data: what they were measured on."""
    found = []
    for row in rows:
        how = f"{data}, {row['decode']}, {row['steps']} steps, best of {row['draws']}, {row['instances']} instances"
        found += [Metric(name, score["mean"], how) for name, score in row["metrics"].items()]
    return found


def metrics_of_card(text: str) -> list[Metric]:
    """The metrics in the tables of a bundled model's card, each beside the settings and the command of its table."""
    found: list[Metric] = []
    command, header = "", list[str]()
    for line in text.partition("## Metrics")[2].splitlines():
        if line.startswith("softrank evaluate"):
            command, header = line, []
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not header:
            header = cells
        elif header and len(cells) == len(header) and "instances" in header and not cells[0].startswith("---"):
            first = header.index("instances") + 1
            settings = ", ".join(f"{name} {cell}" for name, cell in zip(header[:first], cells, strict=False))
            for name, cell in zip(header[first:], cells[first:], strict=True):
                if number := re.match(r"-?\d+\.?\d*", cell):
                    found.append(Metric(name, float(number[0]), f"{settings}: {command}".rstrip(": ")))
    return found


def card_of(
    name: str, text: str, *, metrics: Sequence[Metric] = (), datasets: Sequence[str] = (), license: str | None = None
) -> str:
    """A card: the text, a Markdown page, after the hub's metadata as YAML."""
    hub = _library()
    results = [
        hub.EvalResult(
            task_type="ranking", dataset_type=datasets[0] if datasets else "own", dataset_name=metric.data,
            metric_type=metric.name.replace(" ", "_"), metric_value=metric.value,
        )
        for metric in metrics
    ]  # fmt: skip
    data = hub.ModelCardData(
        library_name=LIBRARY, tags=list(TAGS), datasets=list(datasets) or None, license=license, model_name=name,
        metrics=sorted({metric.name.replace(" ", "_") for metric in metrics}) or None, eval_results=results or None,
    )  # fmt: skip
    return f"---\n{data.to_yaml()}\n---\n\n{text.strip()}\n"


def push_to_hub(
    model: OrderModel | Path,
    repository: str,
    *,
    text: str | None = None,
    metrics: Sequence[Metric] = (),
    datasets: Sequence[str] = (),
    license: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    message: str = "Push model with softrank_ext",
) -> str:
    """Push a model, or the folder of a saved one as it is, and its card to "user/name", which is made if need be.

    text: of the card, Markdown; by default the folder's README.md, or how to load and use the model. metrics, datasets,
    license: the card's metadata; datasets by their names on the hub. private: of a new repository, by default the
    user's setting. revision: branch. token: by default that of `hf auth login`. Returns the commit's address.
    """
    _check_repository(repository)
    mixin = _library().ModelHubMixin

    class Pushed(mixin):  # type: ignore[misc, valid-type]
        def _save_pretrained(self, save_directory: Path) -> None:
            if isinstance(model, Path):
                for name in (*FILES, "README.md"):
                    if (model / name).exists():
                        shutil.copyfile(model / name, save_directory / name)
            else:
                model_folder.save_pretrained(model, save_directory)
            card = save_directory / "README.md"
            body = text or (card.read_text(encoding="utf-8") if card.exists() else _text_of(save_directory, repository))
            name = repository.partition("/")[2]
            made = card_of(name, body, metrics=metrics, datasets=datasets, license=license)
            card.write_text(made, encoding="utf-8")

    commit = Pushed().push_to_hub(
        repository, commit_message=message, private=private, token=token, branch=revision,
        allow_patterns=[*FILES, "README.md"],
    )  # fmt: skip
    return str(commit)


def _text_of(folder: Path, repository: str) -> str:
    """How to load and use the model that was saved in the folder."""
    return f"""# {repository.partition("/")[2]}

A distribution over orders, learned with softrank_ext.

```python
from softrank_ext import from_pretrained, sample

model = from_pretrained("{repository}")
samples = sample(model, items)  # items (B, N, ...) as the model was trained on
```

SHA-256 of the weights: `{model_folder.hash_of(folder)}`
"""


def fetch(repository: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model on the hub: "user/name", at a branch, tag or commit. What was fetched before is kept.

    Without a network the folder of an earlier call is returned. Raises FileNotFoundError if there is no such model.
    """
    _check_repository(repository)
    hub = _library()
    try:
        folder = hub.snapshot_download(repository, revision=revision, token=token, allow_patterns=list(FILES))
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
        at = "" if revision is None else f" at {revision}"
        raise FileNotFoundError(f"the hub has no model {repository}{at} that may be read: {error}") from error
    except hub.errors.LocalEntryNotFoundError as error:
        raise FileNotFoundError(f"{repository} was never fetched, and the hub cannot be reached: {error}") from error
    return Path(folder)


def list_models(author: str | None = None, *, token: str | None = None) -> list[HubModel]:
    """The models of this package on the hub, of an author or of all, by name."""
    found = _library().HfApi(token=token).list_models(author=author, filter=LIBRARY)
    models = (HubModel(model.id, model.sha or "", tuple(model.tags or ())) for model in found)
    return sorted(models)


def _check_repository(name: str) -> None:
    if not isinstance(name, str) or not is_repository(name):
        raise ValueError(f"repository must be user/name, got {name!r}")


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise ImportError('the hub needs huggingface_hub: pip install "softrank_ext[hub]"') from error
    return huggingface_hub
