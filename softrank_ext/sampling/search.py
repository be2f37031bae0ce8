"""The searches of `improve` over rows of equally many items: their state, and what one round does to it."""

from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext import noise, ops
from softrank_ext.constraints import Constraining, Rules, pinned_first
from softrank_ext.costs import Cost, costs_of
from softrank_ext.metrics import counterclockwise
from softrank_ext.model import DataFacts, OrderModel
from softrank_ext.permutations import check_order, ranks_of, turned
from softrank_ext.sampling.conditioning import Conditions, conditions_from, conditions_of
from softrank_ext.sampling.parts import Part, Present, Rebuilding, Tail, chosen
from softrank_ext.sampling.reverse import Call, Rows, reverse
from softrank_ext.sampling.settings import Annealed, Drawing, Search

_ALL_ROWS = 2**62  # the sample number of what is drawn once for all rows
_MEMORY = 0.95  # of what fresh and rebuilt draws paid, so much outlasts a round
_EQUAL = 1e-9  # costs that differ by less, relatively, are taken for those of one order


class Instances(NamedTuple):
    """Rows of equally many items, without padding.

    rows (R,) int64: their numbers in the call. items (R, n, ...). real (R, n) int64: the items' numbers in the call.
    starts (R, n) int64, or None. constraints: over these items, for all rows or one per row.
    """

    rows: Tensor
    items: Tensor
    real: Tensor
    starts: Tensor | None
    constraints: Constraining


class RoundDraw(NamedTuple):
    """What a round drew: orders (B, N), which items were drawn again (B, N) bool, costs (B,), and best orders so far.

    B is the number of searches; items are numbered as in the call. All items are drawn again in fresh draws.
    """

    order: Tensor
    noised: Tensor
    cost: Tensor
    best_order: Tensor


class Drawn(NamedTuple):
    """What a round has drawn and not yet taken, for R searches of n items.

    order (R, n) int64, cost (R,), noised (R, n) bool; is_fresh (R,) bool; parent (R,) int64, the number in the pool of
    the order of which a part was drawn again; uniform (R,), for taking costlier orders.
    """

    number: int
    order: Tensor
    cost: Tensor
    noised: Tensor
    is_fresh: Tensor
    parent: Tensor
    uniform: Tensor


