"""Orders learned from a cost, beside the known methods of each problem.

    python bench/cost.py --tables flowshop --data FOLDER
    python bench/cost.py --tables tardiness --model runs/tardiness/best
    python bench/cost.py --tables tsp --model runs/tsp/best --data FILE
    python bench/cost.py --tables drawing
    python bench/cost.py --tables objectives --minutes 20 --seeds 0 1

flowshop: Taillard's instances in FOLDER (tai20_5.txt and so on, with best.csv), gaps in percent to the best known
makespans: on equal draws greedy, best of 16 and of all draws, `improve` without and with local search; on equal seconds
per instance `improve`, the same with uniform draws, restarts of the local search, and iterated greedy.
tardiness: costs relative to those of ATC, on equal seconds as above. tsp: gaps to the tours of FILE.
drawing: orders per second as training draws them, compiled and in plain torch, and the share of an update's time.
objectives: short runs of each objective, and of the best of them with each head, one after the other.
Means over instances with their standard errors; differences are paired. All of it goes into a JSON file as well.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Deadline, fix_threads, machine, timed_once
from torch import Tensor
from uniform import UniformModel

from softrank_ext import Bridge, SoftRankConfig, SoftRankModel, from_pretrained, improve, sample, train
from softrank_ext.choices import Engine
from softrank_ext.costs import Cost, atc, iterated_greedy, local_search, neh
from softrank_ext.metrics import gap, tour_length
from softrank_ext.model import OrderModel
from softrank_ext.sampling import Search
from softrank_ext.tasks.flowshop import FlowShop, read_taillard
from softrank_ext.tasks.tardiness import Tardiness
from softrank_ext.tasks.tsp import TSP, read_instances
from softrank_ext.training import Preference, Reinforce, SelfLabel, TrainConfig

RESULTS = Path(__file__).parent / "results"
FLOW_SHOPS = ("20_5", "20_10", "20_20", "50_5", "50_10")
FOLDERS = ("data", "model")
GREEDY_ROUNDS = 50  # of the iterated greedy search on each draw, where `improve` has one
Row = dict[str, object]


def stated(values: Tensor) -> str:
    """Mean and standard error."""
    return f"{float(values.mean()):.3f} ± {float(values.std() / len(values) ** 0.5):.3f}"


class Compared:
    """Instances, a cost, a model, and how a cost is stated: `value(costs) -> (B,)`, lower is better."""

    def __init__(
        self, name: str, items: Tensor, cost: Cost, model: OrderModel, value: Callable[[Tensor], Tensor], seed: int
    ) -> None:
        self.name, self.items, self.cost, self.model, self.value, self.seed = name, items, cost, model, value, seed

    def polish(self, items: Tensor, order: Tensor) -> Tensor:
        """Local search until no move helps."""
        return local_search(items, order, self.cost)

    def greedy(self) -> Tensor:
        """Costs of the likeliest orders."""
        return self.cost(
            self.items, sample(self.model, self.items, decode="greedy", steps=1, seed=self.seed).order[:, 0]
        )

    def best_of(self, draws: int) -> Tensor:
        """Lowest costs of independent draws."""
        found = improve(self.model, self.items, self.cost, initial=draws, rounds=0, seed=self.seed)
        return found.cost

    def improved(self, draws: int, search: Search) -> Tensor:
        """Costs after so many draws, 16 of them independent."""
        initial = min(16, draws)
        found = improve(
            self.model, self.items, self.cost, initial=initial, rounds=draws - initial, search=search, seed=self.seed
        )
        return found.cost

    def equal_draws(self, draws: int, known: dict[str, Tensor]) -> Iterator[Row]:
        """Rows of known methods' costs, and of the model's orders, on so many draws."""
        for way, cost in known.items():
            yield {"instances": self.name, "way": way, "value": stated(self.value(cost))}
        ways: dict[str, Callable[[], Tensor]] = {
            "greedy": self.greedy,
            "best of 16 draws": partial(self.best_of, 16),
            f"best of {draws} draws": partial(self.best_of, draws),
            f"improve, {draws} draws": partial(self.improved, draws, Search()),
            f"improve with local search, {draws} draws": partial(self.improved, draws, Search(polish=self.polish)),
        }
        for way, call in ways.items():
            costs: list[Tensor] = []
            seconds = timed_once(lambda: costs.append(call()))  # noqa: B023
            yield {"instances": self.name, "way": way, "value": stated(self.value(costs[0])),
                   "seconds per instance": round(seconds / len(self.items), 4)}  # fmt: skip

    def improved_for(self, seconds: float, model: OrderModel, rounds: int | None = None) -> Tensor:
        """Costs of `improve` after so many seconds for all instances, with local search or iterated greedy."""

        def greedy(items: Tensor, order: Tensor) -> Tensor:
            return iterated_greedy(items, order, self.cost, rounds=rounds, seed=self.seed)

        search = Search(polish=self.polish if rounds is None else greedy)
        return improve(model, self.items, self.cost, seconds=seconds, search=search, seed=self.seed).cost

    def restarts_for(self, seconds: float, start: Tensor | None = None) -> Tensor:
        """Lowest costs of local searches from random orders, or from `start` with a tenth of the items moved."""
        B, N = self.items.shape[:2]
        generator, deadline = torch.Generator().manual_seed(self.seed), Deadline(seconds)
        best = torch.full((B,), torch.inf, dtype=torch.float64)
        is_first = True
        while is_first or not deadline.has_passed():
            order = torch.rand(B, N, generator=generator).argsort(1)
            if start is not None:
                places = torch.arange(N).expand(B, N).float()
                moved = torch.rand(B, N, generator=generator) < (0.0 if is_first else 0.1)
                keys = torch.where(moved, N * torch.rand(B, N, generator=generator), places)
                order = start.gather(1, keys.argsort(1))
            best = torch.minimum(best, self.cost(self.items, self.polish(self.items, order)))
            is_first = False
        return best

    def greedy_search_for(self, seconds: float, start: Tensor) -> Tensor:
        """Costs of iterated greedy search from `start`, each instance with its share of the seconds."""
        share = seconds / len(self.items) * torch.get_num_threads()  # rows run side by side
        return self.cost(self.items, iterated_greedy(self.items, start, self.cost, seconds=share, seed=self.seed))

    def equal_seconds(self, seconds: float, start: Tensor, rule: str) -> Iterator[Row]:
        """Rows of searches, `seconds` per instance each; start: orders by the rule of that name."""
        total = seconds * len(self.items)
        uniform = UniformModel(self.model.config.data)
        ways: dict[str, Callable[[], Tensor]] = {
            "improve with local search": partial(self.improved_for, total, self.model),
            "the same by uniform draws": partial(self.improved_for, total, uniform),
            "improve with iterated greedy": partial(self.improved_for, total, self.model, GREEDY_ROUNDS),
            "local search from random orders": partial(self.restarts_for, total),
            f"local search from {rule}": partial(self.restarts_for, total, start),
            "iterated greedy": partial(self.greedy_search_for, total, start),
        }
        reference: Tensor | None = None
        for way, call in ways.items():
            costs: list[Tensor] = []
            taken = timed_once(lambda: costs.append(call()))  # noqa: B023
            values = self.value(costs[0])
            reference = values if reference is None else reference
            yield {"instances": self.name, "way": way, "value": stated(values),
                   "less than improve": stated(reference - values),
                   "seconds per instance": round(taken / len(self.items), 3)}  # fmt: skip


def flow_shop_table(arguments: argparse.Namespace) -> Iterator[Row]:
    """Gaps to the best known makespans of Taillard's flow shops, in percent."""
    model = from_pretrained(arguments.model or "flowshop")
    for size in arguments.sizes:
        file = Path(arguments.data) / f"tai{size}.txt"
        task = FlowShop(test_file=str(file))
        batch = next(task.test_batches(len(read_taillard(file)), 10**6))

        def value(costs: Tensor, best: Tensor = batch.extras["best"]) -> Tensor:
            return 100 * gap(costs, best)

        compared = Compared(size, batch.items, task.cost, model, value, arguments.seed)
        first = neh(batch.items)
        yield from compared.equal_draws(arguments.draws, {"NEH": task.cost(batch.items, first)})
        yield from compared.equal_seconds(arguments.seconds, first, "NEH")


