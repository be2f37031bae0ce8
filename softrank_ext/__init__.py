"""softrank_ext: learn and sample distributions over permutations by Soft-Rank Diffusion."""

from softrank_ext import ops
from softrank_ext._libraries import build_info, installed_version, load_libraries

load_libraries()

from softrank_ext import distributions, metrics, model_folder, noise, permutations, tasks  # noqa: E402
from softrank_ext.answers import calibration, consensus, pairwise, rank_interval, top_k  # noqa: E402
from softrank_ext.choices import Beam, Draw, Engine, Greedy, Rebuild  # noqa: E402
from softrank_ext.constraints import Constraints  # noqa: E402
from softrank_ext.evaluation import evaluate  # noqa: E402
from softrank_ext.likelihood import LikelihoodEstimate, log_likelihood  # noqa: E402
from softrank_ext.model import PRESETS, DataFacts, SoftRankConfig, SoftRankModel, register_model  # noqa: E402
from softrank_ext.ops import decode_chamber, pick, reflect  # noqa: E402
from softrank_ext.pretrained import from_pretrained, list_pretrained, push_to_hub  # noqa: E402
from softrank_ext.processes import Bridge, Riffle  # noqa: E402
from softrank_ext.ranking import Quota, Ranker  # noqa: E402
from softrank_ext.sampling import Drawing, Improved, IncrementalDecoder, Samples, Search, improve, sample  # noqa: E402
from softrank_ext.schedules import Schedule, schedule  # noqa: E402
from softrank_ext.tours import Tour, plan_tour  # noqa: E402
from softrank_ext.training import TrainConfig, train  # noqa: E402

__version__ = installed_version()
__all__ = [
    "PRESETS",
    "Beam",
    "Bridge",
    "Constraints",
    "DataFacts",
    "Draw",
    "Drawing",
    "Engine",
    "Greedy",
    "Improved",
    "IncrementalDecoder",
    "LikelihoodEstimate",
    "Quota",
    "Ranker",
    "Rebuild",
    "Riffle",
    "Samples",
    "Schedule",
    "Search",
    "SoftRankConfig",
    "SoftRankModel",
    "Tour",
    "TrainConfig",
    "build_info",
    "calibration",
    "consensus",
    "decode_chamber",
    "distributions",
    "evaluate",
    "from_pretrained",
    "improve",
    "list_pretrained",
    "log_likelihood",
    "metrics",
    "model_folder",
    "noise",
    "ops",
    "pairwise",
    "permutations",
    "pick",
    "plan_tour",
    "push_to_hub",
    "rank_interval",
    "reflect",
    "register_model",
    "sample",
    "schedule",
    "tasks",
    "top_k",
    "train",
]
