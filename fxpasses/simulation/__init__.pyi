from .advice import Advice, what_helps
from .simulating import Detail, Overlap, PathStep, Simulation, simulate

__all__ = [
    "Advice",
    "Detail",
    "Overlap",
    "PathStep",
    "Simulation",
    "simulate",
    "what_helps",
]
