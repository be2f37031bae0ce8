"""IncrementalDecoder: step by step, by blocks and after cutting back, it is the teacher-forced model."""

import pytest
import torch

from softrank_ext import SoftRankConfig, SoftRankModel, ops
from softrank_ext.choices import Engine
from softrank_ext.sampling.incremental import IncrementalDecoder

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def make_model(head: str, dtype: torch.dtype, norm_first: bool = True) -> SoftRankModel:
    torch.manual_seed(3)
    config = SoftRankConfig(
        d_model=24, feed_forward=40, heads=3, encoder_layers=1, decoder_layers=2, head=head, norm_first=norm_first,
        max_items=9 if head == "linear" else None, embedder={"kind": "linear", "features": 2},
    )  # fmt: skip
    model = SoftRankModel(config).to(dtype).eval()
    with torch.no_grad():
        model.head.weight.mul_(4.0)
    return model


def make_case(head: str, dtype: torch.dtype, is_masked: bool, norm_first: bool = True):
    model = make_model(head, dtype, norm_first)
    generator = torch.Generator().manual_seed(5)
    items = torch.randn(4, 7, 2, generator=generator, dtype=dtype)
    mask = torch.ones(4, 7, dtype=torch.bool)
    if is_masked:
        mask[1, [0, 4]] = False
        mask[2, 1:] = False
        items[~mask] = torch.nan
    by_draw = torch.rand(4, 7, generator=generator)
    order = torch.where(mask, by_draw, 2.0).argsort(1)
    with torch.no_grad():
        embedded = model.embed(items, mask)
        scores = model.scores(embedded, 0.4, order, mask)
    return model, items, mask, order, scores


