"""Try a faster link: it is as much faster for all routes that lead over it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs

from fxpasses.devices import Link, Topology

__all__ = ["with_faster_link"]


def with_faster_link(topology: Topology, first: str, second: str, factor: float) -> Topology:
    """The same devices, one link between which is faster; routes stay as they are. Time O(length of all routes).

    A route may lead over a link whose ends another route joins sooner; what that link is like is not known any more, so
    such a route is not said to become faster.

    Args:
        topology: Devices and links.
        first: One end of the link.
        second: The other.
        factor: How many times its bandwidth; as much shorter is its latency.
    """
    slow = topology.link(first, second)
    fast = Link(first, second, slow.bandwidth * factor, slow.latency / factor)
    others = [link for link in topology.links if (link.first, link.second) != (first, second)]
    changed = Topology(topology.devices, (*others, fast))
    links = [_along(changed, link) if _leads_over(topology, link, slow) else link for link in changed.links]
    return Topology(topology.devices, links)


def _leads_over(topology: Topology, route: Link, wire: Link) -> bool:
    """Whether a link is known to be one of those that a route leads over."""
    if wire not in _wires(topology, route):
        return False
    before = _along(topology, route)
    return before.bandwidth == route.bandwidth and math.isclose(before.latency, route.latency, rel_tol=1e-9)


def _wires(topology: Topology, route: Link) -> Iterator[Link]:
    """The links that a route leads over, one after the other; none for what is a link itself."""
    stops = (route.first, *route.via, route.second)
    return (topology.link(*ends) for ends in itertools.pairwise(stops if route.via else ()))


def _along(topology: Topology, route: Link) -> Link:
    """A route as fast as the links that it leads over."""
    wires = list(_wires(topology, route))
    bandwidth, latency = min(wire.bandwidth for wire in wires), sum(wire.latency for wire in wires)
    return attrs.evolve(route, bandwidth=bandwidth, latency=latency)
