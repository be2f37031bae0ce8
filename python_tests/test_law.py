"""Steps keep the law: with the exact posterior given the carried soft ranks, samples follow the law at any steps.

The denoisers are those of bench/bayes.py; `sample` runs them as it runs a network.
"""

import importlib
import json
import math
from pathlib import Path

import pytest
import torch
from scipy import integrate, stats
from testing import all_orders, chi_square, counts_of, index_of
from torch import Tensor

from softrank_ext import Bridge, SoftRankConfig, SoftRankModel, decode_chamber, reflect, sample
from softrank_ext.permutations import ranks_of
from softrank_ext.processes.bridge import lift_to_grid

BENCH = Path(__file__).parents[1] / "bench"
pytestmark = [
    pytest.mark.skipif(not BENCH.exists(), reason="needs the bench folder"),
    pytest.mark.usefixtures("one_thread"),
]
LEVEL = 1e-4


@pytest.fixture
def bayes(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("bayes")


@pytest.fixture
def law(bayes):
    return importlib.import_module("law")


def drawn_counts(denoiser, N: int, steps: int, draws: int) -> Tensor:
    samples = sample(denoiser, torch.zeros(1, N, 1), num_samples=draws, steps=steps, seed=0)
    return counts_of(samples.order[0])


class TestSteps:
    @pytest.mark.parametrize(
        ("N", "off"), [(4, 0.015), pytest.param(5, 0.02, marks=pytest.mark.slow)], ids=("N 4", "N 5")
    )
    def test_keep_the_law_where_soft_ranks_are_read(self, bayes, N, off):
        """Twenty steps. A law whose total variation to the right one is `off` would be refused 99 times out of 100.

        Of all laws at that distance, the noncentrality of the chi-square is least, `4 draws off^2`, where the
        differences are proportional to the chances.
        """
        draws, chances, freedom = 100_000, bayes.two_camps(N), math.factorial(N) - 1
        assert stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, 4 * draws * off**2) > 0.99
        exact = bayes.ExactDenoiser(chances, Bridge(), "soft-ranks")
        assert chi_square(drawn_counts(exact, N, 20, draws), chances) > LEVEL
        # Negative control: as exact, but given the order alone.
        other = bayes.ExactDenoiser(chances, Bridge(), "order")
        counts = drawn_counts(other, N, 20, draws)
        assert chi_square(counts, chances) < 1e-9
        assert chi_square(drawn_counts(other, N, 1, draws), chances) > LEVEL, "one step is right in any case"

    @pytest.mark.parametrize("carry", ("exact", "reflected"))
    def test_do_not_where_the_fold_is_read(self, bayes, carry):
        """Neither by the value that a sample carries nor, as in Algorithm 1, by its fold."""
        chances = bayes.two_camps(4)
        folded = bayes.ExactDenoiser(chances, Bridge(carry=carry), "fold")
        assert chi_square(drawn_counts(folded, 4, 20, 100_000), chances) < 1e-9

    def test_need_the_value_that_is_carried(self, bayes):
        """Negative control of the loop: with the states of a folded carry the unfolded posterior is wrong."""
        chances = bayes.two_camps(4)
        exact = bayes.ExactDenoiser(chances, Bridge(carry="reflected"), "soft-ranks")
        assert chi_square(drawn_counts(exact, 4, 20, 50_000), chances) < 1e-9