class SearchRows:
    """`chains` searches for each of the instances; drawing gives the number of the call's first row, and record."""

    def __init__(
        self, call: Call, cost: Cost, search: Search, instances: Instances, chains: int, drawing: Drawing
    ) -> None:
        self.call, self.cost, self.search, self.instances, self.chains = call, cost, search, instances, chains
        self.records = drawing.record
        R, n = instances.items.shape[:2]
        model, device = call.model, instances.items.device
        self.data = getattr(model.config, "data", DataFacts())
        self.items = instances.items.repeat_interleave(chains, 0)
        self.numbers = (
            (drawing.first_row + instances.rows)[:, None] * chains + torch.arange(chains, device=device)
        ).flatten()
        first, rest = pinned_first(instances.constraints, R, n)
        self.first = torch.zeros(R, dtype=torch.int64, device=device) if first is None else first.to(device)
        self.is_turned = self.data.symmetry == "tour" and rest is None
        self.constraints: Constraining = instances.constraints
        if isinstance(self.constraints, list | tuple) and not isinstance(self.constraints, Rules):
            self.constraints = [row for row in self.constraints for _ in range(chains)]
        self.rows_at_once = max(1, int(call.engine.memory_on(device) // model.bytes_per_sample(n)))
        self.num_copies = drawing.num_copies(self.data)
        copies = [
            self.data.copy_of(instances.items, torch.full((R,), number, device=device))
            for number in range(self.num_copies)
        ]
        self.embedded = torch.cat([model.embed(part) for copy in copies for part in copy.split(self.rows_at_once)])
        self.kinds = _kinds_of(search, model, self.is_turned)
        self.wins = torch.zeros(2, len(self.numbers), dtype=torch.float64, device=device)  # fresh, rebuilt
        self.tries = torch.zeros_like(self.wins)

    def begin(self, initial: int) -> None:
        """The initial draws, and the pool of the cheapest different ones."""
        rows = torch.arange(len(self.numbers), device=self.items.device).repeat_interleave(initial)
        numbers = self.numbers[rows] * initial + torch.arange(len(rows), device=rows.device) % initial
        uniform = noise.uniform(self.call.seed, numbers, 0, 1, stream=noise.SEARCH_STREAM, dtype=torch.float64)
        copy = self._copies(rows, torch.arange(len(rows), device=rows.device) % initial)
        orders = self._drawn(rows, copy, self._fresh(rows, uniform[:, 0]), numbers)
        orders, costs = self._settled(rows, orders)
        orders, costs = orders.unflatten(0, (-1, initial)), costs.unflatten(0, (-1, initial))  # (R, initial, ...)
        if self.instances.starts is not None:
            given = self.instances.starts.repeat_interleave(self.chains, 0)
            own, own_cost = self._settled(torch.arange(len(given), device=given.device), given)
            orders, costs = torch.cat((own[:, None], orders), 1), torch.cat((own_cost[:, None], costs), 1)
        costs, ascending = costs.sort(dim=1, stable=True)
        orders = orders.gather(1, ascending[..., None].expand_as(orders))
        self.best_order, self.best_cost = orders[:, 0].clone(), costs[:, 0].clone()
        self.scale = torch.where(costs.isfinite(), costs, 0).sum(1) / costs.isfinite().sum(1).clamp(min=1)
        is_repeated = torch.zeros_like(costs, dtype=torch.bool)
        is_repeated[:, 1:] = _is_equal(costs[:, 1:], costs[:, :-1])
        costs, ascending = costs.masked_fill(is_repeated, torch.inf).sort(dim=1, stable=True)
        orders = orders.gather(1, ascending[..., None].expand_as(orders))
        size = self.search.pool_size(orders.shape[2])
        self.pool, self.pool_cost = orders[:, :size].contiguous(), costs[:, :size].contiguous()
        self.history = [self._lowest()]
        every = torch.ones_like(self.best_order, dtype=torch.bool)
        self.rounds = [RoundDraw(self.best_order, every, self.best_cost, self.best_order)]

    def drawn(self, number: int) -> Drawn:
        """What round `number`, counted from 1, draws: one order per search. It counts once it is taken."""
        n = self.items.shape[1]
        seed, stream = self.call.seed, noise.SEARCH_STREAM
        uniform = noise.uniform(seed, self.numbers, number, n + 4, stream=stream, dtype=torch.float64)
        shared = torch.full((1,), _ALL_ROWS, device=uniform.device)
        size, kind = noise.uniform(seed, shared, number, 2, stream=stream, dtype=torch.float64)[0].tolist()
        is_fresh = uniform[:, 0] < self._fresh_share()
        parent = (uniform[:, 1].square() * self.pool_cost.isfinite().sum(1)).long()  # good orders more often
        keys = self.numbers + (number << 32)
        copy = self._copies(torch.arange(len(keys), device=keys.device), number)
        orders = torch.empty_like(self.best_order)
        noised = torch.ones_like(orders, dtype=torch.bool)
        fresh, rebuilt = is_fresh.nonzero()[:, 0], (~is_fresh).nonzero()[:, 0]
        if len(fresh) > 0:
            orders[fresh] = self._drawn(fresh, copy[fresh], self._fresh(fresh, uniform[fresh, 2]), keys[fresh])
        if len(rebuilt) > 0:
            present = self._present(rebuilt, copy[rebuilt], parent[rebuilt], uniform[rebuilt, 2:], size)
            start = chosen(self.kinds[int(kind * len(self.kinds))], present)
            rules = None if self.is_turned else self._constraints_of(rebuilt)
            conditions = conditions_from(start, self.call.model, rules, None, self.items.device)
            orders[rebuilt] = self._drawn(rebuilt, copy[rebuilt], conditions, keys[rebuilt])
            noised[rebuilt] = True if conditions.kept is None else conditions.kept.noised
        orders, costs = self._settled(torch.arange(len(orders), device=orders.device), orders)
        return Drawn(number, orders, costs, noised, is_fresh, parent, uniform[:, 3])

    def take(self, drawn: Drawn) -> None:
        """Bring the draws of a round into pool, best orders and what is known of fresh and rebuilt draws."""
        number, orders, costs, noised, is_fresh, parent, uniform = drawn
        pays = costs < self.best_cost - _EQUAL * self.best_cost.abs()
        for kind, is_kind in enumerate((is_fresh, ~is_fresh)):
            self.wins[kind] = _MEMORY * self.wins[kind] + (is_kind & pays)
            self.tries[kind] = _MEMORY * self.tries[kind] + is_kind
        is_lower = costs < self.best_cost
        self.best_order = torch.where(is_lower[:, None], orders, self.best_order)
        self.best_cost = torch.where(is_lower, costs, self.best_cost)
        place = torch.where(is_fresh, self.pool_cost.shape[1] - 1, parent)[:, None]  # the last is the most costly
        increase = costs - self.pool_cost.gather(1, place)[:, 0]
        is_taken = increase < 0
        if isinstance(self.search.accept, Annealed):
            temperature = self.search.accept.start * self.search.accept.decay ** (number - 1) * self.scale.abs()
            is_taken |= ~is_fresh & (uniform < torch.exp(-increase / temperature.clamp(min=1e-300)))
        is_taken &= ~_is_equal(costs[:, None], self.pool_cost).any(1)
        self.pool_cost.scatter_(
            1, place, torch.where(is_taken[:, None], costs[:, None], self.pool_cost.gather(1, place))
        )
        index = place[..., None].expand(-1, 1, orders.shape[1])
        self.pool.scatter_(1, index, torch.where(is_taken[:, None, None], orders[:, None], self.pool.gather(1, index)))
        self.pool_cost, ascending = self.pool_cost.sort(dim=1, stable=True)
        self.pool = self.pool.gather(1, ascending[..., None].expand_as(self.pool))
        self.history.append(self._lowest())
        if self.records:
            self.rounds.append(RoundDraw(orders, noised, costs, self.best_order))

    def _fresh_share(self) -> Tensor:
        """Share (R,) of fresh draws: in proportion to how often fresh and rebuilt draws have lately paid."""
        if self.search.fresh is not None:
            return torch.full_like(self.scale, self.search.fresh)
        fresh, rebuilt = (self.wins + _PRIOR_WINS[:, None].to(self.wins.device)) / (self.tries + _PRIOR_TRIES)
        share: Tensor = (fresh / (fresh + rebuilt)).clamp(0.05, 0.95)
        return share

    def _fresh(self, rows: Tensor, uniform: Tensor) -> Conditions:
        """The conditions of fresh draws: of tours any item comes first, of other orders the rules hold."""
        n, device = self.items.shape[1], self.items.device
        if self.is_turned:
            return Conditions((uniform * n).long() if self.call.model.fixed_start else None)
        rules = self._constraints_of(rows)
        return conditions_of(rules, self.call.model.fixed_start, (len(rows), n), None, device)

    def _constraints_of(self, rows: Tensor) -> Constraining:
        if isinstance(self.constraints, list):
            return [self.constraints[row] for row in rows.tolist()]
        return self.constraints

    def _copies(self, rows: Tensor, draw: Tensor | int) -> Tensor:
        """The copies (M,) of the instances that draws of these searches (M,) are made from: each in its turn."""
        return (self.numbers[rows] + draw) % self.num_copies

    def _embedded(self, rows: Tensor, copy: Tensor) -> Tensor:
        """Embedded items (M, n, D) of the copies (M,) of the instances of these searches (M,); kept copy by copy."""
        return self.embedded[copy * len(self.instances.rows) + rows // self.chains]

    def _present(self, rows: Tensor, copy: Tensor, parent: Tensor, uniform: Tensor, size: float) -> Present:
        """The pool's orders numbered `parent` in these rows, over items of these copies; tours turned at random."""
        items, order = self.data.copy_of(self.items[rows], copy), self.pool[rows, parent]
        n = order.shape[1]
        if self.is_turned:
            if self.data.direction == "counterclockwise" and items.shape[2:] == (2,):
                order = counterclockwise(items, order)
            order = turned(order, (uniform[:, 0] * n).long())

        def log_probs(order: Tensor) -> Tensor:
            return self._log_probs(rows, copy, order, uniform[:, 2:])

        keeps_first = self.call.model.fixed_start
        return Present(items, order, uniform[:, 2:], size, keeps_first, self.is_turned, log_probs)

    def _log_probs(self, rows: Tensor, copy: Tensor, order: Tensor, uniform: Tensor) -> Tensor:
        """The model's log-probabilities (R, n) of the places of orders, from noise at time 1."""
        if self.call.model.fixed_start:
            uniform = uniform.scatter(1, order[:, :1], -1.0)
        order_t = uniform.argsort(1)
        parts = []
        for part in torch.arange(len(rows), device=rows.device).split(self.rows_at_once):
            slots = ranks_of(order_t[part]).gather(1, order[part])
            decoded = self.call.model.decode_embedded(
                self._embedded(rows[part], copy[part]), 1.0, None, ops.Choices(forced_order=slots),
                order=order_t[part], engine=self.call.engine, packed_weights=self.call.packed_weights,
            )  # fmt: skip
            parts.append(decoded.log_probs)
        return torch.cat(parts)

    def _drawn(self, rows: Tensor, copy: Tensor, conditions: Conditions, numbers: Tensor) -> Tensor:
        """Orders (M, n) of these searches, one per entry of rows (M,), from copies (M,), by the sample numbers (M,)."""
        parts = []
        for part in torch.arange(len(rows), device=rows.device).split(self.rows_at_once):
            embedded = self._embedded(rows[part], copy[part])
            parts.append(reverse(self.call, Rows(embedded, None, conditions.rows(part), numbers[part])).order)
        return torch.cat(parts)

    def _settled(self, rows: Tensor, orders: Tensor) -> tuple[Tensor, Tensor]:
        """Orders (M, n) after the local search, if there is one, and their costs (M,)."""
        items = self.items[rows]
        if self.search.polish is not None:
            polished = self.search.polish(items, orders)
            check_order(polished, "what polish returns")
            if polished.shape != orders.shape:
                raise ValueError(f"polish must return orders {tuple(orders.shape)}, got {tuple(polished.shape)}")
            orders = polished
        return orders, costs_of(self.cost, items, orders)

    def _lowest(self) -> Tensor:
        """The lowest cost of each instance so far, (R,)."""
        return self.best_cost.view(-1, self.chains).amin(1)

    def result(self) -> tuple[Tensor, Tensor]:
        """The cheapest orders (R, n) over the call's items and their costs (R,); tours begin with their pinned item."""
        costs, chain = self.best_cost.view(-1, self.chains).min(1)
        orders = self.best_order.unflatten(0, (-1, self.chains))[torch.arange(len(chain), device=chain.device), chain]
        if self.is_turned:
            orders = turned(orders, ranks_of(orders).gather(1, self.first[:, None])[:, 0])
        return self.instances.real.gather(1, orders), costs


_PRIOR_WINS = torch.tensor([0.1, 0.5], dtype=torch.float64)
_PRIOR_TRIES = 2.0


def _kinds_of(search: Search, model: OrderModel, is_turned: bool) -> tuple[Rebuilding, ...]:
    """What the search draws again: as asked, or what the model can do; raises ValueError if it cannot."""
    if search.rebuild is None:
        if is_turned:
            return (Part(0.3, 0.9),)
        return (Part(0.1, 0.6), Tail(0.3, 0.9)) if model.takes_parts else (Tail(0.3, 0.9),)
    kinds = search.rebuild if isinstance(search.rebuild, tuple) else (search.rebuild,)
    able = (Tail, Part) if is_turned else (Tail,)
    for kind in kinds:
        if not model.takes_parts and not isinstance(kind, able):
            names = " or ".join(f"{able_kind.__name__}(...)" for able_kind in able)
            raise ValueError(
                f"search.rebuild must be {names} for this model, which was not trained with a part of an order noised "
                f"(SoftRankConfig.partial), got {kind!r}"
            )
    return kinds


def _is_equal(a: Tensor, b: Tensor) -> Tensor:
    is_equal: Tensor = (a == b) | ((a - b).abs() <= _EQUAL * b.abs())
    return is_equal
