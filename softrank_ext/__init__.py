"""softrank_ext: learn and sample distributions over permutations by Soft-Rank Diffusion."""

from softrank_ext import ops
from softrank_ext._libraries import build_info, installed_version, load_libraries

load_libraries()

from softrank_ext import bridge, noise, permutations  # noqa: E402
from softrank_ext.ops import decode_chamber, pick, reflect  # noqa: E402

__version__ = installed_version()
__all__ = [
    "bridge",
    "build_info",
    "decode_chamber",
    "noise",
    "ops",
    "permutations",
    "pick",
    "reflect",
]
