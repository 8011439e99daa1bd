"""Read a plan that somebody may have edited by hand: what is wrong is said with its place."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import attrs

from fxpasses.devices import Device, Link
from fxpasses.errors import InputError, PlacementError, PlanError
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.plan.contents import parse_contents
from fxpasses.plan.parts import PartPlan
from fxpasses.units import parse_bytes
from fxpasses.wording import did_you_mean

__all__ = [
    "OLDEST",
    "VERSION",
    "read_contents",
    "read_copies",
    "read_devices",
    "read_links",
    "read_parts",
    "read_predicted",
    "read_training",
    "read_version",
    "read_wishes",
    "text",
]

VERSION, OLDEST = 2, 1
"""The version that is written, and the oldest that is read."""

_RATES = ("flops", "bandwidth")

_ADVICE = "write one with fxpasses place --out"

_ENTRIES = (
    *("version", "model", "objective", "contiguity", "pipeline", "training"),
    *("devices", "links", "parts", "contents", "copies", "predicted"),
)


def read_version(data: Any) -> Mapping[str, Any]:
    """Refuse what is no plan, or one of a version that is not known.

    Raises:
        PlanError: it is neither.
    """
    if not isinstance(data, Mapping) or not {"version", "parts"} & data.keys():
        raise PlanError(f"This is no plan; {_ADVICE}.")
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < OLDEST:
        raise PlanError(f"This plan has the version {version!r}; there are {OLDEST} to {VERSION}; {_ADVICE}.")
    if version > VERSION:
        raise PlanError(
            f"This plan has version {version}, and this fxpasses reads {OLDEST} to {VERSION}: take a newer fxpasses, "
            f"or {_ADVICE}."
        )
    _refuse_unknown(data, _ENTRIES)
    return data


def text(data: Mapping[str, Any], key: str, where: str) -> str:
    """Read an entry that is a text.

    Raises:
        PlanError: it is missing, or something else.
    """
    value = _entry(data, key, where)
    if not isinstance(value, str):
        raise PlanError(f"In this plan {where}{key} is {_shown(value)}; write a text.")
    return value


def read_wishes(data: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
    """Read ``objective``, ``contiguity`` and ``pipeline``; the latter two may be missing.

    Raises:
        PlanError: one that is not known.
    """
    from fxpasses.partitioners.placing.objective_values import Objective
    from fxpasses.partitioners.placing.requests import Contiguity

    kinds = {"objective": get_args(Objective), "contiguity": get_args(Contiguity), "pipeline": ()}
    found: list[Any] = [text(data, "objective", "")]
    found += [None if data.get(key) is None else text(data, key, "") for key in ("contiguity", "pipeline")]
    for (key, known), value in zip(kinds.items(), found, strict=True):
        if known and value is not None and value not in known:
            raise PlanError(
                f"In this plan {key} is {value!r}; there are {', '.join(known)}{did_you_mean(value, known)}"
            )
    objective, contiguity, pipeline = found
    return objective, contiguity, pipeline


def read_training(data: Mapping[str, Any]) -> Training | None:
    """Read ``training``, which may be missing: then the plan is for running the model only.

    Raises:
        PlanError: it is no object, or an entry of it is misspelled or makes no sense.
    """
    entry = data.get("training")
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise PlanError(f'In this plan training is {_shown(entry)}; write an object like {{"optimizer_slots": 2}}.')
    _refuse_unknown(entry, [each.name for each in attrs.fields(Training)], "training")
    try:
        return Training(**entry)
    except PlacementError as error:
        raise PlanError(f"In this plan training: {error}") from error


def read_devices(data: Mapping[str, Any]) -> tuple[Device, ...]:
    """Read ``devices``; a budget may be written as a number of bytes or like ``"40MiB"``.

    Raises:
        PlanError: an entry that is missing, misspelled or makes no sense.
    """
    known = [each.name for each in attrs.fields(Device) if each.name != "supports"]
    devices = []
    for where, entry in _objects(data, "devices"):
        _refuse_unknown(entry, known, where)
        facts = {**_with_infinity(entry), "name": text(entry, "name", f"{where}.")}
        try:
            if isinstance(facts.get("available_mem_bytes"), str):
                facts["available_mem_bytes"] = parse_bytes(facts["available_mem_bytes"])
            devices.append(Device(**facts))
        except (InputError, TypeError) as error:
            raise PlanError(f"In this plan {where} ({facts['name']}): {error}") from error
    names = [device.name for device in devices]
    _refuse_twice(names, "devices are called")
    return tuple(devices)


def _with_infinity(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Rates without a limit, which JSON cannot write, as numbers."""
    found = {name: math.inf if name in _RATES and value == "inf" else value for name, value in entry.items()}
    if isinstance(by_dtype := found.get("flops_by_dtype"), Mapping):
        found["flops_by_dtype"] = {dtype: math.inf if rate == "inf" else rate for dtype, rate in by_dtype.items()}
    return found


def read_links(data: Mapping[str, Any]) -> tuple[Link, ...]:
    """Read ``links``.

    Raises:
        PlanError: an entry that is missing, misspelled or makes no sense.
    """
    known = [each.name for each in attrs.fields(Link)]
    links = []
    for where, entry in _objects(data, "links"):
        _refuse_unknown(entry, known, where)
        try:
            ends = {end: text(entry, end, f"{where}.") for end in ("first", "second")}
            links.append(Link(**{**_with_infinity(entry), **ends}))
        except (InputError, TypeError) as error:
            raise PlanError(f"In this plan {where}: {error}") from error
    return tuple(links)


