"""A GPU that is none: tensors that say they are on cuda:0 and keep their numbers on the CPU.

Every op that torch would send to a GPU comes by here. It is counted as a launch, a CPU tensor beside one of these is an
error as on a GPU, and whatever makes the host wait for the device is counted with the line of the package it is in.
The package's own CUDA kernels are run by their CPU twins; `test_cuda_decoder.py` runs their own source.
"""

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from softrank_ext.ops.library import DEFAULT_KERNELS

CUDA = torch.device("cuda", 0)
# Launches of the package's own CUDA ops; decode_order makes keys of the memory before it decodes.
OWN_LAUNCHES = {
    "reflect": 1, "decode_chamber": 1, "pick": 1, "random_uniform": 1, "random_normal": 1, "decode_order": 2,
    "pack_decoder": 10,
}  # fmt: skip
NO_LAUNCH = {
    "view", "_unsafe_view", "expand", "slice", "select", "transpose", "t", "permute", "unsqueeze", "squeeze", "detach",
    "alias", "split", "split_with_sizes", "chunk", "unbind", "as_strided", "reshape", "_reshape_alias", "unfold",
    "lift_fresh", "diagonal", "is_same_size", "_local_scalar_dense", "empty", "empty_like", "new_empty",
    "empty_strided", "new_empty_strided", "set", "resize",
}  # fmt: skip
WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique_dim", "_unique2", "bincount"}
INDEXING = {"index", "index_put", "_index_put_impl"}


class Counts:
    """Launches by op, and waits by what caused them and where."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def wait(self, what: str, number: int = 1) -> None:
        self.waits[f"{what} in {_line_of_package()}"] += number


counts = Counts()


class FakeCuda(Tensor):
    """A tensor on the GPU that is none; `inner` is the CPU tensor behind it."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "FakeCuda":
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=CUDA, requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FakeCuda({self.inner!r})"

    def tolist(self) -> Any:
        counts.wait("tolist")
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Tensors that are made on the GPU, or copied to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """Copies of Python numbers, which do not pass the dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device).type == "cuda":
            del kwargs["device"]
            if isinstance(args[0], FakeCuda):
                return args[0] if kwargs.get("dtype") is None else args[0].to(kwargs["dtype"])
            counts.wait("a copy of numbers to the GPU")
            return FakeCuda(func(*args, **kwargs))
        if func is Tensor.new_tensor and isinstance(args[0], FakeCuda):
            counts.wait("a copy of numbers to the GPU")
            return FakeCuda(torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype))
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], FakeCuda):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list) for part in parts):
                counts.wait("an index by a list")
                made = tuple(FakeCuda(torch.tensor(part)) if isinstance(part, list) else part for part in parts)
                args = (args[0], made, *args[2:])
        return func(*args, **kwargs)


def _line_of_package() -> str:
    for frame in reversed(traceback.extract_stack()):
        if "/softrank_ext/" in frame.filename:
            return f"{frame.filename.rsplit('/softrank_ext/', 1)[1]}:{frame.lineno}"
    return "the test"


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name.split("::")[1]
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, Tensor)]
    ours = [value for value in tensors if isinstance(value, FakeCuda)]
    to_device = next((value for value in flat if isinstance(value, torch.device)), None)
    if not ours and (to_device is None or to_device.type != "cuda"):
        return func(*args, **kwargs)
    if func.namespace == "softrank_ext":
        if name not in OWN_LAUNCHES:
            with _Factories():
                return DEFAULT_KERNELS[name](*args, **kwargs)
        counts.launches[name] += OWN_LAUNCHES[name]
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
        if any(given.get(rule) is not None for rule in ("before", "allowed", "group")):
            counts.wait("rules", max(given["mask"].shape[1] - 1, 1))  # as test_cuda_decoder.py counts them
    else:
        cpu = [value for value in tensors if not isinstance(value, FakeCuda)]
        _count(func, name.rstrip("_"), args, cpu, to_device, bool(kwargs.get("non_blocking", False)))
    on_cpu = [_on_cpu(value) for value in flat]
    cpu_args, cpu_kwargs = pytree.tree_unflatten(on_cpu, spec)
    out = _own_op(func, name, cpu_args) if func.namespace == "softrank_ext" else func(*cpu_args, **cpu_kwargs)
    if to_device is not None and to_device.type == "cpu":
        return out
    wrappers = {id(value.inner): value for value in ours}  # what is changed in place stays itself

    def wrapped(value: Any) -> Any:
        if type(value) is not Tensor:
            return value
        return wrappers[id(value)] if id(value) in wrappers else FakeCuda(value)

    return pytree.tree_map(wrapped, out)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, FakeCuda):
        return value.inner
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _own_op(func: Any, name: str, args: Any) -> Any:
    """The CPU's kernel; where it raises for a NaN, the GPU's marks it."""
    try:
        return func(*args)
    except RuntimeError as error:
        if "NaN" not in str(error) or name not in ("pick", "decode_order"):
            raise
    if name == "pick":
        return args[1].to(torch.int8).argmax(1), torch.full_like(args[0][:, 0], torch.nan)
    B, N = args[10].shape
    return torch.arange(N).expand(B, N).clone(), torch.full_like(args[4][..., 0], torch.nan), torch.zeros(B, 2).long()


def _count(
    func: Any, name: str, args: Any, cpu: list[Tensor], to_device: torch.device | None, is_asynchronous: bool
) -> None:
    is_copy = name in ("_to_copy", "to", "copy")
    is_index = name in INDEXING
    if not is_copy and not is_index and any(tensor.ndim > 0 for tensor in cpu):
        raise RuntimeError(f"{func}: expected all tensors on cuda:0, got one on the CPU in {_line_of_package()}")
    is_from_device = to_device is not None and to_device.type == "cpu"
    if is_copy and (is_from_device or (cpu and not is_asynchronous)):
        counts.wait("a copy between CPU and GPU")
    if is_index:
        indices = [index for index in args[1] if index is not None]
        if any(not isinstance(index, FakeCuda) for index in indices):
            counts.wait("an index on the CPU")
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            counts.wait("an index by a mask")
    if name in WAITS:
        counts.wait(name)
    if name not in NO_LAUNCH:
        counts.launches[name] += 1


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    """Inside, `device="cuda"` makes tensors on the GPU that is none."""
    lazy_init, mem_get_info = torch.cuda._lazy_init, torch.cuda.mem_get_info
    torch.cuda._lazy_init = lambda: None
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # `module.to` cannot swap what is behind them
    torch.cuda.mem_get_info = lambda device=None: (2**33, 2**34)
    try:
        with _Factories(), _FromNumbers():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        torch.cuda._lazy_init, torch.cuda.mem_get_info = lazy_init, mem_get_info


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Counts of what happens inside."""
    global counts
    before, counts = counts, Counts()
    try:
        yield counts
    finally:
        counts = before


def on_fake_cuda(value: Any) -> Any:
    """A tensor or module on the GPU that is none; a module is changed in place."""
    if isinstance(value, Tensor):
        return value if isinstance(value, FakeCuda) else FakeCuda(value)
    for module in value.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not isinstance(parameter, FakeCuda):
                made = nn.Parameter(FakeCuda(parameter.detach()), requires_grad=parameter.requires_grad)
                module._parameters[name] = made
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and not isinstance(buffer, FakeCuda):
                module._buffers[name] = FakeCuda(buffer)
    return value
