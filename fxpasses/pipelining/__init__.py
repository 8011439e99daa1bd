"""Cut a model into pipeline stages that run on ``torch.distributed.pipelining``'s own schedules."""

from fxpasses.pipelining.capturing import parameters_on_meta
from fxpasses.pipelining.cuts.multi_use import MultiUseParameterConfig
from fxpasses.pipelining.cuts.sequential import PipeSequential
from fxpasses.pipelining.cuts.split_points import SplitPoint, annotate_split_points, pipe_split
from fxpasses.pipelining.failures import explain_failures
from fxpasses.pipelining.losses import LossWrapper, TrivialLossWrapper
from fxpasses.pipelining.pipe import Pipe, PipeInfo, pipeline
from fxpasses.pipelining.previewing import SchedulePreview, preview
from fxpasses.pipelining.recommending import Recommendation, recommend_schedule
from fxpasses.pipelining.scheduling.schedules import SCHEDULES, Schedule, find_schedule
from fxpasses.pipelining.stage_costs import StageCost, measure_stage_costs
from fxpasses.pipelining.stages import StageModule
from fxpasses.pipelining.traffic import Traffic
from fxpasses.pipelining.training import RankSchedule, build_schedule

__all__ = [
    "SCHEDULES",
    "LossWrapper",
    "MultiUseParameterConfig",
    "Pipe",
    "PipeInfo",
    "PipeSequential",
    "RankSchedule",
    "Recommendation",
    "Schedule",
    "SchedulePreview",
    "SplitPoint",
    "StageCost",
    "StageModule",
    "Traffic",
    "TrivialLossWrapper",
    "annotate_split_points",
    "build_schedule",
    "explain_failures",
    "find_schedule",
    "measure_stage_costs",
    "parameters_on_meta",
    "pipe_split",
    "pipeline",
    "preview",
    "recommend_schedule",
]
