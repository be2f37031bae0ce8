"""A model that the kernels do not compute decodes by its own modules, says why, and has the law of its `log_prob`."""

import copy
import warnings
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from testing.frequencies import chi_square
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from softrank_ext import Engine, IncrementalDecoder, sample
from softrank_ext.model import DecoderLayer, EncoderLayer, SoftRankModel, TimeEmbedder
from softrank_ext.model.changes import change_of
from softrank_ext.model.heads import PointerHead
from softrank_ext.sampling import beam_decode

pytestmark = pytest.mark.usefixtures("one_thread")
ORDERS = torch.tensor([[1, 3, 2, 0, 4], [4, 2, 0, 1, 3], [3, 0, 4, 1, 2]])  # padding last
MASK = torch.tensor([[True] * 5, [True, True, True, False, True], [True] * 5])


class SineLayer(EncoderLayer):
    def forward(self, x: Tensor, attended: Tensor | None) -> Tensor:
        return super().forward(x, attended).sin()


class GeluLayer(DecoderLayer):
    def forward(self, x: Tensor, memory: Tensor, attended: Tensor | None) -> Tensor:
        y = super().forward(x, memory, attended)
        return y + 3 * self.feed_out(F.gelu(self.feed_in(y)))


class FlippedHead(PointerHead):
    def forward(self, memory: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        keys, bias = super().forward(memory, positions)
        return -keys, 3 * bias


class LateTime(TimeEmbedder):
    def forward(self, index: float | Tensor) -> Tensor:
        return 5 * super().forward(index) + 1


class OtherEncode(SoftRankModel):
    def encode(self, embedded: Tensor, t: float | Tensor, mask: Tensor | None = None) -> Tensor:
        return 3 * super().encode(embedded, t, mask).cos()


class OtherScores(SoftRankModel):
    def scores(self, embedded: Tensor, t: float | Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
        return 2 * super().scores(embedded, t, order, mask).flip(2)


class Renamed(SoftRankModel):
    """Changes nothing that is computed."""

    def bytes_per_sample(self, N: int) -> int:
        return 1


def of_type(kind: type[nn.Module], part: str) -> Callable[[SoftRankModel], None]:
    """Gives a part of a model, "" for all of it, another type."""

    def change(model: SoftRankModel) -> None:
        model.get_submodule(part).__class__ = kind

    return change


def hooked(model: SoftRankModel) -> None:
    model.encoder_layers[1].feed_out.register_forward_hook(lambda module, inputs, output: output + 0.5 * output.sin())


def pre_hooked(model: SoftRankModel) -> None:
    model.decoder_norm.register_forward_pre_hook(lambda module, inputs: (inputs[0].roll(1, 2),))


def other_eps(model: SoftRankModel) -> None:
    model.decoder_layers[0].feed_norm.eps = 0.5


def pruned(model: SoftRankModel) -> None:
    prune.l1_unstructured(model.decoder_layers[1].self_qkv, "weight", amount=0.6)


def reparametrised(model: SoftRankModel) -> None:
    parametrizations.spectral_norm(model.encoder_layers[0].feed_in)


def patched(model: SoftRankModel) -> None:
    layer = model.decoder_layers[1]
    layer.forward = lambda x, memory, attended: (x + memory.mean(1, keepdim=True)).sin() * 4  # type: ignore[method-assign]


def narrowed(model: SoftRankModel) -> None:
    layer = model.encoder_layers[1]
    layer.feed_in, layer.feed_out = nn.Linear(16, 20), nn.Linear(20, 16)


def half_as_many_heads(model: SoftRankModel) -> None:
    model.decoder_layers[0].heads = 4


def post_norm(model: SoftRankModel) -> None:
    model.encoder_layers[0].norm_first = False


def without_bias(model: SoftRankModel) -> None:
    model.encoder_layers[0].self_out = nn.Linear(16, 16, bias=False)


CHANGES: dict[str, tuple[Callable[[SoftRankModel], None], str]] = {
    "layer": (of_type(SineLayer, "encoder_layers.1"), "encoder_layers.1 is a SineLayer, not a EncoderLayer"),
    "activation": (of_type(GeluLayer, "decoder_layers.0"), "decoder_layers.0 is a GeluLayer, not a DecoderLayer"),
    "head": (of_type(FlippedHead, "head"), "head is a FlippedHead, not a PointerHead"),
    "time": (of_type(LateTime, "time_embedder"), "time_embedder is a LateTime, not a TimeEmbedder"),
    "hook": (hooked, "encoder_layers.1.feed_out has a forward hook"),
    "pre-hook": (pre_hooked, "decoder_norm has a forward hook"),
    "eps": (other_eps, "decoder_layers.0.feed_norm has eps 0.5, not 1e-05"),
    "pruned": (pruned, "decoder_layers.1.self_qkv has a forward hook"),
    "spectral": (reparametrised, "encoder_layers.0.feed_in is a ParametrizedLinear, not a Linear"),
    "patched": (patched, "decoder_layers.1 has a forward of its own"),
    "width": (narrowed, r"encoder_layers.1.feed_in.weight is \(20, 16\), not \(24, 16\)"),
    "heads": (half_as_many_heads, "decoder_layers.0 has heads 4, not 2"),
    "norm": (post_norm, "encoder_layers.0 has norm_first False, not True"),
    "bias": (without_bias, "encoder_layers.0.self_out has no bias"),
    "encode": (of_type(OtherEncode, ""), "encode is overridden"),
    "scores": (of_type(OtherScores, ""), "scores is overridden"),
}  # fmt: skip


@pytest.fixture(params=CHANGES)
def changed(request, make_model) -> tuple[SoftRankModel, str]:
    model = make_model("pointer", torch.float64)
    change, reason = CHANGES[request.param]
    change(model)
    return model.double(), reason


def quiet(function: Callable[[], object]) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function()


def test_decoding_has_the_law_of_log_prob(changed, make_model):
    model, _ = changed
    torch.manual_seed(0)
    items = torch.randn(3, 5, 2, dtype=torch.float64)
    with torch.no_grad():
        wanted = model.log_prob(items, 0.4, ORDERS, MASK)
        unchanged = make_model("pointer", torch.float64).log_prob(items, 0.4, ORDERS, MASK)
    assert (wanted.total - unchanged.total).abs().max() > 0.01  # what the kernels would be off by
    got = quiet(lambda: model.decode(items, 0.4, MASK, forced_order=ORDERS))
    torch.testing.assert_close(got.log_probs, wanted.per_place, atol=1e-10, rtol=0)
    for engine in (Engine(), Engine(compiled=False), Engine(compiled=False, cache=False)):
        uniform = torch.rand(3, 5, dtype=torch.float64)
        drawn = quiet(lambda: model.decode(items, 0.4, MASK, uniform=uniform, engine=engine))  # noqa: B023
        with torch.no_grad():
            wanted = model.log_prob(items, 0.4, drawn.order, MASK)
        torch.testing.assert_close(drawn.log_probs, wanted.per_place, atol=1e-10, rtol=0)


def test_one_warning_names_the_reason_and_compiled_raises(changed):
    model, reason = changed
    items = torch.randn(3, 5, 2, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match=rf"kernels do not compute this model: {reason}") as caught:
        sample(model, items, seed=0)
        model.decode(items, 0.4)
    assert len(caught) == 1
    for call in (sample, lambda *given, engine: model.decode(*given[1:], 0.4, engine=engine)):
        with pytest.raises(ValueError, match=rf"compiled=True.*kernels do not compute this model: {reason}"):
            call(model, items, engine=Engine(compiled=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(model, items, seed=0, engine=Engine(compiled=False))  # as asked


def test_beams_and_picks_on_request_go_by_the_modules(changed):
    model, _ = changed
    torch.manual_seed(1)
    items = torch.randn(3, 5, 2, dtype=torch.float64)
    with torch.no_grad():
        table = model.scores(model.embed(items, MASK), 0.4, ORDERS, MASK)  # (B, place, slot)
    decoder = quiet(lambda: IncrementalDecoder(model, items, 0.4, MASK))
    assert_scores(decoder, table[:, 0])
    decoder.prefill(ORDERS[:, :2])
    assert_scores(decoder, table[:, 2])
    decoder.truncate(torch.tensor([1, 2, 0]))
    assert_scores(decoder, table[torch.arange(3), torch.tensor([1, 2, 0])])
    rows = torch.tensor([2, 0, 1, 1])
    decoder.select(rows)
    decoder.step(ORDERS[rows, torch.tensor([0, 1, 2, 2])])
    assert_scores(decoder, table[rows, torch.tensor([1, 2, 3, 3])])
    # A beam as wide as there are orders finds the mode.
    orders = torch.tensor(list(permutations(range(5))))
    with torch.no_grad():
        log_prob = model.log_prob(items[:1].expand(120, -1, -1), 0.4, orders).total
    found = quiet(lambda: beam_decode(model, items[:1], 0.4, 120))
    assert torch.equal(found.orders[0, 0], orders[log_prob.argmax()])
    torch.testing.assert_close(found.log_probs[0], log_prob.sort(descending=True).values, atol=1e-10, rtol=0)
    with pytest.raises(ValueError, match="kernels do not compute this model"):
        IncrementalDecoder(model, items, 0.4, engine=Engine(compiled=True))


def assert_scores(decoder: IncrementalDecoder, wanted: Tensor) -> None:
    remaining = decoder.remaining
    torch.testing.assert_close(decoder.scores[remaining], wanted[remaining], atol=1e-10, rtol=0)


def test_draws_of_a_changed_model_follow_its_probabilities(make_model):
    model = make_model("pointer")
    hooked(model)
    orders, draws = torch.tensor(list(permutations(range(3)))), 4000
    torch.manual_seed(2)
    items = torch.randn(1, 3, 2)
    with torch.no_grad():
        probabilities = model.log_prob(items.expand(6, -1, -1), 1.0, orders).total.double().exp()
    uniform = torch.rand(draws, 3, generator=torch.Generator().manual_seed(3))
    drawn = quiet(lambda: model.decode(items.expand(draws, -1, -1), 1.0, uniform=uniform)).order
    counts = (drawn[:, None] == orders).all(2).sum(0)
    assert chi_square(counts, probabilities) > 1e-4
    with torch.no_grad():
        unchanged = make_model("pointer").log_prob(items.expand(6, -1, -1), 1.0, orders).total.double().exp()
    assert chi_square(counts, unchanged) < 1e-6


def test_what_changes_nothing_is_left_to_the_kernels(make_model):
    for head in ("pointer", "linear"):
        model = make_model(head)
        assert change_of(model) is None and change_of(copy.deepcopy(model)) is None
        model.__class__ = Renamed
        model.register_forward_hook(lambda *_: None)  # of forward, which no decoding calls
        model.embedder.register_forward_hook(lambda module, inputs, output: output + 1)  # embedders are always called
        assert change_of(model) is None
        items = torch.randn(3, 5, 2)
        with torch.no_grad():
            wanted = model.log_prob(items, 0.4, ORDERS).per_place
        got = model.decode(items, 0.4, forced_order=ORDERS, engine=Engine(compiled=True)).log_probs
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)


def test_hooks_of_all_modules_are_seen(make_model):
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        assert change_of(make_model("pointer")) == "all modules have a forward hook"
    finally:
        handle.remove()
    assert change_of(make_model("pointer")) is None


def test_methods_of_one_model_and_its_start_are_seen(make_model):
    model = make_model("linear")
    model._positions = lambda embedded, mask: torch.zeros(1, 5, dtype=torch.int64)
    assert change_of(model) == "_positions is overridden"
    model = make_model("pointer")
    parametrize.register_parametrization(model, "start", nn.Tanh())
    assert change_of(model) == "start is no parameter of the model"
    model = make_model("pointer")
    model.decoder_layers.append(nn.Identity())
    assert change_of(model) == "decoder_layers.2 is a Identity, not a DecoderLayer"
    model = make_model("pointer")
    model.decoder_norm.double()
    assert change_of(model) == "decoder_norm.weight is torch.float64 on cpu, not torch.float32 on cpu"


def test_dropout_does_not_reach_a_changed_model(make_model):
    model = make_model("pointer", torch.float64)
    hooked(model)
    items = torch.randn(3, 5, 2, dtype=torch.float64)
    wanted = quiet(lambda: model.decode(items, 0.4, forced_order=ORDERS)).log_probs
    model.train()
    got = quiet(lambda: model.decode(items, 0.4, forced_order=ORDERS)).log_probs
    assert torch.equal(got, wanted) and all(module.training for module in model.modules())


def test_kernel_inputs_of_a_changed_model_are_refused(make_model):
    model = make_model("pointer")
    hooked(model)
    with pytest.raises(ValueError, match=r"decoder_inputs.*kernels do not compute this model: encoder_layers.1"):
        model.decoder_inputs(torch.randn(3, 5, 2), 0.4)
    packed = model.packed_weights()
    assert packed.changed == "encoder_layers.1.feed_out has a forward hook" and packed.decoder.weights == []
