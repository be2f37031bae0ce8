"""Tours through places that people have: `plan_tour`, and the `Tour` that it returns."""

from softrank_ext.tours.plan import plan_tour as plan_tour
from softrank_ext.tours.tour import Tour as Tour
