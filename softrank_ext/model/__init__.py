"""The network that predicts a clean order from a shuffled instance: config, embedders, layers, heads, model."""

from softrank_ext.model.config import DECODER_HEADS, HEADS, INITS, PRESETS, READS, TIMES, SoftRankConfig
from softrank_ext.model.data import DataFacts, square_copy
from softrank_ext.model.distribution import ModelDistribution
from softrank_ext.model.embedders import (
    EMBEDDERS,
    LearnedEmbedder,
    LinearEmbedder,
    embed_items,
    embedder_of,
    make_embedder,
)
from softrank_ext.model.inference import ModuleScores, evaluating, goes_by_modules
from softrank_ext.model.layers import DecoderLayer, EncoderLayer, TimeEmbedder, sine_cosine
from softrank_ext.model.model import LogProb, SoftRankModel
from softrank_ext.model.packing import PackedWeights
from softrank_ext.model.protocol import OnePassModel, OrderModel
from softrank_ext.model.registry import model_class, model_types, register_model

__all__ = [
    "DECODER_HEADS",
    "EMBEDDERS",
    "HEADS",
    "INITS",
    "PRESETS",
    "READS",
    "TIMES",
    "DataFacts",
    "DecoderLayer",
    "EncoderLayer",
    "LearnedEmbedder",
    "LinearEmbedder",
    "LogProb",
    "ModelDistribution",
    "ModuleScores",
    "OnePassModel",
    "OrderModel",
    "PackedWeights",
    "SoftRankConfig",
    "SoftRankModel",
    "TimeEmbedder",
    "embed_items",
    "embedder_of",
    "evaluating",
    "goes_by_modules",
    "make_embedder",
    "model_class",
    "model_types",
    "register_model",
    "sine_cosine",
    "square_copy",
]
