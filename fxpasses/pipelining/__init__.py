"""Cut a model into pipeline stages that run on ``torch.distributed.pipelining``'s own schedules."""

from fxpasses.pipelining.pipe import Pipe, PipeInfo, PipeSequential, pipeline
from fxpasses.pipelining.previewing import SchedulePreview, preview
from fxpasses.pipelining.recommending import Recommendation, recommend_schedule
from fxpasses.pipelining.schedules import SCHEDULES, Schedule, find_schedule
from fxpasses.pipelining.split_points import SplitPoint, annotate_split_points, pipe_split
from fxpasses.pipelining.stage_costs import StageCost, measure_stage_costs
from fxpasses.pipelining.stages import StageModule

__all__ = [
    "SCHEDULES",
    "Pipe",
    "PipeInfo",
    "PipeSequential",
    "Recommendation",
    "Schedule",
    "SchedulePreview",
    "SplitPoint",
    "StageCost",
    "StageModule",
    "annotate_split_points",
    "find_schedule",
    "measure_stage_costs",
    "pipe_split",
    "pipeline",
    "preview",
    "recommend_schedule",
]