class TestExactDenoiser:
    @pytest.mark.parametrize("t", (0.1, 0.7))
    def test_densities(self, bayes, t):
        """Against integrals over the prior's uniform number, and the fold's against the sum over five images."""
        z, deviation = torch.tensor([-0.4, 0.2, 0.9, 1.3], dtype=torch.float64), 0.5 * math.sqrt(t * (1 - t))

        def integral(value: float) -> float:
            normal = lambda u: stats.norm.pdf(value, (1 - t) * 0.25 + t * u, deviation)  # noqa: E731
            return integrate.quad(normal, 0, 1)[0]

        found = bayes.density(z, torch.full_like(z, 0.25), t, 0.5)
        assert found.tolist() == pytest.approx([integral(value) for value in z.tolist()], abs=1e-9)
        folded = bayes.folded_density(z[1:2], torch.full((1,), 0.25, dtype=torch.float64), t, 0.5)
        images = (0.2, -0.2, 1.8, 2.2, -1.8)
        assert folded.tolist() == pytest.approx([sum(map(integral, images))], abs=1e-9)

    def test_at_time_1_nothing_is_known(self, bayes):
        chances, z_t = bayes.two_camps(4), torch.rand(3, 4, dtype=torch.float64)
        for reads in ("soft-ranks", "fold", "order"):
            posterior = bayes.ExactDenoiser(chances, Bridge(), reads).posterior(z_t, z_t.argsort(1), 1.0)
            torch.testing.assert_close(posterior, chances.expand(3, -1), atol=1e-9, rtol=0)

    @pytest.mark.parametrize("reads", ("soft-ranks", "fold", "order"))
    def test_posteriors_are_calibrated(self, bayes, reads):
        """Given the noisy order, and how likely the best clean order is said to be, orders come as often as said."""
        torch.manual_seed(0)
        draws, t, chances = 100_000, 0.3, bayes.two_camps(4)
        clean = torch.multinomial(chances, draws, replacement=True)
        z_clean = lift_to_grid(ranks_of(all_orders(4)[clean]), dtype=torch.float64)
        z_prior, normal = torch.rand(draws, 4, dtype=torch.float64), torch.randn(draws, 4, dtype=torch.float64)
        z_t = Bridge().noised_unfolded(z_clean, z_prior, t, normal)
        order_t = decode_chamber(reflect(z_t))[0]
        posterior = bayes.ExactDenoiser(chances, Bridge(), reads).posterior(z_t, order_t, t)
        group = 4 * index_of(order_t) + (posterior.max(1).values * 4).long().clamp(max=3)  # 96 of them
        said, came = torch.zeros(2, 96, 24, dtype=torch.float64).unbind()
        said.index_add_(0, group, posterior)
        came.view(-1).index_add_(0, group * 24 + clean, torch.ones(draws, dtype=torch.float64))
        assert chi_square(came, said) > LEVEL
        wrong = torch.zeros_like(said).index_add_(0, group, posterior.flip(1))
        assert chi_square(came, wrong) < 1e-9

    def test_noisy_orders_against_draws(self, bayes):
        torch.manual_seed(1)
        z_clean = torch.tensor([[0, 1 / 3, 2 / 3, 1]], dtype=torch.float64).expand(100_000, 4)
        z_t = Bridge(0.8).noised(z_clean, torch.rand_like(z_clean), 0.4, torch.randn_like(z_clean))
        counts = counts_of(decode_chamber(z_t)[0])
        assert chi_square(counts, bayes.chances_of_noisy_orders(4, 0.4, 0.8)) > LEVEL
        assert chi_square(counts, bayes.chances_of_noisy_orders(4, 0.4, 0.7)) < 1e-9


def test_distance_of_counts(law):
    found = law.distance(torch.tensor([60, 30, 10]), torch.tensor([2.0, 2.0, 4.0]))
    assert found.tv == pytest.approx((0.35 + 0.05 + 0.4) / 2 - 0.0)
    # Of 100 draws, 90 lie in cells that are too full: a share's error.
    assert found.error == pytest.approx(math.sqrt(0.9 * 0.1 / 100))
    assert found.perfect == pytest.approx(
        0.5 * sum(math.sqrt(2 / math.pi * p * (1 - p) / 100) for p in (0.25, 0.25, 0.5)), rel=0.1
    )


def test_benchmark_runs(law, ballots, capsys, monkeypatch):
    """Rows of each kind and number of steps; a model's draws are counted against the file's ballots."""
    folders = []
    for reads in ("order", "soft-ranks"):
        embedder = {"kind": "learned", "num_items": 4}
        config = SoftRankConfig(d_model=16, feed_forward=16, heads=2, reads=reads, embedder=embedder)
        SoftRankModel(config).save_pretrained(ballots / reads)
        folders.append(str(ballots / reads))
    options = ["--steps", "1", "2", "--draws", "200"]
    for part in (["exact", "--items", "3"], ["trained", "--ballots", "ballots.soc", "--models", *folders]):
        monkeypatch.setattr("sys.argv", ["law.py", "--threads", "1", *part, *options])
        assert law.main() == 0
        *shown, line = capsys.readouterr().out.strip().splitlines()
        rows = json.loads(line)["rows"]
        assert len(rows) == (8 if part[0] == "exact" else 4) and len(shown) == len(rows) + 2
        assert {row["steps"] for row in rows} == {1, 2} and all(0 < row["tv"] < 1 for row in rows)
        assert {row["draws"] for row in rows} == {200}
    # Six items: first places, which a partial ballot knows as well.
    (ballots / "many.csv").write_text("a,b,c,d,e,f\na,c\nb\n")
    rows = law.trained_rows(ballots / "many.csv", [small_model(ballots / "many")], [1], 400)
    first, both = rows
    assert (first["what"], both["what"]) == ("first places", "first two places")
    assert both["tv"] >= first["tv"]


def small_model(folder: Path) -> Path:
    embedder = {"kind": "learned", "num_items": 6}
    SoftRankModel(SoftRankConfig(d_model=16, feed_forward=16, heads=2, embedder=embedder)).save_pretrained(folder)
    return folder
