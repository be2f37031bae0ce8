"""The model: normalisation, padding, heads, time, training mode, input errors, a reverse loop by hand."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from testing import all_orders, orders_of_mask
from testing.tiny_models import numbers_of, small_model
from testing.torch_twins import torch_encoder_layer
from torch import nn

from softrank_ext import (
    Beam,
    Bridge,
    Draw,
    Engine,
    Greedy,
    Riffle,
    decode_chamber,
    log_likelihood,
    ops,
    reflect,
    sample,
)
from softrank_ext.laws import GeneralizedPlackettLuce, PlackettLuce
from softrank_ext.model import (
    DECODER_HEADS,
    HEADS,
    DecoderLayer,
    EncoderLayer,
    SoftRankConfig,
    SoftRankModel,
    sine_cosine,
)
from softrank_ext.ops.layers import weight_shapes
from softrank_ext.permutations import arrange, check_order, compose, ranks_of
from softrank_ext.processes import bridge

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = SoftRankConfig(d_model=16, feed_forward=24, heads=2, encoder_layers=1, decoder_layers=1)


@pytest.mark.parametrize(
    "mask",
    ([1], [1, 1], [1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 1, 0], [0, 0, 1], [1, 1, 1, 0, 0]),
    ids=str,
)
@pytest.mark.parametrize("head", HEADS)
def test_probabilities_of_all_orders_sum_to_1(make_model, head, mask):
    torch.manual_seed(1)
    model = make_model(head, torch.float64)
    mask = torch.tensor(mask, dtype=torch.bool)
    orders = orders_of_mask(mask)
    items = torch.randn(1, len(mask), 2).expand(len(orders), -1, -1)
    with torch.no_grad():
        per_place, total = model.log_prob(items, 0.6, orders, mask.expand(orders.shape))
    torch.testing.assert_close(total.exp().sum(), torch.tensor(1.0, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(per_place.sum(1), total)
    assert len(orders) < 24 or float(total.max() - total.min()) > 1  # far from uniform, else this shows little


@pytest.mark.parametrize("dtype, tolerance", ((torch.float32, 1e-5), (torch.float64, 1e-12)), ids=str)
@pytest.mark.parametrize("norm_first", (True, False))
@pytest.mark.parametrize("head", HEADS)
def test_padded_batch_equals_rows_alone(make_model, head, norm_first, dtype, tolerance):
    torch.manual_seed(2)
    model = make_model(head, dtype, norm_first=norm_first)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 1, 0], [1, 1, 0, 0, 0]], dtype=torch.bool)
    items, t = torch.randn(4, 5, 2, dtype=dtype), torch.tensor([0.2, 0.4, 0.6, 1.0])
    orders = torch.stack([orders_of_mask(row)[-1] for row in mask])
    for filling in (0.0, 1e9, torch.nan):
        items[~mask] = filling
        with torch.no_grad():
            together = model.log_prob(items, t, orders, mask)
            for row in range(4):
                real = mask[row].nonzero()[:, 0]
                order = ranks_of(torch.cat((real, (~mask[row]).nonzero()[:, 0])))[orders[row, : len(real)]]
                alone = model.log_prob(items[row : row + 1, real], float(t[row]), order[None])
                torch.testing.assert_close(
                    together.per_place[row, : len(real)], alone.per_place[0], atol=tolerance, rtol=tolerance
                )
        assert together.per_place[torch.arange(5) >= mask.sum(1, keepdim=True)].eq(0).all()


@pytest.mark.parametrize("head", HEADS)
def test_gradients_are_finite_with_padding(make_model, head):
    model = make_model(head)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    items = torch.randn(3, 4, 2).masked_fill(~mask[..., None], torch.nan)
    orders = torch.tensor([[2, 0, 3, 1], [3, 0, 1, 2], [0, 1, 2, 3]])
    log_prob = model.log_prob(items, 0.4, orders, mask)
    log_prob.total.sum().backward()
    assert log_prob.total[2] == 0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_log_prob_gradient_is_right(make_model):
    """The gradient along the head's weights equals a difference quotient in float64."""
    model = make_model("pointer", torch.float64)
    items, orders = torch.randn(2, 5, 2, dtype=torch.float64), torch.tensor([[1, 3, 2, 4, 0], [4, 0, 1, 3, 2]])
    weight = model.decoder_layers[0].self_qkv.weight
    direction = torch.randn_like(weight)
    model.log_prob(items, 0.4, orders).total.sum().backward()
    values = []
    with torch.no_grad():
        for shift in (1e-6, -2e-6):
            weight += shift * direction
            values.append(model.log_prob(items, 0.4, orders).total.sum())
    quotient = (values[0] - values[1]) / 2e-6
    torch.testing.assert_close((weight.grad * direction).sum(), quotient, atol=0, rtol=1e-6)


