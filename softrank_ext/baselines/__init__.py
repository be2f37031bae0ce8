"""What the paper compares Soft-Rank Diffusion with; `softrank_ext.methods` has the methods by name.

MODEL_TYPES: the models that are no SoftRankModel, by the `model_type` of their config.json.
"""

from softrank_ext.baselines.diffsort import DiffSortModel
from softrank_ext.baselines.factorised import FactorisedModel
from softrank_ext.model import OnePassModel

MODEL_TYPES: dict[str, type[OnePassModel]] = {model.model_type: model for model in (DiffSortModel, FactorisedModel)}
