"""Write a plan as plain data, in a stable order: what :mod:`fxpasses.plan.reading` reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fxpasses.devices import Device, Link
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.plan.contents import Contents, contents_text
from fxpasses.plan.parts import PartPlan
from fxpasses.plan.reading import VERSION

if TYPE_CHECKING:
    from fxpasses.plan.plans import Plan

__all__ = ["device_facts", "link_facts", "plan_facts"]


def plan_facts(plan: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "version": VERSION,
        "model": plan.model,
        "objective": plan.objective,
        "contiguity": plan.contiguity,
        "pipeline": plan.pipeline,
        **({} if plan.training is None else {"training": _training_facts(plan.training)}),
        "devices": [device_facts(device) for device in plan.devices],
        "links": [link_facts(link) for link in plan.links],
        "parts": [_part_facts(part) for part in plan.parts],
        **({"contents": _contents_facts(plan.contents)} if plan.contents else {}),
        "copies": [dict(each) for each in plan.copies],
        "predicted": dict(plan.predicted),
    }


def device_facts(device: Device) -> dict[str, Any]:
    """A device as plain data; what it supports is a function, and no data."""
    left_out = {"supports"} if device.is_fake else {"supports", "is_fake"}
    return _without_infinity(attrs.asdict(device, filter=lambda attribute, _value: attribute.name not in left_out))


def link_facts(link: Link) -> dict[str, Any]:
    """A link as plain data; only a route has a way."""
    return _without_infinity(attrs.asdict(link, filter=lambda attribute, value: attribute.name != "via" or value != ()))


def _without_infinity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Rates without a limit as text: JSON has no infinite numbers."""
    return {
        name: _without_infinity(value) if isinstance(value, Mapping) else "inf" if value == math.inf else value
        for name, value in facts.items()
    }


def _training_facts(training: Training) -> dict[str, Any]:
    """What is not as it is by default, and the slots in any case."""
    return attrs.asdict(training, filter=lambda field, value: field.name == "optimizer_slots" or value != field.default)


def _contents_facts(contents: Contents) -> dict[str, str]:
    return {line: contents_text(counts) for line, counts in contents.items()}


def _part_facts(part: PartPlan) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": part.name, "device": part.device, "ops": list(part.ops)}
    if part.offload is not None:
        facts["offload"] = part.offload
    if part.again:
        facts["again"] = list(part.again)
    return facts