def assert_scores_match(decoder, place, expected, order, mask):
    """Scores of the slots that remain after `place` picks of the order are those of the teacher-forced pass."""
    ranks = torch.empty_like(order).scatter_(1, order, torch.arange(7).expand(4, 7))
    remaining = mask & (ranks >= place)
    torch.testing.assert_close(decoder.remaining, remaining)
    if place < 7:
        tolerance = TOLERANCE[expected.dtype]
        torch.testing.assert_close(decoder.scores[remaining], expected[:, place][remaining], atol=tolerance, rtol=0)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("head", ["pointer", "linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm_first", [True, False])
def test_steps_follow_the_teacher_forced_pass(head, dtype, is_masked, norm_first):
    model, items, mask, order, expected = make_case(head, dtype, is_masked, norm_first)
    decoder = IncrementalDecoder(model, items, 0.4, mask)
    for place in range(7):
        assert_scores_match(decoder, place, expected, order, mask)
        decoder.step(order[:, place])
    assert not decoder.remaining.any()
    assert decoder.lengths.tolist() == mask.sum(1).tolist()


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("blocks", [(7,), (3, 4), (1, 5, 1), (2, 2, 2)])
def test_blocks_are_steps(blocks, is_masked):
    model, items, mask, order, expected = make_case("pointer", torch.float64, is_masked)
    decoder = IncrementalDecoder(model, items, 0.4, mask)
    place = 0
    for size in blocks:
        decoder.prefill(order[:, place : place + size])
        place += size
        assert_scores_match(decoder, place, expected, order, mask)


def test_truncate_goes_back_and_on_along_another_order():
    model, items, mask, order, _ = make_case("pointer", torch.float64, False)
    other = order.flip(1)
    kept = torch.tensor([0, 2, 5, 7])
    mixed = order.clone()
    for row, length in enumerate(kept.tolist()):
        rest = [slot for slot in other[row].tolist() if slot not in order[row, :length].tolist()]
        mixed[row, length:] = torch.tensor(rest, dtype=torch.int64)
    with torch.no_grad():
        expected = model.scores(model.embed(items, mask), 0.4, mixed, mask)
    decoder = IncrementalDecoder(model, items, 0.4, mask)
    decoder.prefill(order)
    decoder.truncate(kept)
    assert decoder.lengths.tolist() == kept.tolist()
    for place in range(7):
        active = decoder.lengths == place
        scores = decoder.scores
        for row in active.nonzero()[:, 0].tolist():
            remaining = decoder.remaining[row]
            torch.testing.assert_close(scores[row, remaining], expected[row, place, remaining], atol=1e-10, rtol=0)
        # Rows that are further ahead take their next pick of the mixed order too; all end up with it.
        choice = mixed.gather(1, decoder.lengths.clamp(max=6)[:, None])[:, 0]
        decoder.step(choice)
    assert not decoder.remaining.any()


def test_the_whole_order_by_steps_is_decode():
    model, items, mask, _, _ = make_case("pointer", torch.float64, True)
    greedy = model.decode(items, 0.4, mask).order
    decoder = IncrementalDecoder(model, items, 0.4, mask)
    picks = []
    for _ in range(7):
        choice = decoder.scores.masked_fill(~decoder.remaining, -torch.inf).argmax(1)
        picks.append(choice)
        decoder.step(choice)
    for row, count in enumerate(mask.sum(1).tolist()):
        assert torch.stack(picks, 1)[row, :count].tolist() == greedy[row, :count].tolist()


@pytest.mark.parametrize("head", ["pointer", "linear"])
def test_selected_rows_go_on_apart(head):
    """Rows are doubled after two picks and follow two orders; then some are dropped and the rest goes on."""
    model, items, mask, order, _ = make_case(head, torch.float64, True)
    others = order.clone()
    others[:, 2:4] = order[:, 2:4].flip(1)
    others = torch.where(mask.sum(1, keepdim=True) >= 4, others, order)  # where both picks are real
    decoder = IncrementalDecoder(model, items, 0.4, mask)
    decoder.prefill(order[:, :2])
    before = decoder.scores
    rows = torch.tensor([3, 0, 0, 1, 3, 2])
    torch.testing.assert_close(decoder.select(rows), before[rows], atol=0, rtol=0)
    followed = torch.stack((order[3], order[0], others[0], others[1], others[3], order[2]))
    decoder.prefill(followed[:, 2:4])
    kept = torch.tensor([5, 2, 0, 3, 4])
    decoder.select(kept)
    rows, followed = rows[kept], followed[kept]
    with torch.no_grad():
        expected = model.scores(model.embed(items[rows], mask[rows]), 0.4, followed, mask[rows])
    for place in range(4, 7):
        remaining = decoder.remaining
        is_open = mask[rows].sum(1) > place
        torch.testing.assert_close(
            decoder.scores[is_open][remaining[is_open]],
            expected[is_open, place][remaining[is_open]],
            atol=1e-10,
            rtol=0,
        )
        decoder.step(followed[:, place])
    assert not decoder.remaining.any()
    for wrong, message in (
        (torch.tensor([5]), "rows must be from 0 to 4, got 5 to 5"),
        (torch.zeros(1), r"rows must be \(R,\) int64, got \(1,\) torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder.select(wrong)


def test_bad_picks_raise_and_change_nothing():
    model, items, mask, order, _ = make_case("pointer", torch.float64, True)
    decoder = IncrementalDecoder(model, items, 0.4, mask)
    decoder.step(order[:, 0])
    before = decoder.scores
    with pytest.raises(ValueError, match=rf"choices must be slots that remain, got {int(order[0, 0])} in row 0"):
        decoder.step(order[:, 0])
    with pytest.raises(ValueError, match="choices must be slots that remain, got 9 in row 0"):
        decoder.step(torch.tensor([9, 1, 0, 2]))
    with pytest.raises(ValueError, match=r"choices must be \(4, up to 7\) int64, got \(3, 2\)"):
        decoder.prefill(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="lengths must be from 0 to the picks made, row 0 has 1, got 2"):
        decoder.truncate(2)
    torch.testing.assert_close(decoder.scores, before, atol=0, rtol=0)
    assert decoder.lengths.tolist() == [1, 1, 1, 1]


def test_a_head_without_a_decoder_is_refused():
    config = SoftRankConfig(
        d_model=24, heads=3, decoder_layers=0, head="gpl", embedder={"kind": "linear", "features": 2}
    )
    with pytest.raises(ValueError, match="a gpl head has no decoder: use pointer or linear"):
        IncrementalDecoder(SoftRankModel(config), torch.zeros(1, 3, 2), 0.5)


def test_soft_ranks_come_with_the_embedded_items(make_model):
    model, items, z_t = make_model("pointer", reads="soft-ranks"), torch.randn(2, 4, 2), torch.randn(2, 4)
    with pytest.raises(ValueError, match="items must be embedded and given their soft ranks"):
        IncrementalDecoder(model, items, 0.5)
    seen, slots = model.at_soft_ranks(model.embed(items), z_t), torch.tensor([[2, 0, 3, 1], [1, 2, 0, 3]])
    decoder = IncrementalDecoder(model, seen, 0.5, is_embedded=True)
    decoder.prefill(slots[:, :2])
    wanted = model.scores(seen, 0.5, slots)[:, 2]
    torch.testing.assert_close(decoder.scores[decoder.remaining], wanted[decoder.remaining], atol=1e-4, rtol=0)


def test_one_item():
    model = make_model("pointer", torch.float64)
    decoder = IncrementalDecoder(model, torch.zeros(2, 1, 2, dtype=torch.float64), 1.0)
    assert decoder.remaining.tolist() == [[True], [True]]
    decoder.step(torch.tensor([0, 0]))
    assert decoder.remaining.tolist() == [[False], [False]]


def decoder_arguments(dtype: torch.dtype = torch.float64) -> tuple[ops.Transformer, ops.DecoderInputs]:
    model, items, mask, _, _ = make_case("pointer", dtype, True)
    inputs = model.decoder_inputs(items.masked_fill(~mask[..., None], 0.0), 0.4, mask)
    weights = [weight.detach() for weight in model.packed_weights().decoder.weights]
    return ops.Transformer(weights, None, model.config.heads, True), inputs


def test_opcheck_of_the_incremental_ops():
    decoder, inputs = decoder_arguments()
    memory, mask = inputs.memory, inputs.mask
    cache = ops.open_decoder(decoder, memory, mask)
    lengths = torch.tensor([0, 1, 0, 2])
    steps = (inputs.tokens + inputs.places)[:, :3]
    torch.library.opcheck(torch.ops.softrank_ext.open_decoder, (*decoder, memory, mask))
    torch.library.opcheck(torch.ops.softrank_ext.advance_decoder, (*decoder, cache, steps, lengths, mask))
    torch.library.opcheck(
        torch.ops.softrank_ext.decode_scores, (torch.randn(2, 4, 4), torch.ones(2, 4) > 0, torch.rand(2, 4))
    )


def test_errors_of_the_incremental_ops():
    decoder, inputs = decoder_arguments()
    memory, mask = inputs.memory, inputs.mask
    cache = ops.open_decoder(decoder, memory, mask)
    options = {
        "cache": cache, "inputs": memory[:, :2], "mask": mask, "lengths": torch.zeros(4, dtype=torch.int64),
    }  # fmt: skip
    assert ops.advance_decoder(decoder, **options).shape == (4, 2, 24)
    for change, message in (
        ({"lengths": torch.zeros(3, dtype=torch.int64)}, r"lengths must be a \(4,\) tensor of int64, got \(3,\) int64"),
        ({"lengths": torch.tensor([0, 6, 0, 0])}, "lengths must leave room for 2 positions of 7, got 6 in row 1"),
        ({"mask": mask[:3]}, r"mask must be a \(4, N\) tensor of bool, got \(3, 7\) bool"),
        ({"cache": cache[:, :-1]}, r"cache must be the \(4, \d+\) torch.float64 of open_decoder, got"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.advance_decoder(decoder, **{**options, **change})
    with pytest.raises(ValueError, match="mask must be a bool tensor of the shape of memory's slots"):
        ops.open_decoder(decoder, memory, mask[:3])
    with pytest.raises(ValueError, match=r"scores must be \(B, N, N\), place by slot, got \(2, 4, 3\) float32"):
        ops.decode_scores(torch.zeros(2, 4, 3), torch.ones(2, 3) > 0)
    with pytest.raises(RuntimeError, match="scores must not be NaN"):
        ops.decode_scores(torch.full((2, 3, 3), torch.nan), torch.ones(2, 3) > 0)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("head", ["pointer", "linear"])
def test_plain_torch_has_the_same_scores(head, is_masked):
    """The engine is a choice of speed: prefill, truncate and select give the kernel's scores to rounding."""
    model, items, mask, order, _ = make_case(head, torch.float64, is_masked)
    decoders = [
        IncrementalDecoder(model, items, 0.4, mask, engine=engine)
        for engine in (Engine(), Engine(compiled=False), Engine(compiled=False, cache=False))
    ]
    for change in (
        lambda decoder: decoder.scores,
        lambda decoder: decoder.prefill(order[:, :3]),
        lambda decoder: decoder.truncate(1),
        lambda decoder: decoder.select(torch.tensor([3, 0, 0, 1, 2])),
    ):
        kernel, *plain = (change(decoder) for decoder in decoders)
        remaining = decoders[0].remaining
        for scores in plain:
            torch.testing.assert_close(scores[remaining], kernel[remaining], atol=1e-12, rtol=0)


def test_plain_torch_calls_no_compiled_decoder(monkeypatch):
    model, items, mask, order, _ = make_case("pointer", torch.float64, True)
    monkeypatch.setattr(ops, "open_decoder", None)
    monkeypatch.setattr(ops, "advance_decoder", None)
    IncrementalDecoder(model, items, 0.4, mask, engine=Engine(compiled=False)).step(order[:, 0])
    with pytest.raises(TypeError):
        IncrementalDecoder(model, items, 0.4, mask)
