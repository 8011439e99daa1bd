"""The model's own paths to its tensors, in a module that holds them in its parts.

``torch.func.functional_call``, ``torch.distributed.checkpoint.state_dict`` and ``get_parameter`` take the names of a
state dict for paths of attributes, and go along them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import torch

from fxpasses.partitioners.placing.names.device_maps import holders

__all__ = ["HeldTensor", "ModelPath", "OwnNames", "really_at"]


@attrs.frozen
class OwnNames:
    """The model's own names of what a module holds.

    Args:
        held: The names in the module of each tensor, by the model's own name; those of tied weights are one list.
        first: The name by which each weight is set: of tied ones the first.
        modules: The paths of the modules that hold them.
    """

    held: Mapping[str, Sequence[str]]
    first: Mapping[str, str]
    modules: Collection[str]

    @classmethod
    def of(cls, state_dict: Mapping[str, torch.Tensor], qualified_names: Mapping[str, str]) -> OwnNames:
        """From the state of the model, and its name of each tensor by the name in the module."""
        firsts: dict[int, str] = {}
        first = {name: firsts.setdefault(id(tensor), name) for name, tensor in state_dict.items()}
        lists: dict[str, list[str]] = {}
        for here, own in qualified_names.items():
            lists.setdefault(first.get(own, own), []).append(here)
        owners = dict.fromkeys((*qualified_names.values(), *(name for name in first if first[name] in lists)))
        modules = {step for own in owners for step in holders(own.rpartition(".")[0])}
        return cls({own: lists[first.get(own, own)] for own in owners}, first, modules)

    def at(self, root: torch.nn.Module, path: str) -> HeldTensor | ModelPath | None:
        """What the model has at a path; None where it has nothing that holds tensors."""
        if path in self.held:
            return HeldTensor(root, path, self.held[path], self.first.get(path, path))
        return ModelPath(root, path, self) if path in self.modules else None


@attrs.frozen
class HeldTensor:
    """A tensor of the model, where all the parts that use it hold it.

    Args:
        root: The module that holds the parts.
        name: Its name in the model.
        held: Its names in the module.
        first: The name by which it is set.
    """

    root: torch.nn.Module
    name: str
    held: Sequence[str]
    first: str

    def value(self) -> Any:
        """What the first part holds."""
        path, _, name = self.held[0].rpartition(".")
        return getattr(really_at(self.root, path), name)

    def put(self, value: torch.Tensor) -> None:
        """Let all parts hold another one: as it is, for ``functional_call`` puts tensors in the place of parameters.

        Raises:
            ValueError: It is tied to one that comes before it. Whoever sets both would get one of them back.
        """
        if self.name != self.first:
            raise ValueError(f"{self.name} is tied to {self.first}; give {self.first} alone, and both are set.")
        for path, _, name in (each.rpartition(".") for each in self.held):
            _put(really_at(self.root, path), name, value)


def really_at(root: torch.nn.Module, path: str) -> Any:
    """What really is at a path, where the root would give the model's; None where nothing is."""
    module: torch.nn.Module | None = root
    for step in path.split(".") if path else ():
        module = None if module is None else module._modules.get(step)
    return module


def _put(module: torch.nn.Module, name: str, value: Any) -> None:
    table = next((each for each in (module._parameters, vars(module)) if name in each), module._buffers)
    table[name] = value


class ModelPath(torch.nn.Module):
    """A module of the model: what is read and set here is what the parts hold. It cannot be called.

    What several parts share, or none uses, may be in a module that really is at the path; that counts first.

    Args:
        root: The module that holds the parts.
        path: The path of the module in the model.
        names: The model's names.
    """

    def __init__(self, root: torch.nn.Module, path: str, names: OwnNames) -> None:
        super().__init__()
        own = vars(self)  # past __setattr__; key by key, as torch.compile of torch 2.11 follows no update()
        own["_root"], own["_path"], own["_names"] = root, path, names

    def _own_holder(self, name: str) -> torch.nn.Module | None:
        """The module that really is here, if it has a tensor, or a constant of the program, by that name."""
        here = really_at(vars(self)["_root"], vars(self)["_path"])
        if here is None or name in vars(self):  # what every module has
            return None
        is_held = name in here._parameters or name in here._buffers or name in vars(here)
        return here if is_held else None

    def _at(self, name: str) -> HeldTensor | ModelPath | None:
        own = vars(self)
        found: HeldTensor | ModelPath | None = own["_names"].at(own["_root"], f"{own['_path']}.{name}")
        return found

    def __getattr__(self, name: str) -> Any:
        """A tensor that the parts hold, or a module further down."""
        if (here := self._own_holder(name)) is not None:
            return getattr(here, name)
        if (found := self._at(name)) is not None:
            return found.value() if isinstance(found, HeldTensor) else found
        path = f"{vars(self)['_path']}.{name}"
        if (here := really_at(vars(self)["_root"], path)) is None:
            raise AttributeError(f"the model has no {path}")
        return here

    def __getitem__(self, place: int | str) -> Any:
        """A module of a list or a dict of them."""
        try:
            return getattr(self, str(place))
        except AttributeError as error:
            raise (IndexError if isinstance(place, int) else KeyError)(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a tensor in all parts that hold it."""
        found = self._at(name) if isinstance(value, torch.Tensor) else None
        if (here := self._own_holder(name)) is not None:
            _put(here, name, value)
        elif isinstance(found, HeldTensor):
            found.put(value)
        else:
            super().__setattr__(name, value)

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Say that there is nothing to run."""
        raise NotImplementedError(
            f"{vars(self)['_path']} is a path to the model's tensors; its operators run in the parts. Call the model."
        )
