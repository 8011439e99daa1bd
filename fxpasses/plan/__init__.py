"""A placement as a file: read, check, compare, edit by hand, replay after the model is exported again, simulate."""

from fxpasses.plan.checking import Violation, check_plan
from fxpasses.plan.comparing import PlanDiff, diff
from fxpasses.plan.keys import module_path, stable_keys
from fxpasses.plan.parts import PartPlan
from fxpasses.plan.plans import Plan

__all__ = ["PartPlan", "Plan", "PlanDiff", "Violation", "check_plan", "diff", "module_path", "stable_keys"]