def test_scores_depend_on_the_prefix_only(make_model):
    model, items = make_model("pointer", torch.float64), torch.randn(1, 6, 2, dtype=torch.float64)
    embedded = model.embed(items)
    one, other = (model.scores(embedded, 0.4, torch.tensor([o])) for o in ([1, 3, 2, 4, 0, 5], [1, 3, 2, 5, 4, 0]))
    torch.testing.assert_close(one[:, :4], other[:, :4], atol=1e-12, rtol=0)
    assert (one[:, 4] - other[:, 4]).abs().max() > 1e-3


@pytest.mark.parametrize("norm_first", (True, False))
def test_gpl_scores_agree_with_torch_layers(make_model, norm_first):
    """N zero tokens follow the items; everybody sees items, only zero tokens see zero tokens, and only earlier ones."""
    N, t = 4, 0.6
    model = make_model("gpl", torch.float64, norm_first=norm_first)
    items = torch.randn(2, N, 2, dtype=torch.float64)
    is_hidden = torch.zeros(2 * N, 2 * N, dtype=torch.bool)
    for query in range(2 * N):
        for key in range(N, 2 * N):
            is_hidden[query, key] = not (query >= N and key < query)
    with torch.no_grad():
        tokens = torch.cat((model.embedder(items), torch.zeros(2, N, 16, dtype=torch.float64)), 1)
        x = tokens + sine_cosine(2 * N, 16, items) + model.time_embedder(torch.tensor([t * 5], dtype=torch.float64))
        for layer in model.encoder_layers:
            x = torch_encoder_layer(layer, norm_first).train()(x, src_mask=is_hidden)
        outputs = model.encoder_norm(x)
        wanted = torch.einsum("bid,bkd->bik", outputs[:, N:], outputs[:, :N])
        got = model.scores(model.embed(items), t, torch.tensor([[1, 3, 2, 0]] * 2))
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(model.encode(model.embed(items), t), outputs[:, :N], atol=1e-10, rtol=1e-10)


def test_pl_log_prob(make_model):
    items, order = torch.randn(2, 5, 2), torch.tensor([[1, 3, 2, 4, 0], [4, 0, 1, 3, 2]])
    model = make_model("pl")
    with torch.no_grad():
        slot_scores = model.head(model.encode(model.embed(items), 0.4))[..., 0].double()
        total = model.log_prob(items, 0.4, order).total
    for row in range(2):
        wanted = sum(
            float(slot_scores[row, order[row, place]] - slot_scores[row, order[row, place:]].logsumexp(0))
            for place in range(5)
        )
        assert math.isclose(float(total[row]), wanted, abs_tol=1e-5)


def test_items_see_their_slots(make_model):
    """Without slot positions the encoder would be blind to the noisy order: swapping two items must move the others."""
    model, items = make_model("pointer"), torch.randn(1, 4, 2)
    memory = model.encode(model.embed(items), 0.4)
    swapped = model.encode(model.embed(items[:, [1, 0, 2, 3]]), 0.4)
    assert (memory[:, 2:] - swapped[:, 2:]).abs().max() > 1e-3


@pytest.mark.parametrize(("kind", "make"), [("encoder", EncoderLayer), ("decoder", DecoderLayer)])
def test_parameters_of_a_layer_are_the_ops_weights(kind, make):
    layer = make(16, 24, 2, 0.1, True)
    names = [name.replace(".", "_") for name, _ in layer.named_parameters()]
    assert tuple(names) == ops.layer_weight_names(kind)
    assert [tuple(weight.shape) for weight in layer.parameters()] == weight_shapes(kind, 16, 24)


@pytest.mark.parametrize("time, factor", (("grid", 7), ("continuous", 1000)))
def test_time_index(time, factor):
    config = replace(TINY, time=time, time_steps=7, embedder={"kind": "linear", "features": 2})
    model, seen = SoftRankModel(config), []
    model.time_embedder.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model.encode(torch.randn(2, 3, 16), torch.tensor([2 / 7, 1.0]))
    torch.testing.assert_close(seen[0], torch.tensor([2 / 7 * factor, factor]))


