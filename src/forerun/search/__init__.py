"""Search: every legal plan on every cluster scored as columns, and the best of them explained."""

from forerun.search.pareto import knee, pareto_front
from forerun.search.recommending import best_plan, recommend
from forerun.search.space import Space

__all__ = ["Space", "best_plan", "knee", "pareto_front", "recommend"]