def tardiness_table(arguments: argparse.Namespace) -> Iterator[Row]:
    """Costs relative to the mean cost of ATC, in percent of it: a row's own cost may be zero."""
    model = from_pretrained(arguments.model)
    for jobs in (20, 40):
        task = Tardiness(jobs)
        batch = next(task.test_batches(arguments.count, arguments.count, seed=arguments.seed + 1000))
        first = atc(batch.items)
        rule = task.cost(batch.items, first)

        def value(costs: Tensor, rule: Tensor = rule) -> Tensor:
            return 100 * costs / rule.mean()

        compared = Compared(f"N {jobs}", batch.items, task.cost, model, value, arguments.seed)
        searched = task.cost(batch.items, compared.polish(batch.items, first))
        yield from compared.equal_draws(arguments.draws, {"ATC": rule, "ATC and local search": searched})
        yield from compared.equal_seconds(arguments.seconds, first, "ATC")


def tour_table(arguments: argparse.Namespace) -> Iterator[Row]:
    """Percent of greedy tours over those of a file: of the bundled model, and of one trained without labels."""
    points, order = read_instances(arguments.data)
    points, best = points[: arguments.count].float(), tour_length(points, order)[: arguments.count]
    gaps: list[Tensor] = []
    for name, model in (("labels", from_pretrained("tsp")), ("no labels", from_pretrained(arguments.model))):
        found = sample(model, points, decode="greedy", steps=1, seed=arguments.seed).order[:, 0]
        gaps.append(100 * gap(tour_length(points, found), best))
        yield {"trained with": name, "greedy gap": stated(gaps[-1])}
    yield {"difference": stated(gaps[1] - gaps[0])}


