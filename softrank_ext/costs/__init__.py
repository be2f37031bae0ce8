"""What an order costs: the one form of a cost function, costs of known problems, and local search for any of them.

`costs_of` calls a cost and checks what it returns. The costs here are small frozen objects of that form, for which
`local_search` runs compiled; for any other cost its moves are made in batches.
"""

from softrank_ext.costs.bounds import tour_bound as tour_bound
from softrank_ext.costs.form import Cost as Cost
from softrank_ext.costs.form import costs_of as costs_of
from softrank_ext.costs.heuristics import atc as atc
from softrank_ext.costs.heuristics import insert_in_turn as insert_in_turn
from softrank_ext.costs.heuristics import iterated_greedy as iterated_greedy
from softrank_ext.costs.heuristics import nearest_neighbour as nearest_neighbour
from softrank_ext.costs.heuristics import neh as neh
from softrank_ext.costs.iterated_search import FoundTours as FoundTours
from softrank_ext.costs.iterated_search import iterated_local_search as iterated_local_search
from softrank_ext.costs.local_search import local_search as local_search
from softrank_ext.costs.problems import LinearOrdering as LinearOrdering
from softrank_ext.costs.problems import Makespan as Makespan
from softrank_ext.costs.problems import TotalFlowTime as TotalFlowTime
from softrank_ext.costs.problems import WeightedTardiness as WeightedTardiness
from softrank_ext.costs.tours import MatrixTourLength as MatrixTourLength
from softrank_ext.costs.tours import TourLength as TourLength
