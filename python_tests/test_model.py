"""The model: normalisation, padding, heads, time, training mode, config and input errors, a reverse loop by hand."""

import math
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from softrank_ext import decode_chamber, ops, reflect
from softrank_ext.choices import Beam, Draw, Engine, Greedy
from softrank_ext.model import (
    DECODER_HEADS,
    HEADS,
    PRESETS,
    DecoderLayer,
    EncoderLayer,
    SoftRankConfig,
    SoftRankModel,
    TimeEmbedder,
    make_embedder,
    sine_cosine,
)
from softrank_ext.ops.layers import weight_shapes
from softrank_ext.permutations import arrange, check_order, compose, ranks_of
from softrank_ext.processes import bridge

TINY = SoftRankConfig(d_model=16, feed_forward=24, heads=2, encoder_layers=1, decoder_layers=1)


def all_orders(mask: Tensor) -> Tensor:
    """Every order of the real slots of a row's mask (N,), each followed by the padded slots."""
    real, padded = mask.nonzero()[:, 0].tolist(), (~mask).nonzero()[:, 0].tolist()
    return torch.tensor([[*order, *padded] for order in permutations(real)])


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
    orders = all_orders(mask)
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
    orders = torch.stack([all_orders(row)[-1] for row in mask])
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


class Centred(nn.Module):
    """An embedder in which slots see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(2, 16)

    def forward(self, items: Tensor) -> Tensor:
        return self.projection(items - items.sum(1, keepdim=True))


def test_padding_is_zeroed_before_the_embedder():
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    items = torch.randn(2, 4, 2)
    model = SoftRankModel(TINY, Centred())
    wanted = model.embed(items.masked_fill(~mask[..., None], 0.0), mask)
    assert torch.equal(model.embed(items.masked_fill(~mask[..., None], torch.nan), mask), wanted)
    learned = SoftRankModel(replace(TINY, embedder={"kind": "learned", "num_items": 4}))
    assert learned.embed(torch.tensor([[1, 3, 0, 99], [-1, 2, -1, 3]]), mask).isfinite().all()


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


def torch_encoder_layer(layer, norm_first: bool) -> nn.TransformerEncoderLayer:
    """torch's own layer with the same weights."""
    theirs = nn.TransformerEncoderLayer(
        16, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    names = {
        "self_attn.in_proj_": layer.self_qkv,
        "self_attn.out_proj.": layer.self_out,
        "linear1.": layer.feed_in,
        "linear2.": layer.feed_out,
        "norm1.": layer.self_norm,
        "norm2.": layer.feed_norm,
    }
    theirs.load_state_dict(
        {f"{name}{kind}": getattr(ours, kind) for name, ours in names.items() for kind in ("weight", "bias")}
    )
    return theirs


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


def test_linear_head_uses_its_first_slots(make_model):
    model = make_model("linear", max_items=9)
    items, order = torch.randn(2, 5, 2), torch.tensor([[1, 3, 2, 4, 0], [4, 0, 1, 3, 2]])
    before = model.log_prob(items, 0.4, order).total
    with torch.no_grad():
        model.head.weight[5:] = 1e3
    torch.testing.assert_close(model.log_prob(items, 0.4, order).total, before)
    with pytest.raises(
        ValueError, match="this linear head takes up to 9 items, got 10; a pointer head takes any number"
    ):
        model.decode(torch.randn(1, 10, 2), 0.4)


@pytest.mark.parametrize(("kind", "make"), [("encoder", EncoderLayer), ("decoder", DecoderLayer)])
def test_parameters_of_a_layer_are_the_ops_weights(kind, make):
    layer = make(16, 24, 2, 0.1, True)
    names = [name.replace(".", "_") for name, _ in layer.named_parameters()]
    assert tuple(names) == ops.layer_weight_names(kind)
    assert [tuple(weight.shape) for weight in layer.parameters()] == weight_shapes(kind, 16, 24)


def test_position_and_time_tables():
    table = sine_cosine(300, 6, torch.zeros(1, dtype=torch.float64))
    for position, channel in ((0, 0), (1, 1), (7, 2), (7, 3), (299, 4), (299, 5)):
        angle = position / 10000 ** (2 * (channel // 2) / 6)
        assert math.isclose(
            float(table[position, channel]), (math.cos if channel % 2 else math.sin)(angle), abs_tol=1e-12
        )
    time = TimeEmbedder(8).double()
    features = []
    time.hidden.register_forward_hook(lambda module, inputs, output: features.append(inputs[0]))
    time(torch.tensor([3.0], dtype=torch.float64))
    for channel in (0, 5, 127):
        angle = 3.0 / 10000 ** (channel / 128)
        assert math.isclose(float(features[0][0, channel]), math.cos(angle), abs_tol=1e-12)
        assert math.isclose(float(features[0][0, 128 + channel]), math.sin(angle), abs_tol=1e-12)


@pytest.mark.parametrize("time, factor", (("grid", 7), ("continuous", 1000)))
def test_time_index(time, factor):
    config = replace(TINY, time=time, steps=7, embedder={"kind": "linear", "features": 2})
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


def test_float64_items_are_cast(make_model):
    model, items = make_model("pointer"), torch.randn(2, 4, 2, dtype=torch.float64)
    assert torch.equal(model.embed(items), model.embed(items.float()))


def test_reverse_loop_by_hand(make_model):
    """The whole sampler from `bridge` and the model, as the README shows it."""
    torch.manual_seed(3)
    model, items = make_model("pointer"), torch.randn(8, 6, 2)
    z_t = torch.rand(8, 6)
    for t, s in pairwise(bridge.time_grid(5)):
        order_t, _ = decode_chamber(reflect(z_t))
        slots = model.decode(arrange(items, order_t), t, uniform=torch.rand(8, 6)).order
        order = compose(order_t, slots)
        z_t = bridge.reverse_step(z_t, bridge.lift_to_grid(ranks_of(order)), t, s, torch.randn(8, 6))
    check_order(order)
    assert torch.equal(decode_chamber(z_t)[0], order)


def test_presets():
    assert (PRESETS["mnist"].d_model, PRESETS["mnist"].feed_forward) == (128, 512)
    assert (PRESETS["tsp"].encoder_layers, PRESETS["tsp"].decoder_layers) == (8, 8)
    assert (PRESETS["tsp-as-printed"].d_model, PRESETS["tsp-as-printed"].feed_forward) == (1024, 256)
    config = replace(PRESETS["mnist"], head="gpl", encoder_layers=7, decoder_layers=0)
    config = replace(config, embedder={"kind": "learned", "num_items": 9})
    assert SoftRankModel(config).eval().decode(torch.arange(9)[None], 1.0)[0].shape == (1, 9)


@pytest.mark.parametrize(
    "fields, message",
    (
        ({"d_model": 0}, "d_model must be an integer of at least 1, got 0"),
        ({"steps": 2.5}, "steps must be an integer of at least 1, got 2.5"),
        ({"d_model": 100}, "d_model must be even and a multiple of heads = 8, got 100"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"norm_first": "yes"}, "norm_first must be True or False, got 'yes'"),
        ({"head": "points"}, "head must be one of pointer, linear, gpl, pl, got 'points'"),
        ({"time": "discrete"}, "time must be one of grid, continuous, got 'discrete'"),
        ({"head": "gpl"}, "decoder_layers of a gpl head must be 0: it reads the encoder alone, got 4"),
        ({"decoder_layers": 0}, "decoder_layers of a pointer head must be at least 1, got 0"),
        ({"head": "linear"}, "max_items must be given for a linear head"),
        ({"max_items": 9}, "max_items is for a linear head, a pointer head takes any N; got 9"),
    ),
)
def test_config_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        SoftRankConfig(**fields)


def test_embedder_errors():
    with pytest.raises(ValueError, match=r"embedder must be a module, or config\.embedder must name one, got neither"):
        SoftRankModel(TINY)
    named = replace(TINY, embedder={"kind": "linear", "features": 2})
    with pytest.raises(ValueError, match=r"embedder must be left out where config\.embedder names one, got both"):
        SoftRankModel(named, nn.Linear(2, 16))
    with pytest.raises(ValueError, match=r"embedder kind must be one of linear, learned, .*got 'cnn'"):
        make_embedder(16, {"kind": "cnn"})
    with pytest.raises(ValueError, match=r"embedder of kind 'linear' does not take \{'sizes': 2\}"):
        make_embedder(16, {"kind": "linear", "sizes": 2})
    with pytest.raises(ValueError, match=r"items must be \(B, N, 2\) float, got \(1, 3, 2\) torch.int64"):
        SoftRankModel(named).embed(torch.zeros(1, 3, 2, dtype=torch.int64))
    learned = SoftRankModel(replace(TINY, embedder={"kind": "learned", "num_items": 4}))
    with pytest.raises(ValueError, match="items must be ids from 0 to 3, got 0 to 4"):
        learned.embed(torch.tensor([[0, 4]]))
    with pytest.raises(ValueError, match=r"items must be \(B, N\) int64, got \(1, 2\) torch.float32"):
        learned.embed(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"the embedder must return \(1, 3, 16\), got \(1, 3, 8\)"):
        SoftRankModel(TINY, nn.Linear(2, 8)).embed(torch.zeros(1, 3, 2))


@pytest.mark.parametrize(
    "change, message",
    (
        ({"items": [[0.0]]}, r"items must be \(B, N, ...\), a tensor, got list"),
        ({"items": torch.zeros(4, 2)}, r"items must be \(B, N, ...\) with 1 dimensions per item, got \(4, 2\)"),
        ({"items": torch.zeros(2, 4, 16), "is_embedded": True, "mask": torch.ones(2, 3).bool()}, "mask must be a bool"),
        ({"items": torch.zeros(2, 4, 2), "is_embedded": True}, r"items must be \(B, N, 16\).* got \(2, 4, 2\)"),
        ({"mask": torch.ones(2, 4)}, r"mask must be a bool tensor \(2, 4\), True = real item, got \(2, 4\)"),
        ({"t": 1.5}, r"t must be in \[0, 1\], got 1.5"),
        ({"t": torch.zeros(3)}, r"t must be a number or \(2,\), got 3 numbers"),
        ({"uniform": torch.zeros(2, 3)}, r"uniform must be \(2, 4\) float, got \(2, 3\)"),
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


def test_log_prob_compiles_without_a_warning(make_model, recwarn):
    model, items, order = make_model("pointer"), torch.randn(2, 5, 2), torch.tensor([[1, 3, 2, 0, 4]] * 2)
    compiled = torch.compile(lambda items: model.log_prob(items, 0.4, order).total, backend="aot_eager")
    torch.testing.assert_close(compiled(items), model.log_prob(items, 0.4, order).total)
    assert not [warning for warning in recwarn if "lru_cache" in str(warning.message)]


@pytest.mark.parametrize("head", ["pointer", "gpl"])
def test_distribution_against_log_prob_and_enumeration(make_model, head):
    model = make_model(head, torch.float64)
    mask = torch.tensor([[True, True, False, True], [True, True, False, True]])
    items = torch.rand(2, 4, 2, dtype=torch.float64)
    law = model.distribution(items, 0.4, mask)
    assert (law.batch_shape, law.event_shape) == ((2,), (4,))
    orders = law.enumerate_support()  # (6, 2, 4)
    assert orders[:, 0].tolist() == [[*order, 2] for order in permutations([0, 1, 3])]
    log_probs = law.log_prob(orders)
    for i, order in enumerate(orders):
        torch.testing.assert_close(log_probs[i], model.log_prob(items, 0.4, order, mask).total)
    torch.testing.assert_close(log_probs.exp().sum(0), torch.ones(2, dtype=torch.float64))
    begins = (orders[:, None, :, :2] == orders[None, :, :, :2]).all(-1)  # (order, prefix, row)
    torch.testing.assert_close(law.log_prob_top(orders[..., :2]).exp(), (log_probs.exp()[:, None] * begins).sum(0))
    torch.manual_seed(4)
    drawn = law.sample((1500,))
    counts = torch.stack([(drawn == order).all(-1).sum(0) for order in orders])  # (6, 2)
    assert counts.sum() == 3000
    for row in range(2):
        expected = log_probs[:, row].exp().detach() * 1500
        assert stats.chisquare(counts[:, row], expected).pvalue > 1e-3
        assert stats.chisquare(counts[:, row], expected.flip(0)).pvalue < 1e-6


def test_distribution_has_gradients_and_expands(make_model):
    model = make_model("pointer")
    items = torch.rand(3, 5, 2)
    law = model.distribution(items, torch.tensor([0.2, 0.6, 1.0]))
    order = torch.tensor([2, 0, 4, 1, 3])
    law.log_prob(order).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    wide = law.expand((2, 3))
    assert wide.sample((4,)).shape == (4, 2, 3, 5)
    torch.testing.assert_close(wide.log_prob(order), law.log_prob(order).expand(2, 3))
    torch.manual_seed(0)
    one = law.sample((600,))  # more rows than are decoded at once
    torch.manual_seed(0)
    uniform = torch.rand(600, 3, 5, dtype=torch.float64)
    assert torch.equal(one, law.from_uniform(uniform))
    assert torch.equal(one[599], law.from_uniform(uniform[599]))
    assert torch.equal(
        law.from_uniform(torch.full((5,), 1 - 2.0**-53, dtype=torch.float64)).sort().values[0], torch.arange(5)
    )
    with pytest.raises(NotImplementedError, match="entropy of a model's law has no closed form: average -log_prob"):
        law.entropy()
    with pytest.raises(NotImplementedError, match="does not implement mode"):
        _ = law.mode
