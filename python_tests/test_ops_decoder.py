"""decode_order: cached, uncached, teacher-forced and torch's own decoder agree; draws follow the distribution."""

import gc
import weakref
from copy import deepcopy
from itertools import permutations
from typing import NamedTuple

import pytest
import torch
from testing import chi_square
from testing.engines import ENGINES, each_engine
from torch import Tensor, nn

from softrank_ext import build_info, noise, ops, sample
from softrank_ext.choices import Draw
from softrank_ext.model import DECODER_HEADS, HEADS, PackedWeights, sine_cosine
from softrank_ext.permutations import arrange
from softrank_ext.sampling.incremental import IncrementalDecoder

needs_compiled = pytest.mark.skipif(build_info()["kernels"] != "compiled", reason="without compiled libraries")

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def random_orders(B: int, N: int) -> Tensor:
    return torch.rand(B, N).argsort(1)


def mixed_mask(sizes: list[int], N: int) -> Tensor:
    """Rows with that many real slots, at random places."""
    mask = torch.zeros(len(sizes), N, dtype=torch.bool)
    for row, size in enumerate(sizes):
        mask[row, torch.randperm(N)[:size]] = True
    return mask


def real_first(order: Tensor, mask: Tensor) -> Tensor:
    return order.gather(1, (~mask.gather(1, order)).to(torch.int8).argsort(dim=1, stable=True))


def op_arguments(model, items: Tensor, mask: Tensor) -> tuple[ops.Transformer, ops.DecoderInputs]:
    """Arguments of ops.decode_order for a model at t = 0.6, made from the model's own modules."""
    embedded = model.embed(items, mask)
    memory = model.encode(embedded, 0.6, mask)
    time = model.time_embedder(torch.tensor([0.6 * 5], dtype=items.dtype))
    head_keys, head_bias = model.head(memory, (mask.cumsum(1) - 1).clamp(min=0))
    weights = [*model.decoder_layers.parameters(), *model.decoder_norm.parameters()]
    inputs = ops.DecoderInputs(
        memory=memory,
        tokens=embedded + time,
        start=(model.start + time).expand(len(items), -1).contiguous(),
        places=sine_cosine(items.shape[1], model.config.d_model, items),
        head_keys=head_keys,
        head_bias=head_bias,
        mask=mask,
    )
    return ops.Transformer(weights, None, model.config.heads, model.config.norm_first), inputs


@pytest.fixture
def arguments(make_model):
    torch.manual_seed(1)
    model = make_model("pointer")
    mask = mixed_mask([6, 3, 1], 6)
    with torch.no_grad():
        return op_arguments(model, torch.randn(3, 6, 2), mask)