def test_a_time_first_seen_in_inference_mode_serves_training(make_model):
    model, items, order = make_model("pointer"), torch.randn(2, 4, 2), torch.tensor([[1, 3, 2, 0], [3, 0, 1, 2]])
    with torch.inference_mode():
        model.log_prob(items, 0.123, order)
    model.log_prob(items, 0.123, order).total.sum().backward()
    assert model.time_embedder.hidden.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("head", HEADS)
def test_times_per_row(make_model, head):
    model, items, order = make_model(head), torch.randn(2, 4, 2), torch.tensor([[1, 3, 2, 0], [3, 0, 1, 2]])
    model.requires_grad_(False)
    both = model.log_prob(items, torch.tensor([0.2, 1.0]), order).total
    torch.testing.assert_close(both[0], model.log_prob(items, 0.2, order).total[0])
    torch.testing.assert_close(both[1], model.log_prob(items, 1.0, order).total[1])
    assert abs(float(both[0] - model.log_prob(items, 1.0, order).total[0])) > 1e-3


@pytest.mark.parametrize("head", HEADS)
def test_dropout_in_training_only(make_model, head):
    model, items, order = make_model(head), torch.randn(2, 4, 2), torch.tensor([[1, 3, 2, 0], [3, 0, 1, 2]])
    one, other = model.log_prob(items, 0.2, order).total, model.log_prob(items, 0.2, order).total
    assert torch.equal(one, other)
    model.train()
    one, other = model.log_prob(items, 0.2, order).total, model.log_prob(items, 0.2, order).total
    assert (one - other).abs().min() > 1e-4


def test_reverse_loop_by_hand(make_model):
    """The whole sampler from `bridge` and the model, as the README shows it."""
    torch.manual_seed(3)
    model, items = make_model("pointer"), torch.randn(8, 6, 2)
    z_t = torch.rand(8, 6)
    for t, s in pairwise(bridge.time_grid(5)):
        order_t, _ = decode_chamber(reflect(z_t))
        slots = model.decode(arrange(items, order_t), t, uniform=torch.rand(8, 6)).order
        order = compose(order_t, slots)
        z_t = Bridge().step_back(z_t, bridge.lift_to_grid(ranks_of(order)), t, s, torch.randn(8, 6))
    check_order(order)
    assert torch.equal(decode_chamber(z_t)[0], order)


