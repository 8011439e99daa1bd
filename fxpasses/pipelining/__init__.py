"""Cut a model into pipeline stages that run on ``torch.distributed.pipelining``'s own schedules."""

from fxpasses.pipelining.pipe import Pipe, PipeInfo, PipeSequential, pipeline
from fxpasses.pipelining.split_points import SplitPoint, annotate_split_points, pipe_split
from fxpasses.pipelining.stages import StageModule

__all__ = [
    "Pipe",
    "PipeInfo",
    "PipeSequential",
    "SplitPoint",
    "StageModule",
    "annotate_split_points",
    "pipe_split",
    "pipeline",
]
