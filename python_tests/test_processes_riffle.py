"""Riffles: drawn as cards are cut and interleaved, undone bit by bit, and their posterior given both ends."""

import math
from itertools import combinations, permutations, product

import pytest
import torch
from testing import chi_square, counts_of

from softrank_ext import noise
from softrank_ext.permutations import compose, ranks_of
from softrank_ext.processes import Prediction, riffle

N = 4
ORDERS = list(permutations(range(N)))
DRAWS = 40_000


def riffle_law() -> dict[tuple[int, ...], float]:
    """One riffle of N cards, by hand: cut binomially, then all interleavings of the two packets are equally likely."""
    law = dict.fromkeys(ORDERS, 0.0)
    for cut in range(N + 1):
        for left in combinations(range(N), cut):
            deck, packets = [], [iter(range(cut)), iter(range(cut, N))]
            for place in range(N):
                deck.append(next(packets[0] if place in left else packets[1]))
            law[tuple(deck)] += 2.0**-N
    return law


def after(law: dict, riffles: int) -> dict[tuple[int, ...], float]:
    """The law after so many riffles: one after the other."""
    result = {order: float(order == tuple(range(N))) for order in ORDERS}
    for _ in range(riffles):
        step = dict.fromkeys(ORDERS, 0.0)
        for (before, p), (shuffled, q) in product(result.items(), law.items()):
            step[tuple(before[card] for card in shuffled)] += p * q
        result = step
    return result


def p_value(drawn: torch.Tensor, law: dict[tuple[int, ...], float]) -> float:
    """Of the chi-square test that the rows of `drawn` (draws, N) have this law."""
    return chi_square(counts_of(drawn), [law[order] for order in ORDERS])


def uniform(step: int, draws: int = DRAWS, count: int = N) -> torch.Tensor:
    return noise.uniform(1, torch.arange(draws), step, count, dtype=torch.float64)


def identity(draws: int = DRAWS) -> torch.Tensor:
    return torch.arange(N).repeat(draws, 1)


@pytest.mark.parametrize("riffles", (1, 2, 3))
def test_shuffles_have_the_law_of_riffles(riffles):
    drawn = riffle.shuffle(identity(), riffle.draw_labels(uniform(0), riffles))
    law = after(riffle_law(), riffles)
    assert p_value(drawn, law) > 0.001
    # Negative control: the inverse of a riffle is not a riffle.
    assert p_value(ranks_of(drawn), law) < 1e-6


def test_an_a_shuffle_after_a_b_shuffle_is_an_ab_shuffle():
    once = riffle.shuffle(identity(), riffle.draw_labels(uniform(1), 1))
    twice = riffle.shuffle(once, riffle.draw_labels(uniform(2), 2))
    assert p_value(twice, after(riffle_law(), 3)) > 0.001
    assert p_value(twice, after(riffle_law(), 2)) < 1e-6


@pytest.mark.parametrize("last", (1, 3, 5))
def test_low_bits_undo_the_last_riffles_and_high_bits_those_before(last):
    labels = riffle.draw_labels(uniform(3, draws=200, count=9), 6)
    whole = riffle.undo(labels, 6)
    later = riffle.undo(labels, last)
    earlier = riffle.undo((labels >> last).gather(1, later), 6 - last)
    assert torch.equal(whole, compose(later, earlier))
    assert not torch.equal(whole, compose(earlier, later))


def test_riffles_may_differ_by_row():
    labels = riffle.draw_labels(uniform(3, draws=6, count=9), 5)
    rows = [riffle.undo(labels[row : row + 1], row) for row in range(6)]
    assert torch.equal(riffle.undo(labels, torch.arange(6)), torch.cat(rows))
    assert torch.equal(rows[0], torch.arange(9)[None]), "no riffle, nothing to undo"


def test_labels_by_hand():
    order = torch.tensor([[3, 1, 0, 2, 4]])
    labels = torch.tensor([[1, 0, 2, 0, 1]])
    # Sorted by label: places 1, 3 | 0, 4 | 2. They held the list before: item 3 was first and is at place 1 now.
    assert riffle.undo(labels, 2).tolist() == [[1, 3, 0, 4, 2]]
    assert riffle.shuffle(order, labels).tolist() == [[0, 3, 4, 1, 2]]


