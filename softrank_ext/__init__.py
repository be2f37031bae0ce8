"""softrank_ext: learn and sample distributions over permutations by Soft-Rank Diffusion."""

from softrank_ext import ops
from softrank_ext._libraries import build_info, installed_version, load_libraries

load_libraries()

from softrank_ext import baselines, bridge, checkpoint, distributions, metrics, noise, permutations  # noqa: E402
from softrank_ext.answers import calibration, consensus, pairwise, rank_interval, top_k  # noqa: E402
from softrank_ext.constraints import Constraints  # noqa: E402
from softrank_ext.incremental import IncrementalDecoder  # noqa: E402
from softrank_ext.likelihood import LikelihoodEstimate, log_likelihood  # noqa: E402
from softrank_ext.model import EMBEDDERS, PRESETS, SoftRankConfig, SoftRankModel  # noqa: E402
from softrank_ext.ops import decode_chamber, pick, reflect  # noqa: E402
from softrank_ext.sampler import Samples, sample  # noqa: E402
from softrank_ext.tasks.embedders import TASK_EMBEDDERS  # noqa: E402

EMBEDDERS.update(TASK_EMBEDDERS)
checkpoint.MODEL_TYPES.update(baselines.MODEL_TYPES)

__version__ = installed_version()
__all__ = [
    "PRESETS",
    "Constraints",
    "IncrementalDecoder",
    "LikelihoodEstimate",
    "Samples",
    "SoftRankConfig",
    "SoftRankModel",
    "bridge",
    "build_info",
    "calibration",
    "checkpoint",
    "consensus",
    "decode_chamber",
    "distributions",
    "log_likelihood",
    "metrics",
    "noise",
    "ops",
    "pairwise",
    "permutations",
    "pick",
    "rank_interval",
    "reflect",
    "sample",
    "top_k",
]