@each_engine
@pytest.mark.parametrize("sizes", ([1], [2, 2], [7, 7, 7], [5, 1, 7, 2, 0, 6], [200]), ids=str)
@pytest.mark.parametrize("norm_first", (True, False))
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head", DECODER_HEADS)
def test_forced_order_equals_teacher_forcing(make_model, head, dtype, norm_first, sizes, engine):
    torch.manual_seed(2)
    model = make_model(head, dtype, norm_first=norm_first)
    B, N = len(sizes), max(sizes)
    mask = mixed_mask(sizes, N)
    items, t = torch.randn(B, N, 2, dtype=dtype), torch.rand(B, dtype=dtype)
    forced_order = real_first(random_orders(B, N), mask)
    with torch.no_grad():
        wanted = model.log_prob(items, t, forced_order, mask).per_place
    order, log_probs, _ = model.decode(items, t, mask, forced_order=forced_order, engine=engine)
    torch.testing.assert_close(log_probs, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    is_real_place = torch.arange(N) < mask.sum(1, keepdim=True)
    assert torch.equal(order[is_real_place], forced_order[is_real_place])
    assert torch.equal(order.sort(1).values, torch.arange(N).expand(B, N))
    last = mask.sum(1) - 1
    assert all(log_probs[row, last[row] :].eq(0).all() for row in range(B))


@each_engine
@pytest.mark.parametrize("norm_first", (True, False))
def test_agrees_with_torch_decoder(make_model, norm_first, engine):
    """The same weights in nn.TransformerDecoder give the same log-probabilities."""
    torch.manual_seed(3)
    model = make_model("pointer", torch.float64, norm_first=norm_first)
    items, mask = torch.randn(4, 6, 2, dtype=torch.float64), mixed_mask([6, 4, 6, 2], 6)
    forced_order = real_first(random_orders(4, 6), mask)
    with torch.no_grad():
        _, inputs = op_arguments(model, items, mask)
    layers = []
    for layer in model.decoder_layers:
        theirs = nn.TransformerDecoderLayer(
            16, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
        )
        theirs.load_state_dict(
            {
                "self_attn.in_proj_weight": layer.self_qkv.weight,
                "self_attn.in_proj_bias": layer.self_qkv.bias,
                "self_attn.out_proj.weight": layer.self_out.weight,
                "self_attn.out_proj.bias": layer.self_out.bias,
                "multihead_attn.in_proj_weight": torch.cat((layer.memory_query.weight, layer.memory_key_value.weight)),
                "multihead_attn.in_proj_bias": torch.cat((layer.memory_query.bias, layer.memory_key_value.bias)),
                "multihead_attn.out_proj.weight": layer.memory_out.weight,
                "multihead_attn.out_proj.bias": layer.memory_out.bias,
                "linear1.weight": layer.feed_in.weight,
                "linear1.bias": layer.feed_in.bias,
                "linear2.weight": layer.feed_out.weight,
                "linear2.bias": layer.feed_out.bias,
                "norm1.weight": layer.self_norm.weight,
                "norm1.bias": layer.self_norm.bias,
                "norm2.weight": layer.memory_norm.weight,
                "norm2.bias": layer.memory_norm.bias,
                "norm3.weight": layer.feed_norm.weight,
                "norm3.bias": layer.feed_norm.bias,
            }
        )
        layers.append(theirs)
    tokens, start, places = inputs.tokens, inputs.start, inputs.places
    x = torch.stack([start, *(tokens[torch.arange(4), forced_order[:, i]] for i in range(5))], 1) + places
    with torch.no_grad():
        for theirs in layers:
            x = theirs(
                x,
                inputs.memory,
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64),
                memory_key_padding_mask=~mask,
                tgt_is_causal=True,
            )
        states = model.decoder_norm(x)
        # The paper's score in full, with the terms u . d_i + b that cancel.
        u, b = torch.randn(16, dtype=torch.float64), 0.7
        memory, weight, slot_weight = inputs.memory, model.head.weight, model.head.slot_weight
        scores = torch.einsum("bid,de,bke->bik", states, weight, memory)
        scores += (states @ u)[..., None] + (memory @ slot_weight)[:, None] + b
    wanted = torch.zeros(4, 6, dtype=torch.float64)
    for row in range(4):
        left = mask[row].nonzero()[:, 0].tolist()
        for place in range(len(left)):
            pick = int(forced_order[row, place])
            wanted[row, place] = scores[row, place, pick] - scores[row, place, left].logsumexp(0)
            left.remove(pick)
    _, log_probs, _ = model.decode(items, 0.6, mask, forced_order=forced_order, engine=engine)
    torch.testing.assert_close(log_probs, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("head", DECODER_HEADS)
def test_greedy_orders_are_identical_on_1000_inputs(make_model, head):
    torch.manual_seed(4)
    model = make_model(head)
    items, mask = torch.randn(1000, 8, 2), mixed_mask((1 + torch.arange(1000) % 8).tolist(), 8)
    compiled, plain, uncached = (model.decode(items, 0.4, mask, engine=engine) for engine in ENGINES)
    assert torch.equal(compiled[0], plain[0])
    assert torch.equal(uncached[0], plain[0])
    alone = torch.cat([model.decode(items[i : i + 1], 0.4, mask[i : i + 1])[0] for i in range(0, 1000, 20)])
    assert torch.equal(alone, plain[0][::20])
    # Each greedy pick is the best of what remains, by the teacher-forced pass.
    scores = model.scores(model.embed(items, mask), 0.4, plain[0], mask)
    for row in range(0, 1000, 10):
        left = mask[row].nonzero()[:, 0].tolist()
        for place, pick in enumerate(plain[0][row, : len(left)].tolist()):
            assert scores[row, place, pick] >= scores[row, place, left].max() - 1e-4
            left.remove(pick)


@each_engine
@pytest.mark.parametrize("head", HEADS)
def test_draws_are_the_same_padded_and_alone(make_model, head, engine):
    torch.manual_seed(5)
    model = make_model(head, torch.float64)
    sizes = [6, 2, 4, 1, 6]
    mask = mixed_mask(sizes, 8)  # no row is full
    items, uniform = torch.randn(5, 8, 2, dtype=torch.float64), torch.rand(5, 8, dtype=torch.float64)
    for filling in (0.0, 1e9, torch.nan):
        items[~mask] = filling
        order, log_probs, _ = model.decode(items, 0.8, mask, uniform=uniform, engine=engine)
        for row, size in enumerate(sizes):
            real = mask[row].nonzero()[:, 0]
            alone, alone_log_probs, _ = model.decode(
                items[row : row + 1, real], 0.8, uniform=uniform[row : row + 1, :size], engine=engine
            )
            assert torch.equal(order[row, :size], real[alone[0]])
            assert torch.equal(order[row, size:], (~mask[row]).nonzero()[:, 0])
            torch.testing.assert_close(log_probs[row, :size], alone_log_probs[0], atol=1e-12, rtol=1e-12)
            assert log_probs[row, size:].eq(0).all()


@pytest.mark.parametrize("filling", (1e9, torch.nan))
def test_padding_of_the_op_has_no_effect(arguments, filling):
    decoder, inputs = arguments
    wanted = ops.decode_order(decoder, inputs)
    is_padding = ~inputs.mask[..., None]
    filled = {
        name: getattr(inputs, name).masked_fill(is_padding, filling) for name in ("memory", "tokens", "head_keys")
    }
    filled["head_bias"] = inputs.head_bias.masked_fill(~inputs.mask, filling)
    for got, want in zip(ops.decode_order(decoder, inputs._replace(**filled)), wanted, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    "head, N, engine, draws",
    (
        ("linear", 4, ENGINES[0], 200_000),
        ("pointer", 5, ENGINES[0], 200_000),
        ("linear", 5, ENGINES[1], 30_000),
        ("pointer", 4, ENGINES[1], 30_000),
        ("pointer", 4, ENGINES[2], 30_000),
        ("gpl", 4, ENGINES[0], 30_000),
        ("pl", 5, ENGINES[0], 30_000),
    ),
    ids=str,
)
def test_draws_follow_the_enumerated_probabilities(make_model, head, N, engine, draws):
    torch.manual_seed(6)
    model = make_model(head)
    items = torch.randn(1, N, 2)
    orders = torch.tensor(list(permutations(range(N))))
    with torch.no_grad():
        log_prob = model.log_prob(items.expand(len(orders), -1, -1), 1.0, orders).total.double()
    uniform = noise.uniform(11, torch.arange(draws), 0, N, stream=noise.PICK_STREAM)
    embedded = model.embed(items).expand(draws, -1, -1)
    order, drawn_log_probs, _ = model.decode(embedded, 1.0, uniform=uniform, engine=engine, is_embedded=True)
    digits = N ** torch.arange(N)
    index = torch.searchsorted((orders * digits).sum(1).sort().values, (order * digits).sum(1))
    by_index = (orders * digits).sum(1).argsort()
    counts = torch.bincount(index, minlength=len(orders))
    torch.testing.assert_close(drawn_log_probs.sum(1).double(), log_prob[by_index][index], atol=1e-4, rtol=0)

    assert chi_square(counts, log_prob.exp()[by_index]) > 1e-4
    # Negative control: a distribution a little flatter than the model's is told apart.
    assert chi_square(counts, (log_prob / 1.2).softmax(0)[by_index]) < 1e-6


@each_engine
@pytest.mark.parametrize("head", HEADS)
def test_temperature_divides_the_scores(make_model, head, engine):
    torch.manual_seed(7)
    model = make_model(head, torch.float64)
    items, uniform = torch.randn(6, 5, 2, dtype=torch.float64), torch.rand(6, 5, dtype=torch.float64)
    order, log_probs, _ = model.decode(items, 0.2, uniform=uniform, decode=Draw(2.5), engine=engine)
    scores = model.scores(model.embed(items), 0.2, order).detach() / 2.5
    for row in range(6):
        left = list(range(5))
        for place, pick in enumerate(order[row].tolist()):
            wanted = scores[row, place, pick] - scores[row, place, left].logsumexp(0)
            torch.testing.assert_close(log_probs[row, place], wanted, atol=1e-10, rtol=0)
            left.remove(pick)
    cold, _, _ = model.decode(items, 0.2, uniform=uniform, decode=Draw(1e-6), engine=engine)
    assert torch.equal(cold, model.decode(items, 0.2, engine=engine)[0])


def test_packed_weights_are_shared_between_calls(make_model):
    model, items = make_model("pointer"), torch.randn(3, 6, 2)
    shared = model.packed_weights()
    wanted = model.decode(items, 0.4)
    for _ in range(2):
        assert torch.equal(model.decode(items, 0.4, packed_weights=shared)[1], wanted[1])


@pytest.mark.parametrize("part", ["encoder_layers", "decoder_layers", "time_embedder", "decoder_norm", "head"])
@pytest.mark.parametrize("change", ["optimiser", "data", "numpy", "inference"])
def test_packed_weights_follow_every_change_of_the_weights(make_model, part, change):
    model, items = make_model("pointer"), torch.randn(3, 6, 2)
    before = model.decode(items, 0.4)[1]
    assert torch.equal(model.decode(items, 0.4)[1], before)
    weight = list(getattr(model, part).parameters())[-1]
    if change == "optimiser":
        with torch.no_grad():
            weight[-1] += 0.5
    elif change == "data":
        weight.data[-1] += 0.5
    elif change == "numpy":
        weight.detach().numpy()[-1] += 0.5
    else:
        with torch.inference_mode():
            weight.data[-1] += 0.5
            model.decode(items, 0.4)
    copy = deepcopy(model)  # has packed nothing yet
    after = model.decode(items, 0.4)[1]
    assert torch.equal(after, copy.decode(items, 0.4)[1]) and not torch.equal(after, before)


@pytest.mark.parametrize("then", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_what_is_packed_in_inference_mode_serves_in_any(make_model, then):
    model, items = make_model("pointer"), torch.randn(3, 6, 2)
    with torch.inference_mode():
        wanted = sample(model, items, seed=0).log_prob
    with then():
        assert torch.equal(sample(model, items, seed=0).log_prob, wanted)
        decoder = IncrementalDecoder(model, items, 0.4)
        for _ in range(2):
            decoder.step(decoder.scores.masked_fill(~decoder.remaining, -torch.inf).argmax(1))
    with torch.enable_grad():
        model.log_prob(items, 0.4, random_orders(3, 6)).total.sum().backward()


@needs_compiled
def test_packing_is_kept_with_the_model_and_not_in_it(make_model):
    model = make_model("pointer")
    first = model.packed_weights()
    assert model.packed_weights().decoder.packed is first.decoder.packed
    weights = weakref.ref(model), weakref.ref(first.decoder.packed)
    assert not any(isinstance(value, PackedWeights) for value in vars(model).values())
    del model, first
    gc.collect()
    assert weights[0]() is None and weights[1]() is None


def test_no_rows(make_model):
    order, log_probs, _ = make_model("pointer").decode(torch.randn(0, 5, 2), 0.4, uniform=torch.rand(0, 5))
    assert order.shape == log_probs.shape == (0, 5)


@pytest.mark.parametrize("choice", ("greedy", "uniform", "forced_order"))
def test_opcheck(arguments, choice):
    decoder, inputs = arguments
    weights = [weight.detach() for weight in decoder.weights]
    choices = ops.Choices(
        uniform=torch.rand(3, 6) if choice == "uniform" else None,
        forced_order=real_first(random_orders(3, 6), inputs.mask) if choice == "forced_order" else None,
        temperature=0.9,
    )
    torch.library.opcheck(torch.ops.softrank_ext.decode_order, (*decoder._replace(weights=weights), *inputs, *choices))
    torch.library.opcheck(torch.ops.softrank_ext.pack_decoder, (weights,))


def test_reference_is_the_specification(arguments):
    choices = ops.Choices(uniform=torch.rand(3, 6))
    got = ops.decode_order(*arguments, choices)  # type: ignore[call-arg]
    wanted = ops.decode_order_reference(*arguments, choices)  # type: ignore[call-arg]
    assert torch.equal(got[0], wanted[0])
    torch.testing.assert_close(got[1], wanted[1], atol=1e-5, rtol=1e-5)


def test_the_last_choices_may_be_left_out(arguments):
    """What the schema has as defaults is what `Choices` has."""
    decoder, inputs = arguments
    short = torch.ops.softrank_ext.decode_order(*decoder, *inputs)
    for other in (ops.decode_order(decoder, inputs), ops.decode_order(decoder, inputs, ops.Choices())):
        assert all(torch.equal(one, two) for one, two in zip(short, other, strict=True))
    schema = torch.ops.softrank_ext.decode_order.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names == [*ops.Transformer._fields, *ops.DecoderInputs._fields, *ops.Choices._fields]


@pytest.mark.parametrize(
    "change, message",
    (
        ({"memory": torch.zeros(3, 6)}, r"memory must be a \(B, N, D\) tensor of float32 or float64, got \(3, 6\)"),
        ({"memory": None}, "memory must be .* got NoneType"),
        ({"weights": [torch.zeros(16)] * 5}, "weights must be 20 tensors per layer and 2 of the final norm, got 5"),
        ({"heads": 3}, "heads must divide D = 16, got 3"),
        ({"tokens": torch.zeros(3, 5, 16)}, r"tokens must be \(3, 6, 16\) .* got \(3, 5, 16\)"),
        ({"start": torch.zeros(16)}, r"start must be \(3, 16\) .* got \(16,\)"),
        (
            {"places": torch.zeros(6, 16).double()},
            r"places must be \(6, 16\) of memory's torch.float32, got .* float64",
        ),
        ({"head_keys": torch.zeros(2, 6, 16)}, r"head_keys must be \(3, 6, 16\) or \(1, 6, 16\)"),
        ({"head_bias": torch.zeros(1, 6)}, "head_keys and head_bias must have as many rows, got 3 and 1"),
        ({"mask": torch.ones(3, 6)}, "mask must be a bool tensor of the shape of memory's slots"),
        ({"uniform": torch.zeros(3)}, r"uniform must be \(3, 6\)"),
        ({"temperature": 0.0}, "temperature must be positive and finite, got 0.0"),
        ({"forced_order": torch.zeros(3, 6).long()}, "forced_order must hold each of 0 to 5 once per row"),
        ({"forced_order": torch.arange(5).expand(3, 5)}, "forced_order must have the shape of mask"),
    ),
)
def test_errors(arguments, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ops.decode_order(*(part._replace(**_fields_of(part, change)) for part in (*arguments, ops.Choices())))


def _fields_of(part: tuple, change: dict[str, object]) -> dict[str, object]:
    """Those of the changes that are fields of the part."""
    return {name: value for name, value in change.items() if name in part._fields}


def test_errors_of_weights_and_forced_order(arguments):
    decoder, inputs = arguments
    weights = list(decoder.weights)
    weights[22] = weights[22][:16]
    with pytest.raises(ValueError, match=r"weights of layer 1 self_qkv_weight must be \(48, 16\) .* got \(16, 16\)"):
        ops.decode_order(decoder._replace(weights=weights), inputs)
    order = real_first(random_orders(3, 6), inputs.mask)
    with pytest.raises(ValueError, match="uniform and a whole forced_order exclude each other, got both"):
        ops.decode_order(decoder, inputs, ops.Choices(uniform=torch.zeros(3, 6), forced_order=order))
    with pytest.raises(ValueError, match="forced_order must list real slots before padded ones, row 1 is"):
        ops.decode_order(decoder, inputs, ops.Choices(forced_order=order.flip(1)))


def _rearranged(order: torch.Tensor, mask: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The order with its real places sorted by keys (B, N)."""
    places = torch.arange(order.shape[1])
    is_real_place = places < mask.sum(1, keepdim=True)
    return order.gather(1, torch.where(is_real_place, keys.double(), 1e9 + places).argsort(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_greedy", [True, False])
@pytest.mark.parametrize("head", ["pointer", "linear"])
def test_a_draft_changes_the_work_only(make_model, head, is_greedy, dtype):
    """Whatever the draft, orders and log-probabilities have the same bits: 4 drafts x 500 instances per case."""
    torch.manual_seed(9)
    B, N = 500, 24
    model = make_model(head, dtype, max_items=N if head == "linear" else None)
    items = torch.randn(B, N, 2, dtype=dtype)
    mask = torch.rand(B, N) < 0.85
    mask[:, 0] = True
    uniform = None if is_greedy else torch.rand(B, N, dtype=dtype)
    plain = model.decode(items, 0.6, mask, uniform=uniform)
    choices = mask.sum(1) - 1
    assert torch.equal(plain.work, torch.stack((choices, choices), 1))
    places = torch.arange(N).expand(B, N)
    swapped = places.clone()
    swapped[:, [4, 5]] = swapped[:, [5, 4]]
    drafts = {
        "right": places,
        "reversed": -places,
        "random": torch.rand(B, N),
        "two swapped": swapped,
    }
    for name, keys in drafts.items():
        draft = _rearranged(plain.order, mask, keys)
        drafted = model.decode(items, 0.6, mask, uniform=uniform, draft=draft)
        assert torch.equal(drafted.order, plain.order), name
        assert torch.equal(drafted.log_probs, plain.log_probs), name
        passes, places_run = drafted.work.unbind(1)
        assert (passes <= choices).all(), name
        assert (places_run >= choices).all(), name
        if name == "right":
            assert torch.equal(places_run, choices)


@needs_compiled
@pytest.mark.parametrize("B", [1, 2])
def test_few_rows_take_a_right_draft_in_blocks(make_model, B):
    """With few rows a pass costs little more for several places, so it tries several; a wrong draft is soon left."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that share a row make more places free
    model, items = make_model("pointer"), torch.randn(B, 40, 2)
    plain = model.decode(items, 0.6)
    right = model.decode(items, 0.6, draft=plain.order)
    wrong = model.decode(items, 0.6, draft=plain.order.flip(1))
    torch.set_num_threads(before)
    assert (right.work[:, 0] <= 14).all() and (right.work[:, 1] == 39).all()
    assert (wrong.work[:, 0] <= 39).all() and (wrong.work[:, 1] <= 3 * 39).all()


@needs_compiled
def test_one_row_has_the_same_bits_on_any_number_of_threads(make_model):
    torch.manual_seed(0)
    before = torch.get_num_threads()
    for dtype in (torch.float32, torch.float64):
        model, items = make_model("pointer", dtype), torch.randn(1, 37, 2, dtype=dtype)
        draft = torch.rand(1, 37).argsort(1)
        answers = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            decoded = model.decode(items, 0.6, uniform=torch.full((1, 37), 0.3, dtype=dtype), draft=draft)
            memory = model.decoder_inputs(items, 0.6).memory
            answers.append((decoded.order, decoded.log_probs, memory))
        torch.set_num_threads(before)
        for other in answers[1:]:
            assert all(torch.equal(one, two) for one, two in zip(answers[0], other, strict=True))


def test_drafted_draws_follow_the_enumerated_probabilities(make_model):
    """Chi-square of 100,000 draws made with wrong drafts, against all 24 orders; a wrong law must fail it."""
    torch.manual_seed(1)
    model, draws = make_model("pointer"), 100_000
    items = torch.randn(1, 4, 2)
    orders = torch.tensor(list(permutations(range(4))))
    probabilities = model.log_prob(items.expand(24, 4, 2), 0.6, orders).total.double().exp().detach()
    draft = torch.rand(draws, 4).argsort(1)
    order = model.decode(items.expand(draws, 4, 2), 0.6, uniform=torch.rand(draws, 4), draft=draft).order
    code = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    codes = (orders * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = (code[:, None] == codes).sum(0).double()
    assert counts.sum() == draws

    assert chi_square(counts, probabilities) > 1e-3
    assert chi_square(counts, probabilities.roll(1)) < 1e-100


@pytest.mark.parametrize("engine", ENGINES[:2], ids=str)
@pytest.mark.parametrize("head", ["pointer", "linear", "gpl"])
def test_a_forced_prefix_is_continued(make_model, head, engine):
    torch.manual_seed(4)
    model = make_model(head, torch.float64, max_items=6 if head == "linear" else None)
    items, uniform = torch.randn(40, 6, 2, dtype=torch.float64), torch.rand(40, 6, dtype=torch.float64)
    forced = torch.rand(40, 6).argsort(1)
    for places in (0, 1, 4, 6):
        decoded = model.decode(items, 0.6, uniform=uniform, forced_order=forced, forced_places=places, engine=engine)
        assert torch.equal(decoded.order[:, :places], forced[:, :places])
        assert torch.equal(decoded.order.sort(1).values, torch.arange(6).expand(40, 6))
        per_place = model.log_prob(items, 0.6, decoded.order).per_place
        torch.testing.assert_close(decoded.log_probs, per_place.detach(), atol=1e-10, rtol=0)
    assert torch.equal(
        model.decode(items, 0.6, uniform=uniform, forced_order=forced, forced_places=0, engine=engine).order,
        model.decode(items, 0.6, uniform=uniform, engine=engine).order,
    )


@pytest.mark.parametrize("places", [-1, 7])
def test_bad_forced_places(make_model, places):
    order = torch.tensor([[1, 3, 2, 0, 4, 5]])
    with pytest.raises(ValueError, match=f"forced_places must be from 0 to 6 and go with a forced_order, got {places}"):
        make_model("pointer").decode(torch.randn(1, 6, 2), 0.6, forced_order=order, forced_places=places)
    with pytest.raises(ValueError, match="forced_places must be from 0 to 6 and go with a forced_order, got 2"):
        make_model("pointer").decode(torch.randn(1, 6, 2), 0.6, forced_places=2)


def test_bad_drafts(make_model):
    model, items = make_model("pointer"), torch.randn(1, 4, 2)
    with pytest.raises(
        ValueError, match=r"draft must be a \(1, 4\) tensor of int64, got \(1, 3\) int64; an order over slots is wanted"
    ):
        model.decode(items, 0.6, draft=torch.tensor([[1, 2, 0]]))
    with pytest.raises(ValueError, match="draft must hold each of 0 to 3 once per row"):
        model.decode(items, 0.6, draft=torch.tensor([[1, 3, 2, 1]]))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("B", "N"), [(0, 3), (3, 1), (5, 9), (2, 64), (3, 65), (2, 200)])
def test_encode_is_the_models_encoder(make_model, B, N, dtype, norm_first):
    torch.manual_seed(6)
    model = make_model("pointer", dtype, norm_first=norm_first)
    weights = model.packed_weights()
    x = torch.randn(B, N, model.config.d_model, dtype=dtype)
    for mask in (torch.ones(B, N, dtype=torch.bool), torch.rand(B, N) < 0.7):
        x_padded = x.masked_fill(~mask[..., None], torch.nan)
        attended = (mask | ~mask.any(1, keepdim=True))[:, None, None]
        wanted = x.masked_fill(~mask[..., None], 0.0)
        for layer in model.encoder_layers:
            wanted = layer(wanted, attended)
        wanted = model.encoder_norm(wanted).masked_fill(~mask[..., None], 0.0).detach()
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        for encode in (ops.encode, ops.encode_reference):
            got = encode(weights.encoder._replace(packed=None), x_padded, mask)
            torch.testing.assert_close(got, wanted, atol=tolerance, rtol=0)


def test_encode_gives_a_row_the_same_bits_in_any_batch(make_model):
    torch.manual_seed(8)
    model = make_model("pointer")
    weights = model.packed_weights()
    x, mask = torch.randn(40, 9, model.config.d_model), torch.rand(40, 9) < 0.8

    def encode(rows: slice) -> torch.Tensor:
        return ops.encode(weights.encoder, x[rows], mask[rows])

    together = encode(slice(None))
    if weights.encoder.packed.numel() == 0:
        pytest.skip("the plain-torch reference rounds by batch size")
    for row in range(0, 40, 7):
        assert torch.equal(encode(slice(row, row + 1)), together[row : row + 1])
    assert torch.equal(torch.cat((encode(slice(0, 13)), encode(slice(13, 40)))), together)


def test_encode_opcheck_and_errors(make_model):
    model = make_model("pointer")
    weights = [weight.detach() for weight in model.packed_weights().encoder.weights]
    encoder = ops.Transformer(weights, None, model.config.heads, True)
    x, mask = torch.randn(2, 5, model.config.d_model), torch.ones(2, 5, dtype=torch.bool)
    torch.library.opcheck(torch.ops.softrank_ext.encode, (*encoder, x, mask))
    torch.library.opcheck(torch.ops.softrank_ext.pack_encoder, (weights,))
    with pytest.raises(ValueError, match="weights must be 12 tensors per layer and 2 of the final norm, got 3"):
        ops.encode(encoder._replace(weights=weights[:3]), x, mask)
    with pytest.raises(ValueError, match=r"x must be a \(B, N, D\) tensor of float32 or float64, got \(2, 5\)"):
        ops.encode(encoder, x[..., 0], mask)
    with pytest.raises(ValueError, match="mask must be a bool tensor of the shape of x's slots"):
        ops.encode(encoder, x, mask[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 1, 1), (9, 24, 25), (130, 33, 70), (0, 8, 3)])
def test_project_is_a_product(dtype, rows, inputs, outputs):
    torch.manual_seed(9)
    x, weight = torch.randn(2, rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
    wanted = (x.double() @ weight.double().T).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    for packed in (None, ops.pack_projection(weight)):
        torch.testing.assert_close(ops.project(x, weight, packed=packed), wanted, atol=tolerance, rtol=0)
    torch.testing.assert_close(ops.project_reference(x, weight, None), wanted, atol=tolerance, rtol=0)


@needs_compiled
def test_project_gives_a_row_the_same_bits_in_any_batch():
    torch.manual_seed(10)
    x, weight = torch.randn(50, 7, 24), torch.randn(25, 24)
    together = ops.project(x, weight)
    for row in range(50):
        assert torch.equal(ops.project(x[row : row + 1], weight), together[row : row + 1])


def test_project_opcheck_and_errors():
    x, weight = torch.randn(2, 5, 8), torch.randn(3, 8)
    torch.library.opcheck(torch.ops.softrank_ext.project, (x, weight, None))
    torch.library.opcheck(torch.ops.softrank_ext.pack_projection, (weight,))
    with pytest.raises(ValueError, match=r"weight must be \(outputs, 8\) torch.float32 on cpu to fit x, got \(8, 3\)"):
        ops.project(x, weight.T)
    with pytest.raises(ValueError, match=r"x must be a \(B, N, D\) tensor of float32 or float64, got \(2, 5\)"):
        ops.project(x[..., 0], weight)


@needs_compiled
def test_project_refuses_the_packing_of_another_weight():
    x = torch.randn(2, 5, 8)
    with pytest.raises(RuntimeError, match="packed must be what pack_projection returned for this weight, "):
        ops.project(x, torch.randn(3, 8), packed=ops.pack_projection(torch.randn(40, 8)))


class Prediction(NamedTuple):
    """The arguments of predict_order before the choices."""

    encoder: ops.Transformer
    decoder: ops.Transformer
    inputs: ops.PredictionInputs

    def changed(self, part: str, **fields: object) -> "Prediction":
        return self._replace(**{part: getattr(self, part)._replace(**fields)})

    def flat(self) -> tuple[object, ...]:
        return *self.encoder, *self.decoder, *self.inputs


@torch.no_grad()
def make_prediction(model, order: Tensor, mask: Tensor, t: float | Tensor) -> Prediction:
    """A prediction for random items; weights as lists, and not packed."""
    weights, embedded = model.packed_weights(), model.embed(torch.randn(*order.shape, 2), None)
    head, head_bias = weights.head, None
    if head is None:
        head, head_bias = (part.detach() for part in model.head(embedded, model._positions(embedded, mask)))
    encoder, decoder = (
        part._replace(weights=[weight.detach() for weight in part.weights], packed=None)
        for part in (weights.encoder, weights.decoder)
    )
    places = sine_cosine(order.shape[1], model.config.d_model, embedded)
    time, start = model._time(t, embedded).detach(), model.start.detach()
    inputs = ops.PredictionInputs(embedded, order, time, start, places, head, head_bias, None, mask)
    return Prediction(encoder, decoder, inputs)


@pytest.mark.parametrize("head", DECODER_HEADS)
@pytest.mark.parametrize("t", [0.6, torch.tensor([0.2, 0.4, 0.6, 0.8])], ids=["one time", "times"])
def test_predict_order_is_arranging_encoding_and_decoding(make_model, head, t):
    torch.manual_seed(12)
    model, choices = make_model(head), ops.Choices(uniform=torch.rand(4, 7))
    order = random_orders(4, 7)
    mask = torch.arange(7) < torch.tensor([7, 4, 1, 6])[:, None]
    prediction = make_prediction(model, order, mask, t)
    with torch.no_grad():
        arranged = arrange(prediction.inputs.embedded, order).masked_fill(~mask[..., None], 0.0)
        memory = model.encode(arranged, t, mask)
        wanted = model.decode(arranged, t, mask, uniform=choices.uniform, is_embedded=True, engine=ENGINES[1])
    for prepare in (ops.prepare_decoder, ops.prepare_decoder_reference):
        inputs = prepare(prediction.encoder, prediction.inputs)
        torch.testing.assert_close(inputs.memory, memory, atol=1e-5, rtol=0)
        decoded = ops.decode_order(prediction.decoder, inputs, choices)
        assert torch.equal(decoded.order, wanted.order)
    for predict in (ops.predict_order, ops.predict_order_reference):
        predicted, log_probs, _ = predict(*prediction, choices)
        assert torch.equal(predicted, wanted.order)
        torch.testing.assert_close(log_probs, wanted.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", DECODER_HEADS)
def test_predict_order_opcheck(make_model, head):
    model, mask = make_model(head), torch.ones(2, 5, dtype=torch.bool)
    prediction = make_prediction(model, random_orders(2, 5), mask, 0.4)
    torch.library.opcheck(torch.ops.softrank_ext.predict_order, prediction.flat())
    choices = ops.Choices(uniform=torch.rand(2, 5), temperature=0.9, draft=random_orders(2, 5))
    torch.library.opcheck(torch.ops.softrank_ext.predict_order, (*prediction.flat(), *choices))
    torch.library.opcheck(torch.ops.softrank_ext.prepare_decoder, (*prediction.encoder, *prediction.inputs))


@pytest.mark.parametrize(
    ("part", "field", "wrong", "message"),
    [
        ("inputs", "embedded", torch.zeros(2, 5), r"embedded must be a \(B, N, D\) tensor of float32 or float64, got"),
        ("inputs", "order", torch.full((2, 5), 5), "order must hold items from 0 to 4, got 5"),
        ("inputs", "order", torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 2, 4]]), "order must hold each item once, row 1"),
        ("inputs", "order", torch.zeros(2, 4).long(), r"order must be a \(2, 5\) tensor of int64, got \(2, 4\)"),
        ("inputs", "time", torch.zeros(3, 1, 16), r"time must be a \(1, 1, 16\) tensor of float32, got \(3, 1, 16\)"),
        ("inputs", "start", torch.zeros(2, 16), r"start must be a \(16,\) tensor of float32, got \(2, 16\)"),
        (
            "inputs",
            "places",
            torch.zeros(5, 16).double(),
            r"places must be a \(5, 16\) tensor of float32, got .*float64",
        ),
        (
            "inputs",
            "head",
            torch.zeros(16, 16),
            r"head must be a \(17, 16\) tensor of float32, .*; or give a head_bias",
        ),
        ("inputs", "head_bias", torch.zeros(2, 5), r"head must be a \(1, 5, 16\) tensor of float32, got \(17, 16\)"),
        ("inputs", "mask", torch.ones(2, 5), "mask must be a bool tensor of the shape of embedded's slots"),
        ("encoder", "heads", 3, "heads must divide D = 16, got 3"),
        ("decoder", "weights", [], "weights must be 20 tensors per layer and 2 of the final norm, got 0"),
    ],
)
def test_errors_of_predict_order(make_model, part, field, wrong, message):
    model, mask = make_model("pointer"), torch.ones(2, 5, dtype=torch.bool)
    prediction = make_prediction(model, random_orders(2, 5), mask, 0.4)
    with pytest.raises(ValueError, match=message):
        ops.predict_order(*prediction.changed(part, **{field: wrong}))
    if part != "decoder":
        with pytest.raises(ValueError, match=message):
            ops.prepare_decoder(*prediction.changed(part, **{field: wrong})[::2])


@needs_compiled
def test_predict_order_reads_nothing_out_of_bounds(make_model):
    model, mask = make_model("pointer"), torch.ones(2, 5, dtype=torch.bool)
    prediction = make_prediction(model, random_orders(2, 5), mask, 0.4)
    for field, wrong, message in (
        ("order", torch.full((2, 5), 5), "order must hold items from 0 to 4, got 5"),
        (
            "order",
            torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 2, 4]]),
            "order must hold each item once, row 1 has 2 twice",
        ),
        ("order", torch.zeros(2, 4, dtype=torch.int64), r"order must be \(2, 5\), got \(2, 4\)"),
        ("time", torch.zeros(2, 5, 16), r"time must be \(2, 1, 16\), got \(2, 5, 16\)"),
        ("start", torch.zeros(16).double(), "start has the wrong dtype"),
        ("start", torch.zeros(1, 16), r"start must be \(16\), got \(1, 16\)"),
        ("places", torch.zeros(4, 16), r"places must be \(5, 16\), got \(4, 16\)"),
        ("head", model.head.weight.detach(), r"head must be \(D \+ 1, D\)"),
        ("mask", torch.ones(2, 5), "mask has the wrong dtype"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.softrank_ext.predict_order(*prediction.changed("inputs", **{field: wrong}).flat())
    for field, wrong, message in (
        ("uniform", torch.rand(2, 4), r"uniform must be \(2, 5\), got \(2, 4\)"),
        ("uniform", torch.rand(2, 5).double(), "uniform has the wrong dtype"),
        ("forced_order", torch.full((2, 5), 7), "forced_order must hold slots from 0 to 4, got 7"),
        ("draft", torch.full((2, 5), -1), "draft must hold slots from 0 to 4, got -1"),
        ("temperature", 0.0, "temperature must be positive and finite in the dtype of the scores, got 0"),
        ("before", torch.ones(2, 5, 4) > 0, r"before must be \(2, 5, 5\), got \(2, 5, 4\)"),
        ("allowed", torch.ones(2, 5, 5), "allowed has the wrong dtype"),
        ("group", torch.ones(2, 5), "group has the wrong dtype"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.softrank_ext.predict_order(*prediction.flat(), *ops.Choices(**{field: wrong}))


@needs_compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_weights_stand_for_the_list(make_model, dtype):
    torch.manual_seed(13)
    model, mask = make_model("pointer").to(dtype), torch.ones(2, 5, dtype=torch.bool)
    listed = make_prediction(model, random_orders(2, 5), mask, 0.4)
    weights = model.packed_weights()
    packed = listed.changed("encoder", weights=[], packed=weights.encoder.packed)
    packed = packed.changed("decoder", weights=[], packed=weights.decoder.packed)
    packed = packed.changed("inputs", packed_head=weights.packed_head)
    wanted = ops.predict_order(*listed)
    for prediction in (packed, packed.changed("encoder", weights=listed.encoder.weights)):
        got = ops.predict_order(*prediction)
        assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))
    with pytest.raises(RuntimeError, match="weights must be 12 tensors per layer and 2 of the final norm, got 0"):
        torch.ops.softrank_ext.predict_order(*packed.changed("encoder", packed=None).flat())


def _header(packed: Tensor) -> Tensor:
    """The eight numbers that packed weights begin with, to be changed in place."""
    return packed.view(torch.int64)[:8]


def _changed(packed: Tensor) -> Tensor:
    """With another last number, at a place in memory where no whole tensor can have been: it begins within a line."""
    return torch.cat((packed[:3], packed[:-1], packed[-1:] + 1))[3:]


@needs_compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kernel_checks_the_header_of_packed_weights(make_model, dtype):
    model, mask = make_model("pointer").to(dtype), torch.ones(2, 5, dtype=torch.bool)
    weights, inputs = model.packed_weights(), model.decoder_inputs(torch.randn(2, 5, 2, dtype=dtype), 0.4)
    encoder, decoder = (part._replace(weights=[]) for part in (weights.encoder, weights.decoder))
    cache = ops.open_decoder(weights.decoder, inputs.memory, mask)
    lengths = torch.zeros(2, dtype=torch.int64)
    kernels = torch.ops.softrank_ext
    prediction = make_prediction(model, random_orders(2, 5), mask, 0.4)
    calls = {
        "encode": (encoder, "encoder", lambda own: kernels.encode(*own, inputs.memory, mask)),
        "prepare_decoder": (encoder, "encoder", lambda own: kernels.prepare_decoder(*own, *prediction.inputs)),
        "predict_order": (
            decoder, "decoder", lambda own: kernels.predict_order(*encoder, *own, *prediction.inputs)
        ),
        "decode_order": (decoder, "decoder", lambda own: kernels.decode_order(*own, *inputs)),
        "open_decoder": (decoder, "decoder", lambda own: kernels.open_decoder(*own, inputs.memory, mask)),
        "advance_decoder": (
            decoder, "decoder", lambda own: kernels.advance_decoder(*own, cache, inputs.tokens, lengths, mask)
        ),
        "project": (
            encoder._replace(packed=weights.packed_head), "projection",
            lambda own: kernels.project(inputs.memory, weights.head, own.packed),
        ),
    }  # fmt: skip
    others = {"encoder": decoder.packed, "decoder": encoder.packed, "projection": encoder.packed}
    other_dtype = torch.float32 if dtype == torch.float64 else torch.float64
    for name, (own, kind, call) in calls.items():
        call(own)
        for label, wrong, message in (
            ("kind", others[kind], f"packed must be the weights of an? {kind}, got those of an? (en|de)coder"),
            ("end", own.packed[:-16], r"packed must be whole, got \d+ of \d+ numbers"),
            ("start", own.packed[16:], "packed must be packed weights, got a tensor without their header"),
            ("nothing", own.packed[:0], "packed must be packed weights, got 0 numbers, too few for their header"),
            ("converted", own.packed.to(other_dtype), "packed must be packed weights, got a tensor without"),
            ("mark", (0, 7), "packed must be packed weights, got a tensor without their header"),
            ("version", (1, 99), "packed must be packed weights of version 2, got version 99: pack them again"),
            ("sizes", (4, 3), r"packed must (hold|be what)"),
            ("number", _changed(own.packed), "packed must hold the numbers that were packed"),
        ):
            if isinstance(wrong, tuple):
                at, value = wrong
                if label == "sizes" and kind == "projection":
                    at = 5
                wrong = own.packed.clone()
                _header(wrong)[at] = value
            with pytest.raises(RuntimeError, match=message):
                call(own._replace(packed=wrong))
                pytest.fail(f"{name} takes weights with a wrong {label}")


@needs_compiled
def test_packed_weights_of_another_width_or_list_are_refused(make_model):
    model, mask = make_model("pointer"), torch.ones(2, 5, dtype=torch.bool)
    encoder = model.packed_weights().encoder
    with pytest.raises(
        RuntimeError, match="weights of an encoder must have the width of what they work on, 24, got 16"
    ):
        torch.ops.softrank_ext.encode(*encoder._replace(weights=[]), torch.zeros(2, 5, 24), mask)
    with pytest.raises(RuntimeError, match="packed must have the dtype of what it works on"):
        torch.ops.softrank_ext.encode(*encoder._replace(weights=[]), torch.zeros(2, 5, 16).double(), mask)
    shorter = encoder.weights[:12] + encoder.weights[-2:]
    with pytest.raises(
        RuntimeError, match=r"packed must be made of the weights in the list: 2 layers .* got a list of 1"
    ):
        ops.encode(encoder._replace(weights=shorter), torch.zeros(2, 5, 16), mask)
    broken = [*encoder.weights[:2], encoder.weights[2][:5], *encoder.weights[3:]]
    with pytest.raises(RuntimeError, match=r"weights of self_qkv_weight must be \(48, 16\), got \(5, 16\)"):
        ops.pack_encoder(broken)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_kernels_and_reference_have_the_weights_of_a_layer_in_one_order(kind):
    assert tuple(torch.ops.softrank_ext.layer_weight_names(kind).split(",")) == ops.layer_weight_names(kind)


@needs_compiled
def test_a_model_has_the_same_bits_in_any_batch(make_model):
    """The pointer's keys too: torch's own product rounds by batch size."""
    torch.manual_seed(11)
    model, items = make_model("pointer"), torch.randn(40, 9, 2)
    embedded = model.embed(items)
    together = model.decode_embedded(embedded, 0.4).log_probs
    for row in range(40):
        assert torch.equal(model.decode_embedded(embedded[row : row + 1], 0.4).log_probs, together[row : row + 1])
