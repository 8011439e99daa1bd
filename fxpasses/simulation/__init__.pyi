from .advice import Advice, what_helps
from .simulating import Detail, Overlap, PathStep, Simulation, counted_overlap, simulate

__all__ = [
    "Advice",
    "Detail",
    "Overlap",
    "PathStep",
    "Simulation",
    "counted_overlap",
    "simulate",
    "what_helps",
]