def small_model(task: Any, head: Any = "pointer") -> SoftRankModel:
    """A model of the size of the bundled ones."""
    has_decoder = head in ("pointer", "linear")
    return SoftRankModel(
        SoftRankConfig(
            d_model=128, feed_forward=512, heads=8, encoder_layers=3 if has_decoder else 6,
            decoder_layers=3 if has_decoder else 0, head=head, max_items=task.max_items() if head == "linear" else None,
            dropout=0.0, time_steps=1, process=Bridge(sampling_steps=1), embedder=task.embedder(),
            data=task.data_facts(),
        )
    )  # fmt: skip


def drawing_table(arguments: argparse.Namespace) -> Iterator[Row]:
    """Orders drawn per second of flow shops of 20 jobs, compiled and in plain torch, and their share of training."""
    task = FlowShop()
    torch.manual_seed(arguments.seed)
    model = small_model(task)
    items = task.training_batch(0, 0, 16).items
    for draws in (8, 32):
        rates = {}
        for name, engine in (("compiled", Engine()), ("plain torch", Engine(compiled=False))):
            call = partial(sample, model, items, num_samples=draws, steps=1, seed=0, engine=engine)
            call()
            rates[name] = 16 * draws / min(timed_once(call) for _ in range(5))
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainConfig(30, 16, warmup=5, log_every=30, objective=SelfLabel(draws))
            train(small_model(task), task, settings, Path(folder) / "run", quiet=True)
            lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        yield {"instances": 16, "draws": draws, "compiled per second": round(rates["compiled"]),
               "plain torch per second": round(rates["plain torch"]),
               "ratio": round(rates["compiled"] / rates["plain torch"], 2),
               "share of an update's time": round(last["draw_share"], 2)}  # fmt: skip


def trained(task: Any, objective: Any, head: str, seed: int, minutes: float) -> Row:
    """A run of so many minutes, and what it reached on held-out instances that chose nothing."""
    torch.manual_seed(seed)
    model = small_model(task, head)
    speed = TrainConfig(20, 32, warmup=10, objective=objective, seed=seed, log_every=20)
    seconds = timed_once(lambda: train(model, task, speed, quiet=True))
    updates = max(20, int(minutes * 60 / (seconds / 20)))
    torch.manual_seed(seed)
    model = small_model(task, head)
    settings = TrainConfig(updates, 32, warmup=min(200, updates // 10), objective=objective, seed=seed)
    taken = timed_once(lambda: train(model, task, settings, quiet=True))
    batch = next(task.test_batches(1000, 1000, seed=77))
    found = sample(model, batch.items, decode="greedy", steps=1, seed=0).order[:, 0]
    return {
        "task": task.name, "objective": type(objective).__name__, "head": head, "seed": seed, "updates": updates,
        "minutes": round(taken / 60, 1), "greedy cost": stated(task.cost(batch.items, found)),
        "mean": float(task.cost(batch.items, found).mean()),
    }  # fmt: skip


def objective_table(arguments: argparse.Namespace) -> Iterator[Row]:
    """Every objective on the pointer head, then the best of them on the other heads."""
    tasks: tuple[Any, ...] = (FlowShop(), TSP(num_points=20))
    for task in tasks:
        objectives = (SelfLabel(8), SelfLabel(8, polish=50), Reinforce(16), Preference(16))
        means = []
        for objective in objectives:
            runs = [trained(task, objective, "pointer", seed, arguments.minutes) for seed in arguments.seeds]
            means.append(sum(float(str(row["mean"])) for row in runs))
            yield from runs
        best = objectives[means.index(min(means))]
        for head in ("linear", "gpl", "pl"):
            for seed in arguments.seeds:
                yield trained(task, best, head, seed, arguments.minutes)


TABLES = {
    "flowshop": flow_shop_table, "tardiness": tardiness_table, "tsp": tour_table, "drawing": drawing_table,
    "objectives": objective_table,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["flowshop", "drawing"])
    parser.add_argument("--data", default=os.path.join(os.environ.get("SOFTRANK_DATA", "data"), "flowshop"))
    parser.add_argument("--model", default=None, help="a folder or the name of a bundled model")
    parser.add_argument("--sizes", nargs="+", default=FLOW_SHOPS)
    parser.add_argument("--draws", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1.0, help="per instance, of the rows on equal seconds")
    parser.add_argument("--count", type=int, default=128, help="instances of tardiness and tsp")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each run of the objectives")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of the objectives' runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    fix_threads(arguments.threads)
    print(machine())
    for table in arguments.tables:
        print(f"{table}: {(TABLES[table].__doc__ or '').splitlines()[0]}")
        output = RESULTS / f"cost_{table}.json"
        rows: list[Row] = []
        if table == "flowshop" and output.exists():  # a size that is measured again takes the place of what was
            before = json.loads(output.read_text())["rows"]
            rows = [row for row in before if row["instances"] not in arguments.sizes]
        for row in TABLES[table](arguments):
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            rows.append(row)
            # Folders of this machine mean nothing to others.
            names = {name: value and Path(value).name for name, value in vars(arguments).items() if name in FOLDERS}
            record = {"machine": machine(), "options": vars(arguments) | names, "rows": rows}
            output.write_text(json.dumps(record, indent=2) + "\n")
        print(f"written to {output}")


if __name__ == "__main__":
    main()
