"""What was measured, by node and hardware, as a file."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import torch

from fxpasses.errors import InputError
from fxpasses.files import write_text
from fxpasses.partitioners.costs.node_costs import StepWorkspace

__all__ = ["Measurements", "hardware"]

_T = TypeVar("_T")
_FORMAT = 1


@attrs.define
class Measurements:
    """What was measured, by node and on what hardware; a JSON file when saved.

    Args:
        seconds: For each kind of hardware the seconds by key of node.
        workspaces: The same for the bytes that a node needs for itself, where the hardware tells.
        steps: The same for what it needs in a training step.
    """

    seconds: dict[str, dict[str, float]] = attrs.field(factory=dict)
    workspaces: dict[str, dict[str, int]] = attrs.field(factory=dict)
    steps: dict[str, dict[str, StepWorkspace]] = attrs.field(factory=dict)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measurements:
        """Read a file; one that is not there yet holds nothing.

        Raises:
            InputError: It is no file of measurements.
        """
        try:
            text = Path(path).read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; name another file.") from error
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}. Delete it, or name another file.") from error
        try:
            seconds = {where: _numbers(known, float) for where, known in found["seconds"].items()}
            workspaces = {where: _numbers(known, int) for where, known in found.get("workspaces", {}).items()}
            steps = {where: _step_workspaces(known) for where, known in found.get("steps", {}).items()}
            version = found["format"]
        except (ValueError, OverflowError) as error:
            raise InputError(f"{path} holds what is no number: {error}. Delete it, or name another file.") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is JSON, but holds no measured seconds as ProfileCosts writes them; delete it, or name "
                "another file."
            ) from error
        if version != _FORMAT:
            raise InputError(f"{path} is in format {version!r}, and this version reads {_FORMAT}; measure again.")
        measured: list[Mapping[str, float]] = [*seconds.values(), *workspaces.values()]
        for known in measured:
            _check_numbers(path, known)
        for known_steps in steps.values():
            for key, step in known_steps.items():
                _check_numbers(path, {key: min(step.inside, step.kept)})
        return cls(seconds, workspaces, steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, all at once.

        Raises:
            InputError: It cannot be written.
        """
        target = Path(path)
        draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        text = json.dumps({"format": _FORMAT, **attrs.asdict(self)}, indent=1, sort_keys=True)
        write_text(draft, text)
        draft.replace(target)


def _numbers(known: Mapping[str, Any], kind: Callable[[Any], _T]) -> dict[str, _T]:
    if wrong := [key for key, value in known.items() if isinstance(value, bool)]:
        raise ValueError(f"{wrong[0]!r} is {json.dumps(known[wrong[0]])}")
    return {key: kind(value) for key, value in known.items()}


def _step_workspaces(known: Mapping[str, Mapping[str, Any]]) -> dict[str, StepWorkspace]:
    return {key: StepWorkspace(**_numbers(step, int)) for key, step in known.items()}


def _check_numbers(path: object, known: Mapping[str, float]) -> None:
    """Refuse what no clock and no allocator says; files are edited by hand."""
    for key, number in known.items():
        if not 0 <= number < math.inf:
            raise InputError(
                f"{path} has {number!r} for {key!r}, but what is measured is finite and not negative; delete this "
                "entry, and it is measured again."
            )


def hardware(torch_device: str) -> str:
    """What seconds depend on besides the node: the hardware, torch, threads, how exact products are, and by what."""
    device = torch.device(torch_device)
    precision = torch.get_float32_matmul_precision()
    version = f"torch {torch.__version__}" + (f", {precision} precision" if precision != "highest" else "")
    if device.type == "cuda":
        version += "" if torch.backends.cudnn.enabled else ", without cuDNN"
        convolutions = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]  # the module is replaced
        version += "" if convolutions == "tf32" else ", exact convolutions"
        return f"{torch.cuda.get_device_name(device)}, {version}"
    version += "" if torch.backends.mkldnn.enabled else ", without oneDNN"
    return f"{device.type} {_processor()}, {torch.get_num_threads()} threads, {version}"


def _processor() -> str:
    """The model of the processor, where it is known, and the vector instructions that torch uses there."""
    named = Path("/proc/cpuinfo")  # of Linux, where platform knows no more than the architecture
    lines = named.read_text(encoding="utf-8", errors="replace").splitlines() if named.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(models, "") or platform.processor() or platform.machine()
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"
