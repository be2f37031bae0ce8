"""Which slots may come next under constraints: the op `allowed_picks`, and the search that specifies it."""

import torch
from torch import Tensor

from softrank_ext.checks import check_instance, check_mask, check_tensor, described
from softrank_ext.ops.library import call_op, define

# Sets of placed items that a search for a completion may visit in one row before it gives up with an error.
MOST_STATES = 200_000


class RowConstraints:
    """What may come next in one row under constraints: the items with which some completion keeps every rule.

    before[a][b]: a stands before b. allowed[item][place]. group[item]: a number, -1 for none. Any may be None. items:
    the real ones. Whether a completion exists is found by trying: depth first, remembering the answer for each set of
    placed items, and without going on where the items left cannot be matched to the places left.
    """

    def __init__(
        self,
        before: list[list[bool]] | None,
        allowed: list[list[bool]] | None,
        group: list[int] | None,
        items: list[int],
    ) -> None:
        count = len(items)
        self._items = items
        self._before = {b: {a for a in items if before is not None and before[a][b]} for b in items}
        self._places = None
        if allowed is not None:
            self._places = {i: [place for place in range(count) if allowed[i][place]] for i in items}
        self._group = {
            i: {i} if group is None or group[i] < 0 else {j for j in items if group[j] == group[i]} for i in items
        }
        self._known: dict[frozenset[int], bool] = {}
        self._placed: frozenset[int] = frozenset()

    def next_items(self) -> list[int]:
        """Items that may be placed next."""
        return [item for item in self._candidates(self._placed) if self._completes(self._placed | {item})]

    def place(self, item: int) -> None:
        """Put the item at the next place."""
        self._placed |= {item}

    def _candidates(self, placed: frozenset[int]) -> list[int]:
        """Items that break no rule at the next place, those first whose last allowed place comes first."""
        is_open = any(group & placed and not group <= placed for group in self._group.values())
        fitting = [
            item
            for item in self._items
            if item not in placed
            and self._before[item] <= placed
            and (self._places is None or len(placed) in self._places[item])
            and (not is_open or self._group[item] & placed)
        ]
        return fitting if self._places is None else sorted(fitting, key=lambda item: (self._places or {})[item][-1])

    def _completes(self, placed: frozenset[int]) -> bool:
        if len(placed) == len(self._items):
            return True
        if placed not in self._known:
            if len(self._known) >= MOST_STATES:
                raise RuntimeError(f"constraints are too hard to check: the search passed {MOST_STATES} states")
            self._known[placed] = self._can_match(placed) and any(
                self._completes(placed | {item}) for item in self._candidates(placed)
            )
        return self._known[placed]

    def _can_match(self, placed: frozenset[int]) -> bool:
        """Whether each item that is left can have an allowed place of its own."""
        if self._places is None:
            return True
        places = self._places
        item_at: dict[int, int] = {}

        def seat(item: int, seen: set[int]) -> bool:
            for place in places[item]:
                if place >= len(placed) and place not in seen:
                    seen.add(place)
                    if place not in item_at or seat(item_at[place], seen):
                        item_at[place] = item
                        return True
            return False

        return all(seat(item, set()) for item in self._items if item not in placed)


class PlacedUnderRules:
    """What rules allow next in each row of a batch while it is placed, in plain torch; see `allowed_picks`.

    On the CPU by `RowConstraints`. Elsewhere by the CPU's kernel: the picks of all rows are copied there, one wait of
    the host per place.
    """

    def __init__(self, mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None) -> None:
        self._rows = row_constraints(mask, before, allowed, group) if mask.is_cpu else None
        given = [rule for rule in (before, allowed) if rule is not None]
        # One copy: the host waits for each.
        real, *pairs = torch.cat([mask[:, None], *given], 1).cpu().split([1] + [mask.shape[1]] * len(given), 1)
        self._mask = real[:, 0]
        self._rules = (
            None if before is None else pairs[0],
            None if allowed is None else pairs[-1],
            None if group is None else group.cpu(),
        )
        self._prefix = torch.empty(mask.shape[0], 0, dtype=torch.int64)

    def next_slots(self, remaining: Tensor) -> Tensor:
        """Slots that may come next (B, N) bool; of rows with one slot left or none, what remains."""
        is_open = self._mask.sum(1) > self._prefix.shape[1] + 1  # (B,)
        if self._rows is not None:
            candidates = remaining.clone()
            for row in is_open.nonzero()[:, 0].tolist():
                candidates[row] = False
                candidates[row, self._rows[row].next_items()] = True
            return candidates
        picks: Tensor = torch.ops.softrank_ext.allowed_picks(self._prefix, self._mask, *self._rules)[:, -1]
        if bool((is_open & ~picks.any(1)).any()):
            raise RuntimeError("constraints must leave an order, they leave none")
        parts = torch.stack((picks & is_open[:, None], ~is_open[:, None].expand_as(picks)))
        there: Tensor = parts.to(remaining.device, non_blocking=True)
        return there[0] | (there[1] & remaining)

    def place(self, choice: Tensor) -> None:
        """Go on to the next place: the slots (B,) that were picked."""
        picked = choice.cpu()
        self._prefix = torch.cat((self._prefix, picked[:, None]), 1)
        for row, slot in zip(self._rows or (), picked.tolist(), strict=False):
            row.place(slot)


