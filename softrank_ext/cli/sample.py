"""`softrank sample MODEL ITEMS OUTPUT`."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from tqdm import tqdm

from softrank_ext import model_folder
from softrank_ext.choices import Beam, Draw, Engine
from softrank_ext.cli.item_files import ItemFile, check_writable, read_items, write_orders
from softrank_ext.cli.merge import merge_parts, part_of
from softrank_ext.cli.options import (
    AsJson,
    ConfigFile,
    DecodeName,
    Device,
    Model,
    ProcessOptions,
    check_decode_options,
    check_outputs,
    checked_device,
    decode_of,
    folder_to_load,
    tell,
)
from softrank_ext.constraints import Constraining, Constraints, read_constraints, settings_of
from softrank_ext.model import OrderModel

BLOCK = 32  # instances that are drawn at once

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
    shard: str | None = None
    """I/N: only part I of N of the instances, I from 1; `softrank merge OUTPUT` puts the parts together."""
    device: Device = None
    as_json: AsJson = False
    config: ConfigFile = None

    def run(self, command: str) -> int:
        """Draw and write the orders; returns the exit code."""
        from softrank_ext.training import processes

        check_writable(self.output)
        check_outputs((self.output,), (self.items, self.rules.constraints))
        check_decode_options([self.decode], self.draw, self.beam)
        shard = None if self.shard is None else _shard_of(self.shard)
        with processes(checked_device(self.device)) as here:
            if here.world > 1:
                if shard is not None:
                    raise ValueError(
                        f"--shard must be left out under torchrun, which shards by itself, got {self.shard}"
                    )
                shard = (here.rank + 1, here.world)
            model = model_folder.load_model(folder_to_load(self.model)).to(here.device)
            kind = str((model.config.embedder or {}).get("kind"))
            source = read_items(self.items, channels=_CHANNELS.get(kind))
            output = self.output if shard is None else part_of(self.output, *shard)
            effective_size = self._write(model, source, output, shard or (1, 1), here.rank == 0)
            here.wait()
            if here.world > 1 and here.rank == 0:
                parts = [part_of(self.output, number, here.world) for number in range(1, here.world + 1)]
                merge_parts(self.output, parts)
                for part in parts:
                    part.unlink()
                output = self.output
            if here.rank == 0:
                self._tell(output, source, shard if here.world == 1 else None, effective_size)
        return 0

    def _write(
        self, model: OrderModel, source: ItemFile, output: Path, shard: tuple[int, int], is_shown: bool
    ) -> float | None:
        """Draw the orders of a shard and write them; returns the least effective sample size, if there is one."""
        from softrank_ext.sampling import sample
        from softrank_ext.sampling.samples import map_fields

        rules = self.rules.constraints_of(starts_at_item_0=self.items.suffix == ".tsp")
        if isinstance(rules, list) and len(rules) != len(source.items):
            raise ValueError(f"constraints must be one for all or {len(source.items)} rows, got {len(rules)}")
        blocks = _blocks_of(len(source.items), shard)
        rows = slice(blocks[0].start, blocks[-1].stop)
        parts = []
        is_bar = is_shown and sys.stderr.isatty()
        with tqdm(total=rows.stop - rows.start, unit="instance", delay=2, disable=not is_bar) as bar:
            for block in blocks:
                parts.append(
                    sample(
                        model, source.items[block], mask=None if source.mask is None else source.mask[block],
                        constraints=rules[block] if isinstance(rules, list) else rules,
                        num_samples=self.num_samples, process=self.process.process_of(model, self.steps),
                        decode=decode_of(self.decode, self.draw, self.beam), seed=self.seed,
                        first_sample=block.start * self.num_samples, engine=self.engine,
                    )
                )  # fmt: skip
                bar.update(block.stop - block.start)
        samples = parts[0] if len(parts) == 1 else map_fields(lambda *fields: torch.cat(fields), *parts)
        write_orders(output, samples, source.of_rows(rows), first_instance=rows.start)
        sizes = samples.effective_size
        return None if sizes is None or sizes.numel() == 0 else float(sizes.min())

    def _tell(
        self, output: Path, source: ItemFile, shard: tuple[int, int] | None, effective_size: float | None
    ) -> None:
        """Print what was written."""
        blocks = _blocks_of(len(source.items), shard or (1, 1))
        instances = blocks[-1].stop - blocks[0].start
        returned = self.beam.returned if self.decode == "beam" else 1
        count = instances * self.num_samples * returned
        record = {"output": str(output), "orders": count, "instances": instances, "seed": self.seed}
        text = f"{count} orders written to {output}"
        if effective_size is not None:
            rules = self.rules.constraints_of(starts_at_item_0=self.items.suffix == ".tsp")
            draws = self.num_samples * settings_of(rules).particles
            record |= {"effective_size": effective_size, "draws": draws}
            text = f"effective sample size {effective_size:.1f} of {draws} draws, in the worst instance\n{text}"
        tell(self.as_json, record, text)


def _shard_of(word: str) -> tuple[int, int]:
    """Number and count of --shard I/N."""
    number, _, count = word.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--shard must be I/N with I from 1 to N, like 2/4, got {word!r}")
    return int(number), int(count)


def _blocks_of(instances: int, shard: tuple[int, int]) -> list[slice]:
    """The blocks of instances that a shard draws one after the other; at least one, which may be empty.

    Blocks are the same whatever the number of shards: torch's matrix products may round differently in batches of
    different sizes, so a shard has the bits of the whole because its batches are those of the whole.
    """
    number, count = shard
    blocks = -(-instances // BLOCK)
    own = range(blocks * (number - 1) // count, blocks * number // count)
    empty = min(own.start * BLOCK, instances)
    found = [slice(block * BLOCK, min((block + 1) * BLOCK, instances)) for block in own]
    return found or [slice(empty, empty)]