def read_parts(data: Mapping[str, Any], devices: Sequence[Device]) -> tuple[PartPlan, ...]:
    """Read ``parts``.

    Raises:
        PlanError: an entry that is missing, misspelled, of another type, or names a device that is not there.
    """
    names = [device.name for device in devices]
    parts = []
    for where, entry in _objects(data, "parts"):
        _refuse_unknown(entry, ("name", "device", "ops", "offload", "again"), where)
        name, device = text(entry, "name", f"{where}."), text(entry, "device", f"{where}.")
        if not name:
            raise PlanError(f"In this plan {where}.name is empty; write a text.")
        if device not in names:
            raise PlanError(
                f"In this plan {where} ({name}) is on the device {device!r}, which is not among its devices "
                f"{', '.join(names)}{did_you_mean(device, names)}"
            )
        ops = _operators(_entry(entry, "ops", f"{where}."), f"{where}.ops")
        again = _operators(entry.get("again", ()), f"{where}.again")
        offload = entry.get("offload")
        if offload not in (None, "cpu"):
            raise PlanError(f'In this plan {where}.offload is {offload!r}; write "cpu", or leave it out.')
        parts.append(PartPlan(name, device, ops, offload, again))
    _refuse_twice([part.name for part in parts], "parts are called")
    return tuple(parts)


def _operators(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise PlanError(f"In this plan {where} is {_shown(value)}; write a list of texts.")
    for index, op in enumerate(value):
        if not isinstance(op, str):
            raise PlanError(f"In this plan {where}[{index}] is {_shown(op)}; write a text.")
        if "/" not in op:
            module = op.removesuffix("*").removesuffix(".")
            raise PlanError(
                f"In this plan {where} names {op!r}, which reads neither MODULE/* nor MODULE/OPERATOR#NUMBER; "
                f"for {'a whole module' if module else 'the whole model'} write {module + '/*'!r}."
            )
        if "#" not in op and not op.endswith("/*"):
            raise PlanError(
                f"In this plan {where} names {op!r} without a number; write {op + '#0'!r} for the first of them in its "
                "module, #1 for the next."
            )
    return tuple(value)


def read_contents(data: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Read ``contents``, which may be missing, as may any line of it.

    Raises:
        PlanError: it is no object, or a line of it does not say how many operators of which kind there were.
    """
    entries = data.get("contents", {})
    if not isinstance(entries, Mapping):
        raise PlanError(
            f"In this plan contents is {_shown(entries)}; write an object, or take it out, it is written again."
        )
    contents = {}
    for line, entry in entries.items():
        counts = parse_contents(entry) if isinstance(entry, str) else None
        if counts is None:
            raise PlanError(
                f"In this plan contents[{line!r}] is {repr(entry) if isinstance(entry, str) else _shown(entry)}; write "
                "it like '1 gelu, 2 linear', or take it out: the line then stands for what there is."
            )
        contents[line] = counts
    return contents


def read_copies(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Read ``copies``, which may be missing.

    Raises:
        PlanError: an entry that lacks something.
    """
    if "copies" not in data:
        return ()
    copies = []
    for where, entry in _objects(data, "copies"):
        _refuse_unknown(entry, ("value", "source", "target", "size"), where)
        facts = {key: text(entry, key, f"{where}.") for key in ("value", "source", "target")}
        size = _entry(entry, "size", f"{where}.")
        if not isinstance(size, int) or not _is_figure(size):
            raise PlanError(f"In this plan {where}.size is {_figure(size)}; write a number of bytes.")
        copies.append({**facts, "size": size})
    return tuple(copies)


def read_predicted(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``predicted``, which may be missing.

    Raises:
        PlanError: it is no object, its devices are none, or a figure is no number from 0 on.
    """
    predicted = data.get("predicted", {})
    devices = predicted.get("devices", {}) if isinstance(predicted, Mapping) else None
    if not isinstance(devices, Mapping) or not all(isinstance(facts, Mapping) for facts in devices.values()):
        raise PlanError("In this plan predicted makes no sense; take it out, it is written again.")
    own = {key: value for key, value in predicted.items() if key != "devices"}
    for where, facts in {"": own, **{f"devices.{name}.": facts for name, facts in devices.items()}}.items():
        for key, value in facts.items():
            if value is not None and not _is_figure(value):
                raise PlanError(
                    f"In this plan predicted.{where}{key} is {_figure(value)}; write a number from 0 on, or take "
                    "predicted out, it is written again."
                )
    return dict(predicted)


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _figure(value: Any) -> str:
    return _shown(value) if isinstance(value, bool) or not isinstance(value, (int, float)) else repr(value)


def _entry(data: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in data:
        raise PlanError(f"In this plan {where}{key} is missing.")
    return data[key]


def _objects(data: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The entries of a list of objects, each with its place."""
    values = _entry(data, key, "")
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise PlanError(f"In this plan {key} is {_shown(values)}; write a list.")
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise PlanError(f"In this plan {key}[{index}] is {_shown(value)}; write an object.")
    return [(f"{key}[{index}]", value) for index, value in enumerate(values)]


def _refuse_unknown(entry: Mapping[str, Any], known: Sequence[str], where: str = "") -> None:
    for key in entry:
        if key not in known:
            place = f"In this plan {where}" if where else "This plan"
            raise PlanError(
                f"{place} has an entry {key!r}; there are {', '.join(known)}{did_you_mean(str(key), known)}"
            )


def _refuse_twice(names: Sequence[str], what: str) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise PlanError(f"In this plan two {what} {name!r}; give each its own name.")
        seen.add(name)


def _shown(value: Any) -> str:
    kinds = {str: "a text", bool: "a truth value", int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), "a list" if isinstance(value, Sequence) else "an object")
