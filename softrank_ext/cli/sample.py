"""`softrank sample MODEL ITEMS OUTPUT`."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from softrank_ext import model_folder
from softrank_ext.choices import Beam, Draw, Engine
from softrank_ext.cli.options import (
    ConfigFile,
    DecodeName,
    Device,
    Model,
    ProcessOptions,
    check_decode_options,
    checked_device,
    decode_of,
    folder_to_load,
)
from softrank_ext.constraints import Constraining, Constraints, read_constraints, settings_of

# Channels of the images that embedders read.
_CHANNELS = {"number-cnn": 1, "light-number-cnn": 1, "patch-cnn": 3, "patch-mlp": 3}


@dataclass(frozen=True)
class RuleOptions:
    """Rules that every order keeps. Items and places count from 0; place -1 is the last."""

    constraints: Path | None = None
    """JSON file of rules: before, pins, forbidden, together; a list of such for one per instance."""
    before: tuple[str, ...] = ()
    """Pairs 3:5, item 3 stands before item 5; this and the next three hold for all instances."""
    pin: tuple[str, ...] = ()
    """Pairs 3:0, item 3 is at place 0, where a tour starts; by default .tsp files start at item 0."""
    forbid: tuple[str, ...] = ()
    """Pairs 3:0, item 3 is not at place 0."""
    together: tuple[str, ...] = ()
    """Groups 1,2,3 of items that stand next to each other."""
    law: Literal["prefix", "conditioned"] | None = None
    """Of draws under constraints: pick by pick (fast, the default), or the model's law given them."""
    particles: int | None = None
    """Weighted draws per sample, for --law conditioned; 16 by default."""
    reflect_noise: bool = False
    """Noise keeps the order pairs too."""

    def constraints_of(self, starts_at_item_0: bool) -> Constraining:
        """The rules that these options give; starts_at_item_0: with item 0 at place 0, if nothing else is pinned so."""
        given = self._given()
        if starts_at_item_0:
            given = [_started(row) for row in given] if isinstance(given, list) else _started(given)
        changes = self._changed_settings()
        if not changes:
            return given
        if given is None:
            raise ValueError("--law, --particles and --reflect-noise are for draws under constraints, got none")
        if isinstance(given, list):
            return [None if row is None else replace(row, **changes) for row in given]
        return replace(given, **changes)

    def _given(self) -> Constraints | list[Constraints | None] | None:
        words = self.before or self.pin or self.forbid or self.together
        if self.constraints is None:
            return self._rules_of_words() if words else None
        if words:
            raise ValueError("--constraints FILE excludes --before, --pin, --forbid and --together, got both")
        return read_constraints(self.constraints)

    def _changed_settings(self) -> dict[str, Any]:
        """The settings of draws that are given here; the others are the file's, or the defaults of Constraints."""
        settings = {"law": self.law, "particles": self.particles, "reflect_noise": self.reflect_noise or None}
        return {name: value for name, value in settings.items() if value is not None}

    def _rules_of_words(self) -> Constraints:
        pins: dict[int, int] = {}
        for word in self.pin:
            item, place = _numbers_of("pin", word, ":", 2)
            if pins.setdefault(item, place) != place:
                raise ValueError(f"--pin must name an item once, {item} is pinned to {pins[item]} and {place}")
        return Constraints(
            before=[(a, b) for a, b in (_numbers_of("before", word, ":", 2) for word in self.before)],
            pins=pins,
            forbidden=[(item, place) for item, place in (_numbers_of("forbid", word, ":", 2) for word in self.forbid)],
            together=[_numbers_of("together", word, ",") for word in self.together],
        )


def _started(rules: Constraints | None) -> Constraints:
    """The rules with item 0 at place 0, unless they pin another item there or item 0 elsewhere."""
    rules = rules or Constraints()
    if 0 in rules.pins or 0 in rules.pins.values():
        return rules
    return replace(rules, pins={**rules.pins, 0: 0})


def _numbers_of(option: str, word: str, separator: str, count: int | None = None) -> list[int]:
    """The numbers of a word like 3:5, so many if `count` says so."""
    try:
        found = [int(part) for part in word.split(separator)]
    except ValueError:
        found = []
    if not found or count not in (None, len(found)):
        wanted = separator.join(("3", "5", "7")[:count])
        raise ValueError(f"--{option} must be written like {wanted}, got {word!r}")
    return found


@dataclass(frozen=True)
class SampleCommand:
    """Draw orders of the items in a file."""

    model: Model
    items: tyro.conf.Positional[
        Annotated[Path, tyro.conf.arg(metavar="ITEMS", help="A .npz, .csv or .tsp file or a folder of images.")]
    ]
    output: tyro.conf.Positional[
        Annotated[Path, tyro.conf.arg(metavar="OUTPUT", help="A .csv, .json or .npz file to write.")]
    ]
    num_samples: int = 1
    """Draws per instance."""
    steps: int | None = None
    """Diffusion steps, by default the model's own."""
    process: ProcessOptions = field(default_factory=ProcessOptions)
    decode: DecodeName = "sample"
    """How items are picked: drawn (--draw.temperature), greedily, or by a beam search (--beam.width)."""
    draw: Draw = field(default_factory=Draw)
    beam: Beam = field(default_factory=Beam)
    rules: Annotated[RuleOptions, tyro.conf.arg(name="")] = field(default_factory=RuleOptions)
    seed: int = 0
    """Another seed, other draws."""
    engine: Engine = field(default_factory=Engine)
    device: Device = None
    config: ConfigFile = None

    def run(self, command: str) -> int:
        """Draw and write the orders; returns the exit code."""
        from softrank_ext.cli.item_files import check_writable, read_items, write_orders
        from softrank_ext.sampling import sample

        check_writable(self.output)
        check_decode_options([self.decode], self.draw, self.beam)
        model = model_folder.load_model(folder_to_load(self.model))
        model.to(checked_device(self.device) or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = str((model.config.embedder or {}).get("kind"))
        source = read_items(self.items, channels=_CHANNELS.get(kind))
        rules = self.rules.constraints_of(starts_at_item_0=self.items.suffix == ".tsp")
        samples = sample(
            model,
            source.items,
            mask=source.mask,
            constraints=rules,
            num_samples=self.num_samples,
            process=self.process.process_of(model, self.steps),
            decode=decode_of(self.decode, self.draw, self.beam),
            seed=self.seed,
            progress=sys.stderr.isatty(),
            engine=self.engine,
        )
        write_orders(self.output, samples, source)
        if samples.effective_size is not None:
            least = float(samples.effective_size.min())
            draws = self.num_samples * settings_of(rules).particles
            print(f"effective sample size {least:.1f} of {draws} draws, in the worst instance")
        print(f"{samples.order.shape[0] * samples.order.shape[1]} orders written to {self.output}")
        return 0