class TestPosterior:
    order_clean = torch.tensor([2, 0, 3, 1])
    order_t = torch.tensor([2, 3, 0, 1])

    def law(self, t: int, s: int) -> dict[tuple[int, ...], float]:
        """Of the order after s riffles, by Bayes: both parts of the way enumerated."""
        first, second = after(riffle_law(), s), after(riffle_law(), t - s)
        clean, last = self.order_clean.tolist(), self.order_t.tolist()
        weights = {
            middle: first[tuple(clean.index(item) for item in middle)]
            * second[tuple(middle.index(item) for item in last)]
            for middle in ORDERS
        }
        return {middle: weight / sum(weights.values()) for middle, weight in weights.items()}

    @pytest.mark.parametrize(("t", "s"), [(3, 1), (3, 2), (2, 1)])
    def test_is_that_of_bayes(self, t, s):
        order_t, order_clean = (order.expand(DRAWS, N) for order in (self.order_t, self.order_clean))
        drawn = riffle.reverse_step(order_t, order_clean, t, s, uniform(4))
        law = self.law(t, s)
        assert sum(probability > 0 for probability in law.values()) > 1
        assert p_value(drawn, law) > 0.001
        fresh = riffle.shuffle(order_clean, riffle.draw_labels(uniform(5), s))
        assert p_value(fresh, law) < 1e-6, "riffles that do not know order_t have another law"

    def test_at_0_is_the_clean_order(self):
        drawn = riffle.reverse_step(self.order_t[None], self.order_clean[None], 3, 0, uniform(6, draws=1))
        assert torch.equal(drawn, self.order_clean[None])

    def test_a_prediction_that_cannot_be_is_riffled_afresh(self):
        """Reversed, four cards have four rising sequences: one riffle makes two at most."""
        order_clean = identity()
        order_t = order_clean.flip(1)
        drawn = riffle.reverse_step(order_t, order_clean, 2, 1, uniform(7))
        assert float((drawn == order_clean).all(1).double().mean()) < 0.2, "two riffles can reverse four cards"
        impossible = riffle.reverse_step(order_t, order_clean, 1, 0, uniform(7))
        assert torch.equal(impossible, order_clean)
        longer = torch.arange(6).repeat(500, 1)
        drawn = riffle.reverse_step(longer.flip(1), longer, 2, 1, uniform(8, 500, 6))
        rising = 1 + (ranks_of(drawn).diff(dim=1) < 0).sum(1)
        assert int(rising.max()) == 2 and len(drawn.unique(dim=0)) > 30


@pytest.mark.parametrize("is_first_fixed", (True, False))
def test_padding_and_a_fixed_place_stay(is_first_fixed):
    mask = torch.tensor([[True, False, True, True, True, False]]).expand(300, 6)
    order = torch.tensor([4, 0, 3, 2, 5, 1]).repeat(300, 1)
    labels = riffle.draw_labels(uniform(9, 300, 6), 3, mask, is_first_fixed=is_first_fixed)
    shuffled = riffle.shuffle(order, labels)
    back = compose(shuffled, riffle.undo(labels, 3))
    middle = riffle.reverse_step(shuffled, order, 3, 1, uniform(10, 300, 6), mask, is_first_fixed=is_first_fixed)
    assert torch.equal(back, order)
    for moved in (shuffled, middle, compose(shuffled, riffle.undo(labels, 1))):
        assert torch.equal(moved[:, 4:], order[:, 4:])
        assert bool((moved[:, 0] == 4).all()) == is_first_fixed
        assert len(moved.unique(dim=0)) > 4
        assert moved.sort(1).values.eq(torch.arange(6)).all()


def test_a_padded_row_is_drawn_as_the_row_alone():
    numbers = uniform(11, 50, 7)
    alone = riffle.shuffle(identity(50), riffle.draw_labels(numbers[:, :N], 2))
    order, mask = torch.arange(7).repeat(50, 1), torch.arange(7).lt(N).repeat(50, 1)
    padded = riffle.shuffle(order, riffle.draw_labels(numbers, 2, mask))
    assert torch.equal(padded[:, :N], alone)
    clean = torch.tensor([2, 0, 3, 1]).repeat(50, 1)
    alone = riffle.reverse_step(alone, clean, 3, 1, numbers[:, :N].contiguous())
    padded = riffle.reverse_step(padded, torch.cat((clean, order[:, N:]), 1), 3, 1, numbers, mask)
    assert torch.equal(padded[:, :N], alone)


