"""A placement as a file: JSON that can be read, diffed, edited by hand and replayed after the model is exported again.

Operators are named by what survives an export: the path of the module they come from, the operator, and its ordinal
there (``model.layers.0.mlp/linear#1``). Where all operators of a module sit in one part, the plan says
``model.layers.0/*``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import PlanError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.device_maps import map_of_operators

__all__ = ["PartPlan", "Plan", "module_path", "stable_keys"]

VERSION = 1


def module_path(node: Node) -> str:
    """The path of the innermost module that a node comes from; ``""`` for the model itself."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    entry = list(stack.values())[-1]
    path = entry[0] if isinstance(entry, tuple) else str(entry)
    return str(path).removeprefix("L['self']").removeprefix("L__self__").strip("._")


def _op_name(node: Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def stable_keys(graph: Graph | GraphModule) -> dict[Node, str]:
    """Name each compute node by module path, operator and ordinal, in graph order."""
    graph = graph.graph if isinstance(graph, GraphModule) else graph
    seen: dict[str, int] = {}
    keys: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            stem = f"{module_path(node)}/{_op_name(node)}"
            seen[stem] = seen.get(stem, -1) + 1
            keys[node] = f"{stem}#{seen[stem]}"
    return keys


def _prefixes(path: str) -> list[str]:
    """``a.b.c`` → ``"", "a", "a.b", "a.b.c"``: a module and all that hold it."""
    steps = path.split(".") if path else []
    return ["", *(".".join(steps[: length + 1]) for length in range(len(steps)))]


def _condensed(keys: Sequence[str], owner: Mapping[str, str]) -> list[str]:
    """Write ``path/*`` for every largest module whose operators all have one owner."""
    owners: dict[str, str | None] = {}
    for key, part in owner.items():
        for prefix in _prefixes(key.rpartition("/")[0]):
            owners[prefix] = part if owners.get(prefix, part) == part else None
    entries: dict[str, None] = {}
    for key in keys:
        whole = next((p for p in _prefixes(key.rpartition("/")[0]) if owners[p] is not None), None)
        entries[key if whole is None else f"{whole}/*"] = None
    return list(entries)


@attrs.frozen
class PartPlan:
    """One part: its name, its device, and the operators or whole modules in it."""

    name: str
    device: str
    ops: tuple[str, ...]


@attrs.frozen
class Plan:
    """Which operator runs where.

    Args:
        model: What the model is called.
        objective: What was made small.
        devices: The devices.
        links: The links that were given.
        parts: The parts in execution order.
        copies: Values that cross, with bytes.
        predicted: Seconds, and per device seconds and bytes.
    """

    model: str
    objective: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    parts: tuple[PartPlan, ...]
    copies: tuple[Mapping[str, Any], ...] = ()
    predicted: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls,
        model: str,
        objective: str,
        topology: Topology,
        assignment: Assignment,
        device_of: Mapping[str, Device],
    ) -> Plan:
        """Write a proposal down."""
        keys = stable_keys(assignment.graph)
        owner = {key: str(assignment.partition_of.get(node, "")) for node, key in keys.items()}
        parts = [
            PartPlan(str(name), device_of[str(name)].name, tuple(_condensed([keys[node] for node in nodes], owner)))
            for name, nodes in assignment.partitions.items()
        ]
        return cls(model, objective, topology.devices, topology.links, tuple(parts))

    @property
    def topology(self) -> Topology:
        """The devices and links."""
        return Topology(self.devices, self.links)

    @property
    def device_of(self) -> dict[str, Device]:
        """The device of each part."""
        topology = self.topology
        return {part.name: topology[part.device] for part in self.parts}

    def assign(self, graph_module: GraphModule) -> Assignment:
        """Apply the plan to a graph.

        Args:
            graph_module: The model, exported again or the same.

        Returns:
            The Assignment that the plan describes.

        Raises:
            PlanError: an operator has no part, or the plan names what is not there: the model changed.
        """
        parts = {part.name: part for part in self.parts}
        exact = {entry: part.name for part in self.parts for entry in part.ops if not entry.endswith("/*")}
        whole = {
            entry.removesuffix("/*"): part.name for part in self.parts for entry in part.ops if entry.endswith("/*")
        }
        used: dict[str, None] = {}
        found: dict[Node, str] = {}
        for node, key in stable_keys(graph_module).items():
            if key in exact:
                found[node], used[key] = exact[key], None
                continue
            path = next((p for p in reversed(_prefixes(key.rpartition("/")[0])) if p in whole), None)
            if path is None:
                raise PlanError(
                    f"The plan for {self.model} has no part for {key}; the model changed since: place it again, "
                    "or add the operator to a part.",
                    node=node,
                )
            found[node], used[f"{path}/*"] = whole[path], None
        unused = [entry for entry in (*exact, *(f"{path}/*" for path in whole)) if entry not in used]
        if unused:
            raise PlanError(
                f"The plan for {self.model} names {_listed(unused)}, which the model does not have; it changed since: "
                "place it again, or take these lines out."
            )
        return Assignment.of(graph_module, found, order=[name for name in parts if name in set(found.values())])

    def device_map(self, *, strict: bool = True) -> dict[str, str]:
        """Which module runs where, as the dict that ``lower(..., device_map=...)`` takes: the longest path counts.

        Args:
            strict: Refuse a module whose own operators sit on several devices; otherwise the device with most gets it.

        Raises:
            PlanError: ``strict``, and there is such a module.
        """
        return map_of_operators(
            ((entry.rpartition("/")[0], part.device) for part in self.parts for entry in part.ops), strict=strict
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, in a stable order."""
        return {
            "version": VERSION,
            "model": self.model,
            "objective": self.objective,
            "devices": [_device_json(device) for device in self.devices],
            "links": [attrs.asdict(link) for link in self.links],
            "parts": [{"name": p.name, "device": p.device, "ops": list(p.ops)} for p in self.parts],
            "copies": [dict(each) for each in self.copies],
            "predicted": dict(self.predicted),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read plain data.

        Raises:
            PlanError: it is no plan, or one of another version.
        """
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise PlanError(f"This is not a plan of version {VERSION}; write one with fxpasses lower --out.")
        try:
            return cls(
                data["model"],
                data["objective"],
                tuple(Device(**device) for device in data["devices"]),
                tuple(Link(**link) for link in data["links"]),
                tuple(PartPlan(part["name"], part["device"], tuple(part["ops"])) for part in data["parts"]),
                tuple(data.get("copies", ())),
                dict(data.get("predicted", {})),
            )
        except (KeyError, TypeError) as error:
            raise PlanError(f"This plan lacks or misspells an entry: {error}.") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file.

        Raises:
            PlanError: there is no such file, or it is no plan.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError(f"There is no plan file {str(path)!r}.") from error
        except ValueError as error:
            raise PlanError(f"{str(path)!r} is not JSON: {error}.") from error
        return cls.from_json(data)


def _device_json(device: Device) -> dict[str, Any]:
    return attrs.asdict(device, filter=lambda attribute, _value: attribute.name != "supports")


def _listed(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
