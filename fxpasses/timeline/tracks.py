"""What the track of a link is called in a timeline, and which devices it joins."""

from __future__ import annotations

__all__ = ["ends_of_link", "link_track"]

ARROW = " → "


def link_track(source: str, target: str) -> str:
    """The name of the track for what goes from one device, or main memory, to another.

    >>> link_track("left", "right")
    'left → right'
    """
    return f"{source}{ARROW}{target}"


def ends_of_link(track: str) -> tuple[str, str] | None:
    """The two ends of the link that a track is named after; None for the track of a device.

    >>> ends_of_link("left → right"), ends_of_link("left")
    (('left', 'right'), None)
    """
    source, arrow, target = track.partition(ARROW)
    return (source, target) if arrow else None
