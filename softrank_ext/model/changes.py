"""Whether a model is what the kernels compute. They read its weights and call none of its modules, so that a layer of
another type, a hook, another eps or a method of a subclass would go unnoticed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from softrank_ext import ops
from softrank_ext.model.heads import LinearHead, PointerHead
from softrank_ext.model.layers import TIME_FEATURES, DecoderLayer, EncoderLayer, TimeEmbedder

if TYPE_CHECKING:
    from softrank_ext.model.model import SoftRankModel

_METHODS = ("encode", "scores", "decoder_scores", "_time", "_positions", "_drop")
_EPS = 1e-5  # of the kernels' norms
_Shapes = dict[str, tuple[int, ...]]


def change_of(model: "SoftRankModel") -> str | None:
    """What the kernels do not compute of a model with a decoder, or None: "decoder_norm has eps 0.1, not 1e-05".

    Types of modules are compared exactly, shapes one by one. The embedder is not looked at: it is always called.
    """
    return next(_changes(model), None)


def _changes(model: "SoftRankModel") -> Iterator[str]:
    from softrank_ext.model.model import SoftRankModel

    for name in _METHODS:
        if name in model.__dict__ or getattr(type(model), name) is not getattr(SoftRankModel, name):
            yield f"{name} is overridden"
    if global_hooks._global_forward_hooks or global_hooks._global_forward_pre_hooks:
        yield "all modules have a forward hook"
    config = model.config
    D, hidden = config.d_model, config.feed_forward
    start = model._parameters.get("start")
    if start is None:
        yield "start is no parameter of the model"
        return
    modules = model._modules
    expected: list[tuple[str, nn.Module | None, type[nn.Module], _Shapes]] = [
        ("time_embedder", modules["time_embedder"], TimeEmbedder, {}),
        *_linears("time_embedder", modules["time_embedder"], {"hidden": (D, TIME_FEATURES), "out": (D, D)}),
    ]
    kinds: tuple[tuple[str, type[nn.Module]], ...] = (("encoder", EncoderLayer), ("decoder", DecoderLayer))
    for kind, layer_type in kinds:
        shapes = ops.weight_shapes(kind, D, hidden)
        for number, layer in (modules[f"{kind}_layers"] or nn.ModuleList())._modules.items():
            where = f"{kind}_layers.{number}"
            yield from _module_changes(where, layer, layer_type, {}, start)
            for name, wanted in (("heads", config.heads), ("norm_first", config.norm_first)):
                if getattr(layer, name, None) != wanted:
                    yield f"{where} has {name} {getattr(layer, name, None)}, not {wanted}"
            own = layer._modules if layer is not None else {}
            for part, weight, bias in zip(ops.LAYER_PARTS[kind], shapes[::2], shapes[1::2], strict=True):
                part_type = nn.LayerNorm if part.endswith("norm") else nn.Linear
                expected.append((f"{where}.{part}", own.get(part), part_type, {"weight": weight, "bias": bias}))
        norm = f"{kind}_norm"
        expected.append((norm, modules[norm], nn.LayerNorm, {"weight": (D,), "bias": (D,)}))
    if config.head == "pointer":
        expected.append(("head", modules["head"], PointerHead, {"weight": (D, D), "slot_weight": (D,)}))
    else:
        size = config.max_items or 0
        expected.append(("head", modules["head"], LinearHead, {"weight": (size, D), "bias": (size,)}))
    for where, module, wanted_type, wanted_shapes in expected:
        yield from _module_changes(where, module, wanted_type, wanted_shapes, start)


def _linears(
    where: str, module: nn.Module | None, shapes: dict[str, tuple[int, int]]
) -> Iterator[tuple[str, nn.Module | None, type[nn.Module], _Shapes]]:
    own = module._modules if module is not None else {}
    for name, shape in shapes.items():
        yield f"{where}.{name}", own.get(name), nn.Linear, {"weight": shape, "bias": shape[:1]}


def _module_changes(
    where: str, module: nn.Module | None, wanted_type: type[nn.Module], shapes: _Shapes, like: Tensor
) -> Iterator[str]:
    """What differs of one module; its parameters are to have these shapes, and the dtype and device of `like`."""
    if type(module) is not wanted_type or module is None:
        yield f"{where} is a {type(module).__name__}, not a {wanted_type.__name__}"
        return
    if "forward" in module.__dict__:
        yield f"{where} has a forward of its own"
    if module._forward_hooks or module._forward_pre_hooks:
        yield f"{where} has a forward hook"
    if wanted_type is nn.LayerNorm and module.__dict__["eps"] != _EPS:
        yield f"{where} has eps {module.eps}, not {_EPS}"
    parameters = module._parameters
    for name, shape in shapes.items():
        parameter = parameters.get(name)
        if parameter is None:
            yield f"{where} has no {name}"
        elif parameter.shape != shape:
            yield f"{where}.{name} is {tuple(parameter.shape)}, not {shape}"
        elif parameter.dtype != like.dtype or parameter.device != like.device:
            own, wanted = (f"{tensor.dtype} on {tensor.device}" for tensor in (parameter, like))
            yield f"{where}.{name} is {own}, not {wanted}"
        elif type(parameter) not in (nn.Parameter, Tensor) and is_traceable_wrapper_subclass(parameter):
            yield f"{where}.{name} is a {type(parameter).__name__}"
