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
    folder_to_load,
)
from softrank_ext.constraints import Constraining, Constraints, read_constraints

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
    law: Literal["prefix", "conditioned"] = "prefix"
    """Of draws under constraints: pick by pick (fast), or the model's law given them."""
    particles: int = 16
    """Weighted draws per sample, for --law conditioned."""
    reflect_noise: bool = False
    """Noise keeps the order pairs too."""

    def rules(self, starts_at_item_0: bool) -> Constraining:
        """The rules that these options give; starts_at_item_0: with item 0 at place 0, if nothing else is pinned so."""
        words = self.before or self.pin or self.forbid or self.together
        if self.constraints is not None:
            if words:
                raise ValueError("--constraints FILE excludes --before, --pin, --forbid and --together, got both")
            given: Constraints | list[Constraints | None] | None = read_constraints(self.constraints)
        else:
            given = self._rules_of_words() if words else None
        if starts_at_item_0:
            given = [_started(row) for row in given] if isinstance(given, list) else _started(given)
        if given is None and (self.law, self.reflect_noise) != ("prefix", False):
            raise ValueError("--law and --reflect-noise are for draws under constraints, got none")
        return given

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

        check_writable(self.output)
        check_decode_options([self.decode], self.draw, self.beam)
        model = model_folder.load_model(folder_to_load(self.model))
        model.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = str((model.config.embedder or {}).get("kind"))
        source = read_items(self.items, channels=_CHANNELS.get(kind))
        samples = self._drawn(model, source)
        write_orders(self.output, samples, source)
        if samples.effective_size is not None:
            least, draws = float(samples.effective_size.min()), self.num_samples * self.rules.particles
            print(f"effective sample size {least:.1f} of {draws} draws, in the worst instance")
        print(f"{samples.order.shape[0] * samples.order.shape[1]} orders written to {self.output}")
        return 0

    def _drawn(self, model: Any, source: Any) -> Any:
        from softrank_ext.sampling import sample

        is_beam = self.decode == "beam"
        rules = self.rules.rules(starts_at_item_0=False)
        first: int | None = 0 if self.items.suffix == ".tsp" else None
        if isinstance(rules, Constraints) and 0 in rules.pins.values():
            first = next(item for item, place in rules.pins.items() if place == 0)
            rules = replace(rules, pins={item: place for item, place in rules.pins.items() if item != first})
        return sample(
            model,
            source.items,
            mask=source.mask,
            first=first,
            constraints=None if rules == Constraints() else rules,
            law=self.rules.law,
            particles=self.rules.particles,
            reflect_noise=self.rules.reflect_noise,
            num_samples=self.num_samples,
            steps=self.steps,
            noise_scale=0.5 if self.process.noise_scale is None else self.process.noise_scale,
            reference=self.process.prior or "uniform",
            carry=self.process.carry or "exact",
            decode=self.decode,
            temperature=self.draw.temperature,
            beam=self.beam.width if is_beam else None,
            beam_kept=self.beam.kept if is_beam else 1,
            seed=self.seed,
            compiled=self.engine.compiled,
            cache=self.engine.cache,
            speculative=self.engine.speculative,
            max_memory=self.engine.max_memory,
            progress=sys.stderr.isatty(),
        )