def test_many_riffles_make_every_order_equally_likely():
    drawn = riffle.shuffle(identity(), riffle.draw_labels(uniform(12), riffle.MOST_RIFFLES))
    assert p_value(drawn, dict.fromkeys(ORDERS, 1 / math.factorial(N))) > 0.001


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: riffle.draw_labels(torch.rand(2, 3), 1),
            r"uniform must be a \(B, N\) tensor of float64, got \(2, 3\) float32",
        ),
        (lambda: riffle.draw_labels(uniform(0, 2), 53), "riffles must be an integer from 0 to 52, got 53"),
        (lambda: riffle.reverse_step(identity(2), identity(2), 2, 2, uniform(0, 2)), "0 <= s < t, got s = 2 and t = 2"),
        (lambda: riffle.reverse_step(identity(2), identity(2), 60, 2, uniform(0, 2)), "t must be an integer from 0"),
    ],
)
def test_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class TestRiffle:
    process = riffle.Riffle((0, 1, 3))

    def rows(self, **changes: object) -> noise.RowNoise:
        return noise.RowNoise(2, torch.arange(300), N, **changes)

    def test_times_are_visited_numbers_over_the_last(self):
        assert riffle.Riffle((0, 3, 5, 10)).times() == [1.0, 0.5, 0.3, 0.0]
        assert self.process.training_times(99) == self.process.times()
        assert self.process.sampling_steps == 2
        assert riffle.Riffle([0, 2]).visited == (0, 2)

    def test_prior_is_the_rows_noise(self):
        mask, first = torch.tensor([[True, False, True, True]]).expand(300, N), torch.full((300,), 3)
        drawn = noise.uniform(2, torch.arange(300), 0, N, stream=noise.PRIOR_STREAM)
        assert torch.equal(self.process.draw_prior(self.rows()), drawn)
        state = self.process.draw_prior(self.rows(mask=mask, first=first))
        assert torch.equal(state[:, [0, 2]], drawn[:, :2]) and bool((state[:, 3] == 0).all())

    def test_back_is_the_posterior_on_the_grid(self):
        order_t = torch.tensor([2, 3, 0, 1]).repeat(300, 1)
        order = torch.tensor([2, 0, 3, 1]).repeat(300, 1)
        z_clean = ranks_of(order) / 3
        state = Prediction(torch.zeros(300, N), order_t, order, z_clean)
        numbers = noise.uniform(2, torch.arange(300), 5, N, stream=noise.BRIDGE_STREAM, dtype=torch.float64)
        wanted = riffle.reverse_step(order_t, order, 3, 1, numbers)
        z_s = self.process.draw_back(state, 1.0, 1 / 3, self.rows(), 5)
        assert z_s.dtype == torch.float32 and torch.equal(z_s.argsort(1), wanted)
        assert len(wanted.unique(dim=0)) > 1
        assert torch.equal(self.process.draw_back(state, 1 / 3, 0.0, self.rows(), 5), z_clean)
        stepwise = riffle.Riffle((0, 1, 3), "previous")
        assert torch.equal(stepwise.draw_back(state, 1.0, 1 / 3, self.rows(), 5), z_clean)

    def test_noisy_orders_are_of_one_trajectory(self):
        order = torch.tensor([2, 0, 3, 1]).repeat(300, 1)
        numbers = noise.uniform(2, torch.arange(300), 2, N, stream=noise.TRAINING_STREAM, dtype=torch.float64)
        labels = riffle.draw_labels(numbers, 3)
        last = riffle.shuffle(order, labels)
        first = compose(last, riffle.undo(labels, 2))  # two of three riffles undone
        for t, wanted, before in ((1.0, last, first), (1 / 3, first, order)):
            times = torch.full((300,), t)
            assert torch.equal(self.process.draw_noisy(order, times, self.rows(), 9).order_t, wanted)
            assert torch.equal(self.process.draw_noisy(order, times, self.rows(), 9).target, order)
            noisy = riffle.Riffle((0, 1, 3), "previous").draw_noisy(order, times, self.rows(), 9)
            assert torch.equal(noisy.order_t, wanted) and torch.equal(noisy.target, before)

    @pytest.mark.parametrize(
        ("visited", "message"),
        [
            (None, "visited must be ascending numbers of riffles from 0 to 52"),
            ((1, 3), r"as \(0, 3, 5, 9\), got \(1, 3\)"),
            ((0, 3, 3), r"got \(0, 3, 3\)"),
            ((0, 2.5), r"got \(0, 2.5\)"),
            ((0, True), r"got \(0, True\)"),
            ((0, 53), r"got \(0, 53\)"),
            ((0,), r"got \(0,\)"),
        ],
    )
    def test_visited_numbers_that_are_wrong(self, visited, message):
        with pytest.raises(ValueError, match=message):
            riffle.Riffle(visited)

    def test_target_that_is_wrong(self):
        with pytest.raises(ValueError, match="target must be one of 'clean', 'previous', got 'next'"):
            riffle.Riffle((0, 2), "next")