def row_constraints(
    mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None
) -> list[RowConstraints]:
    """One `RowConstraints` per row of a batch; see `ops.allowed_picks`."""
    absent = [None] * mask.shape[0]
    pairs, places, groups = (absent if rule is None else rule.tolist() for rule in (before, allowed, group))
    return [
        RowConstraints(pairs[row], places[row], groups[row], mask[row].nonzero()[:, 0].tolist())
        for row in range(mask.shape[0])
    ]


def allowed_picks_reference(
    prefix: Tensor, mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None
) -> Tensor:
    """Slots that may come next after each part of a prefix (B, P): bool (B, P + 1, N); see `ops.allowed_picks`."""
    B, P = prefix.shape
    picks = torch.zeros(B, P + 1, mask.shape[1], dtype=torch.bool)
    for row, rules in enumerate(row_constraints(mask, before, allowed, group)):
        for step in range(P + 1):
            picks[row, step, rules.next_items()] = True
            if step < P:
                choice = int(prefix[row, step])
                if not picks[row, step, choice]:
                    break
                rules.place(choice)
    return picks.to(mask.device)


def allowed_picks(
    prefix: Tensor,
    mask: Tensor,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """Which slots may come next under constraints, after each part of a prefix: bool (B, P + 1, N).

    A slot may if some order that begins so keeps every rule. prefix: (B, P) int64, slots picked so far. mask: (B, N)
    bool, True = real slot. before: (B, N, N) bool, [a, b] = a stands before b; where slots are in groups it must hold
    for whole groups. allowed: (B, N, N) bool, [slot, place], tightened along `before` and groups. group: (B, N) int64,
    slots of one number (not -1) stand next to each other. `constraints.rules_of` makes all three, and sees to it that
    some order keeps them. After a pick that is not allowed nothing is. Raises RuntimeError if the search for a
    completion, needed where kinds of rules meet, visits more than `MOST_STATES` states in a row.
    """
    check_instance("prefix", prefix, Tensor)
    check_tensor("mask", mask, ("B", "N"), torch.bool)
    if prefix.ndim != 2 or prefix.dtype != torch.int64 or prefix.shape[1] > mask.shape[1]:
        raise ValueError(f"prefix must be (B, up to {mask.shape[1]}) int64, got {described(prefix)}")
    check_mask("mask", mask, "prefix's rows", prefix.new_empty(len(prefix), mask.shape[-1]))
    if prefix.numel() > 0 and not bool(((prefix >= 0) & (prefix < mask.shape[1])).all()):
        raise ValueError(f"prefix must hold slots from 0 to {mask.shape[1] - 1}")
    check_rules(mask, before, allowed, group)
    picks: Tensor = call_op(torch.ops.softrank_ext.allowed_picks, prefix, mask, before, allowed, group)
    return picks


def check_rules(mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None) -> None:
    """Raise ValueError unless the rules of `allowed_picks` fit mask (B, N): (B, N, N), (B, N, N) and (B, N)."""
    B, N = mask.shape
    for name, rule, shape, dtype in (
        ("before", before, (B, N, N), torch.bool),
        ("allowed", allowed, (B, N, N), torch.bool),
        ("group", group, (B, N), torch.int64),
    ):
        if rule is not None:
            check_tensor(name, rule, shape, dtype)


def _fake_allowed_picks(
    prefix: Tensor, mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None
) -> Tensor:
    torch._check(mask.ndim == 2, lambda: f"mask must be (B, N), got {tuple(mask.shape)}")
    torch._check(prefix.ndim == 2, lambda: f"prefix must be (B, P), got {tuple(prefix.shape)}")
    return mask.new_empty((mask.shape[0], prefix.shape[1] + 1, mask.shape[1]))


define(
    "allowed_picks",
    ("Tensor prefix", "Tensor mask", "Tensor? before", "Tensor? allowed", "Tensor? group"),
    "Tensor",
    allowed_picks_reference,
    _fake_allowed_picks,
)
