from .events import Instrument, PassEvent, RewriteLimit, observe, remark, rewrite_allowed, statistic
from .observers import BisectLimit, DrawGraphs, DumpFolder, JsonLog, Remarks, ShowGraph, Statistics, Timing, graph_diff
from .records import PassRecord, Remark, RunReport

__all__ = [
    "BisectLimit",
    "DrawGraphs",
    "DumpFolder",
    "Instrument",
    "JsonLog",
    "PassEvent",
    "PassRecord",
    "Remark",
    "Remarks",
    "RewriteLimit",
    "RunReport",
    "ShowGraph",
    "Statistics",
    "Timing",
    "graph_diff",
    "observe",
    "remark",
    "rewrite_allowed",
    "statistic",
]
