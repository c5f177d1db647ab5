"""The advisor: the one hallway that every door walks through; it calls down, and answers.

A door (command line, service, notebook) turns words into calls of `Advisor`; the advisor finds the
workload, the cluster, the plan and the predictor, and gives back a frozen answer.
"""

from forerun.advisor.advisor import Advisor
from forerun.advisor.answer import Answer, Explanation, Support, WhatIf

__all__ = ["Advisor", "Answer", "Explanation", "Support", "WhatIf"]
