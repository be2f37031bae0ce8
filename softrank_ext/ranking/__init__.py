"""Rank the rows of a table: the front door `Ranker`, its rules and its report."""

from softrank_ext.ranking.places import Quota
from softrank_ext.ranking.ranker import Ranker
from softrank_ext.ranking.report import RankingReport

__all__ = ["Quota", "Ranker", "RankingReport"]
