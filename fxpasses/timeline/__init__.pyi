from .gantt import draw_timeline
from .spans import COLUMNS, Flow, MemoryCurve, Span, Timeline, lanes_of

__all__ = [
    "COLUMNS",
    "Flow",
    "MemoryCurve",
    "Span",
    "Timeline",
    "draw_timeline",
    "lanes_of",
]
