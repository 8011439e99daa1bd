"""What becomes of a parameter that several stages use: each holds a copy, or one holds it and sends its value."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch.fx import GraphModule

from fxpasses.editing.attributes import Attribute, state_of
from fxpasses.errors import StageError

__all__ = ["MultiUseParamSpec", "MultiUseParameterConfig", "sharing_policy"]


class MultiUseParameterConfig(enum.Enum):
    """How stages share a parameter.

    TRANSMIT: The first stage that uses it holds it, and its value travels to the others with each micro-batch; their
    gradients travel back and add up there.

    REPLICATE: Each stage that uses it holds it; in processes of their own these are copies, whose gradients
    :meth:`fxpasses.pipelining.Pipe.tie_parameters` adds up after each step.
    """

    TRANSMIT = 1
    REPLICATE = 2


MultiUseParamSpec = MultiUseParameterConfig | Mapping[str, MultiUseParameterConfig]
"""One way for all parameters, or one for each by name; what is not named is replicated."""


def sharing_policy(
    graph_module: GraphModule, spec: MultiUseParamSpec | None
) -> Callable[[str, Any, tuple[str, ...]], Literal["own", "share"]]:
    """The splitter's policy for constants, by what the user wants of parameters.

    Args:
        graph_module: The captured model.
        spec: What the user gave; None replicates.

    Raises:
        StageError: A name that is no parameter, a value that is no MultiUseParameterConfig, or two names of one
            parameter that ask for different things.
    """
    transmitted = _transmitted(graph_module, spec)

    def policy(_name: str, value: Any, _parts: tuple[str, ...]) -> Literal["own", "share"]:
        return "own" if id(value) in transmitted else "share"

    return policy


def _transmitted(graph_module: GraphModule, spec: MultiUseParamSpec | None) -> dict[int, str]:
    """The parameters to transmit, by identity; with the name that asked for it."""
    state = state_of(graph_module)
    parameters = {name: held for name, held in state.items() if held.kind == "parameter"}
    if spec is None or isinstance(spec, MultiUseParameterConfig):
        wanted = parameters if spec is MultiUseParameterConfig.TRANSMIT else {}
        return {id(held.value): name for name, held in wanted.items()}
    if not isinstance(spec, Mapping):
        raise StageError(
            f"multi_use_param_spec is {spec!r}; write MultiUseParameterConfig.TRANSMIT or REPLICATE, "
            "or a dict of these by parameter name"
        )
    asked: dict[int, str] = {}
    for name, config in spec.items():
        _check_entry(name, config, parameters)
        first = asked.setdefault(id(parameters[name].value), name)
        if spec[first] is not config:
            raise StageError(
                f"{first!r} and {name!r} are one parameter, but multi_use_param_spec asks for {spec[first].name} and "
                f"{config.name}; name it once"
            )
    return {key: name for key, name in asked.items() if spec[name] is MultiUseParameterConfig.TRANSMIT}


def _check_entry(name: str, config: object, parameters: Mapping[str, Attribute]) -> None:
    if name not in parameters:
        nearest = difflib.get_close_matches(name, list(parameters), n=3)
        hint = f"the nearest names are {', '.join(map(repr, nearest))}" if nearest else "no name comes near"
        raise StageError(f"multi_use_param_spec names {name!r}, which is no parameter of the model; {hint}")
    if not isinstance(config, MultiUseParameterConfig):
        raise StageError(
            f"multi_use_param_spec has {config!r} for {name!r}; write MultiUseParameterConfig.TRANSMIT or REPLICATE"
        )