@pytest.mark.parametrize(
    "change, message",
    (
        ({"items": [[0.0]]}, r"items must be \(B, N, ...\), a dense tensor, got list"),
        ({"items": torch.zeros(4, 2)}, r"items must be \(B, N, ...\) with 1 dimensions per item, got \(4, 2\)"),
        (
            {"items": torch.zeros(2, 4, 16), "is_embedded": True, "mask": torch.ones(2, 3).bool()},
            "mask must be a .* bool",
        ),
        ({"items": torch.zeros(2, 4, 2), "is_embedded": True}, r"items must be \(B, N, 16\).* got \(2, 4, 2\)"),
        ({"mask": torch.ones(2, 4)}, r"mask must be a \(2, 4\) tensor of bool, got \(2, 4\) float32; True = real item"),
        ({"t": 1.5}, r"t must be in \[0, 1\], got 1.5"),
        ({"t": torch.zeros(3)}, r"t must be a number or \(2,\), got 3 numbers"),
        ({"uniform": torch.zeros(2, 3)}, r"uniform must be a \(2, 4\) tensor of .*float32.*, got \(2, 3\) float32"),
        ({"forced_order": torch.zeros(2, 4)}, r"forced_order must be a \(2, 4\) tensor of int64, got"),
        ({"forced_order": torch.zeros(2, 4).long()}, "forced_order must hold each of 0 to 3 once per row"),
        ({"decode": "sampel"}, r"decode must be .*sample.*, got .sampel."),
        ({"decode": Draw()}, "Draw.* needs uniform"),
        ({"decode": Greedy(), "uniform": torch.zeros(2, 4)}, "Greedy.* no uniform, got both"),
        ({"decode": Beam(2)}, "decode must be Draw.* or Greedy.* here, got Beam"),
    ),
)
@pytest.mark.parametrize("compiled", (True, False))
@pytest.mark.parametrize("head", ("pointer", "gpl"))
def test_decode_errors(make_model, head, compiled, change, message):
    arguments = {"items": torch.zeros(2, 4, 2), "t": 0.4, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        make_model(head).decode(engine=Engine(compiled=compiled), **arguments)


@pytest.mark.parametrize("head", HEADS)
def test_what_is_read_of_soft_ranks(make_model, head):
    """A vector for each item's soft rank is added to the item; padding stays 0, and the order's model reads nothing."""
    model, z_t = make_model(head, torch.float64, reads="soft-ranks"), torch.tensor([[0.4, -0.2, 1.3, 0.9]])
    items, mask = torch.randn(1, 4, 2, dtype=torch.float64), torch.tensor([[True, True, False, True]])
    embedded = model.embed(items, mask)
    seen = model.at_soft_ranks(embedded, z_t, mask)
    assert seen.dtype == torch.float64 and not seen[0, 2].any()
    added = model.soft_rank_embedder(z_t)
    torch.testing.assert_close(seen[mask], (embedded + added)[mask], atol=0, rtol=0)
    order, slots = torch.tensor([[1, 0, 3, 2]]), torch.tensor([[1, 2, 0, 3]])
    mask_t = arrange(mask, order)
    one = model.log_prob(arrange(seen, order), 0.4, slots, mask_t, is_embedded=True).total
    folded = arrange(model.at_soft_ranks(embedded, reflect(z_t), mask), order)
    other = model.log_prob(folded, 0.4, slots, mask_t, is_embedded=True).total
    assert (one - other).abs() > 1e-4, "images of the fold are one to the model"
    # Kernels are given the sum.
    choices = ops.Choices(forced_order=slots)
    for engine in (Engine(), Engine(compiled=False)):
        decoded = model.decode_embedded(seen, 0.4, mask_t, choices, order=order, engine=engine)
        torch.testing.assert_close(decoded.log_probs.sum(1), one, atol=1e-9, rtol=0)
    plain = make_model(head, torch.float64)
    embedded = plain.embed(items)
    assert plain.at_soft_ranks(embedded, z_t) is embedded and not hasattr(plain, "soft_rank_embedder")


def test_items_alone_are_not_enough_for_a_model_that_reads_soft_ranks(make_model):
    model, items, order = make_model("pointer", reads="soft-ranks"), torch.randn(1, 3, 2), torch.tensor([[2, 0, 1]])
    for call in (
        lambda: model.decode(items, 0.4),
        lambda: model.log_prob(items, 0.4, order),
        lambda: model.distribution(items, 0.4),
        lambda: model.decoder_inputs(items, 0.4),
    ):
        with pytest.raises(ValueError, match=r"items must be embedded and given their soft ranks .*, got items alone"):
            call()
    seen = model.at_soft_ranks(model.embed(items), torch.rand(1, 3))
    assert model.decode(seen, 0.4, is_embedded=True).order.shape == (1, 3)


def test_order_errors(make_model):
    model, items, order = make_model("pointer"), torch.zeros(1, 3, 2), torch.tensor([[2, 0, 1]])
    with pytest.raises(ValueError, match="uniform and a whole forced_order exclude each other, got both"):
        model.decode(items, 0.4, uniform=torch.zeros(1, 3), forced_order=order)
    with pytest.raises(ValueError, match="order must list real slots before padded ones, row 0 is"):
        model.log_prob(items, 0.4, order, torch.tensor([[True, False, False]]))
    with pytest.raises(ValueError, match=r"order must be \(1, 3\) int64, an order over slots, got \(3,\)"):
        model.log_prob(items, 0.4, order[0])


def test_decoder_weights_of_a_head_without_decoder(make_model):
    assert make_model("gpl").packed_weights().decoder.weights == []
    assert all(len(make_model(head).packed_weights().decoder.weights) == 42 for head in DECODER_HEADS)


def test_log_prob_compiles_without_a_warning(recwarn):
    model, items, order = small_model(Bridge(), "pointer"), torch.randn(2, 5, 1), torch.tensor([[1, 3, 2, 0, 4]] * 2)
    compiled = torch.compile(lambda items: model.log_prob(items, 0.4, order).total, backend="aot_eager")
    torch.testing.assert_close(compiled(items), model.log_prob(items, 0.4, order).total)
    assert not [warning for warning in recwarn if "lru_cache" in str(warning.message)]


def test_gpl_is_a_stack_of_torch_s_layers_on_items_and_zero_tokens():
    """The published network: post-norm layers, zero tokens behind the items, who sees whom, a plain product."""
    model = small_model(N=5, encoder_layers=2)
    items = torch.randn(3, 5, 1)
    with torch.no_grad():
        time = model.time_embedder(torch.tensor([3.0]))
        tokens = torch.cat((model.embed(items), torch.zeros(3, 5, 16)), 1) + sine_cosine(10, 16, items) + time
        hidden = torch.ones(10, 10, dtype=torch.bool)
        for query in range(10):
            hidden[query, :5] = False
            for earlier in range(5, query):
                hidden[query, earlier] = False
        for layer in model.encoder_layers:
            twin = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            attention = twin.self_attn
            for own, theirs in (
                (layer.self_qkv.weight, attention.in_proj_weight), (layer.self_qkv.bias, attention.in_proj_bias),
                (layer.self_out.weight, attention.out_proj.weight), (layer.self_out.bias, attention.out_proj.bias),
                (layer.feed_in.weight, twin.linear1.weight), (layer.feed_in.bias, twin.linear1.bias),
                (layer.feed_out.weight, twin.linear2.weight), (layer.feed_out.bias, twin.linear2.bias),
            ):  # fmt: skip
                theirs.copy_(own)
            tokens = twin.train()(tokens, src_mask=hidden)
        tokens = nn.functional.layer_norm(tokens, (16,))
        wanted = tokens[:, 5:] @ tokens[:, :5].transpose(1, 2)
        got = model.scores(model.embed(items), 1.0, torch.zeros(3, 5, dtype=torch.int64))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_time_is_the_number_of_riffles():
    model = small_model(Riffle((0, 2, 7), "previous"))
    seen = []
    model.time_embedder.register_forward_pre_hook(lambda _, inputs: seen.append(float(inputs[0])))
    sample(model, torch.randn(2, 4, 1), decode="greedy")
    assert seen == pytest.approx([7, 2])


def test_gpl_with_equal_rows_is_pl():
    model, items = small_model(head="pl", N=5), numbers_of(5)[None]
    orders = all_orders(5)
    got = model.log_prob(items.expand(120, 5, 1), 1.0, orders).total
    scores = model.scores(model.embed(items), 1.0, torch.arange(5)[None])[0].detach()
    assert bool((scores == scores[0]).all()) and len(scores[0].unique()) == 5
    by_hand = []
    for order in orders.tolist():
        strengths = [math.exp(float(scores[0, slot])) for slot in order]
        by_hand.append(sum(math.log(strengths[place] / sum(strengths[place:])) for place in range(5)))
    torch.testing.assert_close(got, torch.tensor(by_hand), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got, GeneralizedPlackettLuce(scores).log_prob(orders), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got, PlackettLuce(scores[0]).log_prob(orders), atol=1e-5, rtol=1e-5)


def test_temperatures_of_decode(make_model):
    """Draws at a temperature, and forced orders scored at it, against the scores of a teacher-forced pass."""
    model, items = make_model("pointer", torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)
    order = torch.tensor([[1, 3, 2, 4, 0], [4, 0, 1, 3, 2]])
    with torch.no_grad():
        scores = model.scores(model.embed(items), 0.4, order)
    for temperature in (0.5, 2.0):
        scored = model.decode(items, 0.4, forced_order=order, decode=Draw(temperature)).log_probs
        for row in range(2):
            for place in range(5):
                left = scores[row, place, order[row, place:]] / temperature
                wanted = float(left[0] - left.logsumexp(0))
                assert float(scored[row, place]) == pytest.approx(wanted, abs=1e-10)
        uniform = torch.rand(2, 5, dtype=torch.float64)
        drawn = model.decode(items, 0.4, uniform=uniform, decode=Draw(temperature))
        again = model.decode(items, 0.4, forced_order=drawn.order, decode=Draw(temperature))
        torch.testing.assert_close(drawn.log_probs, again.log_probs, atol=1e-10, rtol=0)
    with pytest.raises(ValueError, match=r"^temperature must be positive and finite, got -1\.0$"):
        Draw(-1.0)


@pytest.mark.parametrize("head", HEADS)
def test_no_items_are_refused(make_model, head):
    model, items, order = make_model(head), torch.rand(3, 0, 2), torch.zeros(3, 0, dtype=torch.int64)
    for call in (
        lambda: model.decode(items, 1.0),
        lambda: model.log_prob(items, 1.0, order),
        lambda: sample(model, items),
        lambda: log_likelihood(model, items, order),
    ):
        with pytest.raises(ValueError, match=r"items must be \(B, N, \.\.\.\) with N at least 1, got \(3, 0, 2\)"):
            call()
