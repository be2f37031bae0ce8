"""Pictures and pages of the package's own results. Pictures need matplotlib: `pip install "softrank_ext[plots]"`.

A plot function returns a matplotlib figure; `save_figure` writes it to a file.
"""

from softrank_ext.show.answers import plot_calibration, plot_pairwise, plot_rank_interval, plot_top_k
from softrank_ext.show.improvement import improvement_page
from softrank_ext.show.instances import plot_jigsaw, plot_sorting, plot_tour
from softrank_ext.show.page import page_of
from softrank_ext.show.ranking import plot_places, plot_ranking_report, ranking_page
from softrank_ext.show.schedules import plot_schedule, schedule_page
from softrank_ext.show.soft_ranks import plot_soft_ranks, plot_there_and_back
from softrank_ext.show.style import save_figure
from softrank_ext.show.walk import Walk, draw_walk, plot_walk, swapped_pairs

__all__ = [
    "Walk",
    "draw_walk",
    "improvement_page",
    "page_of",
    "plot_calibration",
    "plot_jigsaw",
    "plot_pairwise",
    "plot_places",
    "plot_rank_interval",
    "plot_ranking_report",
    "plot_schedule",
    "plot_soft_ranks",
    "plot_sorting",
    "plot_there_and_back",
    "plot_top_k",
    "plot_tour",
    "plot_walk",
    "ranking_page",
    "save_figure",
    "schedule_page",
    "swapped_pairs",
]
