"""A placement as a file: JSON that can be read, diffed, edited by hand and replayed after the model is exported again.

Operators are named by what survives an export: the path of the module they come from, the operator, and its ordinal
there (``model.layers.0.mlp/linear#1``). Where all operators of a module sit in one part, the plan says
``model.layers.0/*``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from torch.fx import GraphModule

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import InputError, PlanError
from fxpasses.files import path_of, write_text
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.names.device_maps import map_of_operators
from fxpasses.partitioners.placing.replication.replicas import with_replicas
from fxpasses.plan.applying import apply_parts
from fxpasses.plan.condensing import parts_of
from fxpasses.plan.contents import Contents
from fxpasses.plan.json_files import read_json
from fxpasses.plan.module_devices import devices_by_module, refuse_elsewhere
from fxpasses.plan.paper_runs import run_on_paper
from fxpasses.plan.parts import PartPlan
from fxpasses.plan.program_graphs import graph_of
from fxpasses.plan.reading import (
    read_contents,
    read_copies,
    read_devices,
    read_links,
    read_parts,
    read_predicted,
    read_training,
    read_version,
    read_wishes,
    text,
)
from fxpasses.plan.renaming import rename, renamed_lines
from fxpasses.plan.writing import plan_facts

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fxpasses.plan.checking import Violation
    from fxpasses.plan.comparing import PlanDiff
    from fxpasses.simulation import Detail, Overlap, Simulation

__all__ = ["Plan"]


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
        pipeline: The clean-up passes that ran before, as text; a plan fits the graph that they leave.
        contiguity: Of what shape the parts of a device are, as the search was asked.
        training: For which training the budgets are kept; None for running the model only.
        contents: How many operators of each kind the lines for whole modules stood for; a line that is not there
            stands for whatever the module has.
        file: Where it was read from, for messages.
    """

    model: str
    objective: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    parts: tuple[PartPlan, ...]
    copies: tuple[Mapping[str, Any], ...] = ()
    predicted: Mapping[str, Any] = attrs.field(factory=dict)
    pipeline: str | None = attrs.field(default=None, kw_only=True)
    contiguity: str | None = attrs.field(default=None, kw_only=True)
    training: Training | None = attrs.field(default=None, kw_only=True)
    contents: Contents = attrs.field(factory=dict, kw_only=True)
    file: str | None = attrs.field(default=None, kw_only=True, eq=False, repr=False)

    @classmethod
    def of(
        cls,
        model: str,
        objective: str,
        topology: Topology,
        assignment: Assignment,
        device_of: Mapping[str, Device],
        *,
        offloaded: Collection[str] = (),
        pipeline: str | None = None,
        contiguity: str | None = None,
        training: Training | None = None,
    ) -> Plan:
        """Write a proposal down; ``offloaded`` names the parts whose parameters stay in main memory."""
        parts = parts_of(assignment, device_of, offloaded)
        links, devices = topology.links, topology.devices
        facts: dict[str, Any] = {"pipeline": pipeline, "contiguity": contiguity, "training": training}
        return cls(model, objective, devices, links, parts, **facts)

    @property
    def offloaded(self) -> tuple[str, ...]:
        """The parts whose parameters stay in main memory and are loaded in each run."""
        return tuple(part.name for part in self.parts if part.offload is not None)

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
            PlanError: an operator has no part, or the plan names what is not there: the model changed; or a part must
                not compute again what it shall; or parts would wait for each other, or stand in an order in which they
                cannot run.
            InputError: it is no graph.
        """
        if not isinstance(graph_module, GraphModule):
            raise InputError(
                f"A plan is applied to a GraphModule, not {type(graph_module).__name__}; of a program take "
                "program.module()."
            )
        return apply_parts(self.model, self.parts, graph_module)

    def written(self, graph_module: GraphModule) -> tuple[GraphModule, Assignment]:
        """Apply the plan to a graph, and write what is computed again into a copy of it.

        Returns:
            The graph that runs and the Assignment of its nodes; the given graph where nothing is computed again.

        Raises:
            PlanError: as :meth:`assign`.
        """
        places = {part.name: part.device for part in self.parts}
        return with_replicas(graph_module, self.assign(graph_module), places)

    def rename_modules(self, renames: Mapping[str, str]) -> Plan:
        """Follow modules that have another name now.

        >>> from fxpasses.devices import Device
        >>> plan = Plan("m", "latency", (Device("cpu"),), (), (PartPlan("cpu", "cpu", ("layers.0/*",)),))
        >>> plan.rename_modules({"layers": "blocks"}).parts[0].ops
        ('blocks.0/*',)

        Args:
            renames: New path by old path, all at once, so that two may change places; of several that hold an operator
                the innermost counts. ``""`` is the model itself.

        Raises:
            PlanError: the plan names nothing in a module of that path; two parts would name the same; or it is no dict.
        """
        if not isinstance(renames, Mapping):
            raise PlanError(f"Renames are a dict like {{'layers': 'blocks'}}, not {renames!r}.")
        if no_path := [path for pair in renames.items() for path in pair if not isinstance(path, str)]:
            raise PlanError(f"Renames are from a path of a module to another one, and {no_path[0]!r} is none.")
        parts = tuple(rename(self.parts, renames))
        called = renamed_lines(self.parts, parts)
        contents = {called.get(line, line): counts for line, counts in self.contents.items()}
        return attrs.evolve(self, parts=parts, contents=contents)

    def check(
        self,
        model: GraphModule | ExportedProgram,
        *,
        devices: Topology | Iterable[Device] | None = None,
        on_this_machine: bool = False,
    ) -> list[Violation]:
        """Find everything that keeps the plan from running a model; see :func:`fxpasses.plan.check_plan`."""
        from fxpasses.plan.checking import check_plan

        return check_plan(self, model, devices=devices, on_this_machine=on_this_machine)

    def diff(self, other: Plan, model: GraphModule | ExportedProgram | None = None) -> PlanDiff:
        """Compare with a later plan; see :func:`fxpasses.plan.diff`.

        Raises:
            PlanError: it is no plan.
        """
        if not isinstance(other, Plan):
            raise PlanError(f"A plan is compared with a Plan, not {other!r}; of a file write Plan.load('plan.json').")
        from fxpasses.plan.comparing import diff

        return diff(self, other, None if model is None else graph_of(model))

    def simulate(
        self,
        model: GraphModule | ExportedProgram,
        *,
        samples: int = 1,
        overlap: Overlap | None = None,
        detail: Detail = "parts",
    ) -> Simulation:
        """Run the plan on paper, one for training a training step; no device of it is needed.

        See :func:`fxpasses.simulation.simulate`.

        Args:
            model: The program the plan was made for, or the same model exported again, after the passes that the plan
                names: ``parse_pipeline(plan.pipeline)(program).exported_program``.
            samples: How many samples go through.
            overlap: What goes on at the same time.
            detail: Whether a span is a part or an operator.

        Raises:
            PlanError: the plan does not fit the model.
        """
        graph_module, assignment = self.written(graph_of(model))
        return run_on_paper(
            graph_module,
            assignment,
            self.topology,
            self.parts,
            step=TrainingStep.if_any(graph_module, self.training),
            samples=samples,
            overlap=overlap,
            detail=detail,
        )

    def device_map(
        self,
        model: GraphModule | ExportedProgram | None = None,
        *,
        strict: bool = True,
        torch_devices: bool = False,
    ) -> dict[str, str]:
        """Which module runs where, as the dict that ``lower(..., device_map=...)`` takes: the longest path counts.

        Where the own operators of a module sit on several devices, they stay with the operators before them if modules
        of it are on several devices, too, and else go to the device with most. Of a plan alone nobody knows which
        operators are before them; of the model one does.

        Args:
            model: The program the plan was made for, or the same model exported again.
            torch_devices: Tell torch devices (``cuda:0``) in the place of the names of devices, as other libraries do.
            strict: Refuse a map that puts operators of the model elsewhere than the plan, or that leaves out what the
                plan computes again; without the model, any module whose own operators sit on several devices.

        Raises:
            PlanError: ``strict``, and there is such an operator, or such a module; or the plan does not fit the model.
        """
        named = map_of_operators(devices_by_module(self.parts), strict=strict and model is None)
        if strict and model is not None:
            graph_module = graph_of(model)
            partition_of = self.assign(graph_module).partition_of
            refuse_elsewhere(graph_module, named, partition_of, self.parts, self.topology)
        if not torch_devices:
            return named
        place = {device.name: device.torch_device for device in self.devices}
        return {module: place[name] for module, name in named.items()}

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, in a stable order."""
        return plan_facts(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read plain data, which may have been edited by hand.

        Raises:
            PlanError: it is no plan, one of another version, or an entry is missing, misspelled or makes no sense; the
                message says which one.
        """
        data = read_version(data)
        devices, links = read_devices(data), read_links(data)
        objective, contiguity, pipeline = read_wishes(data)
        try:
            Topology(devices, links)
        except InputError as error:
            raise PlanError(f"In this plan: {error}") from error
        return cls(
            text(data, "model", ""),
            objective,
            devices,
            links,
            read_parts(data, devices),
            read_copies(data),
            read_predicted(data),
            pipeline=pipeline,
            contiguity=contiguity,
            training=read_training(data),
            contents=read_contents(data),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON.

        Raises:
            PlanError: the file cannot be written.
        """
        write_text(path, json.dumps(self.to_json(), indent=2) + "\n", error=PlanError)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file.

        Raises:
            PlanError: there is no such file, or it is no plan.
        """
        data = read_json(path_of(path, "a plan", error=PlanError), "plan file", error=PlanError)
        try:
            return attrs.evolve(cls.from_json(data), file=os.fspath(path))
        except PlanError as error:
            error.message += f" It was read from {os.fspath(path)!r}."
            raise
