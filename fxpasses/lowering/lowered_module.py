"""A model on its devices as one callable ``GraphModule`` with the model's own names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from io import BytesIO
from typing import Any, TypeVar, cast

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from fxpasses.devices import Device, same_torch_device
from fxpasses.errors import PlacementError
from fxpasses.guards import GUARDS
from fxpasses.lowering.captured_mode import captured_in_types, captured_otherwise
from fxpasses.lowering.checkpoint_order import checkpoint_places
from fxpasses.lowering.current_state import check_data, tensors_of
from fxpasses.lowering.given_inputs import GivenInputs
from fxpasses.lowering.input_guards import InputGuards, guard_inputs
from fxpasses.lowering.model_paths import HeldTensor, ModelPath, OwnNames, really_at
from fxpasses.lowering.paper_devices import refuse_to_run_on_paper
from fxpasses.lowering.structures import save_flat, with_structure
from fxpasses.outlining.lazy_modules import LazyGraphModule
from fxpasses.passes.placing_parts.direct_run import OTHERWISE, DirectRun, nobody_looks
from fxpasses.passes.placing_parts.loading import loading_again
from fxpasses.passes.placing_parts.recurrent_weights import compact_recurrent_weights
from fxpasses.passes.splitting import Split
from fxpasses.plan import Plan
from fxpasses.programs.input_contract import InputContract, is_traced
from fxpasses.programs.saving import from_file
from fxpasses.report.summary import Summary
from fxpasses.values.vmap_levels import close_levels, open_levels
from fxpasses.wording import listed

__all__ = ["LoweredModule", "OffloadedModule", "device_of_submodules", "lowered_module"]


_DESCRIPTION = ("plan", "report", "program", "qualified_names", "submodule_of", "_replay")

_HELD = ("_parameters", "_buffers", "_modules")

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)

Replay = Callable[[ExportedProgram, Plan], "LoweredModule"]


class LoweredModule(GraphModule):
    """A model on its devices: call it like the model.

    Attributes:
        plan: Which operator runs where; a file when saved.
        report: What each pass did, and seconds and bytes per device.
        program: The captured program after the passes, before it was split.
        qualified_names: The model's own name of each parameter and buffer, by its name here.
        submodule_of: The submodule that holds each part of the plan; one without operators of its own has none.
    """

    plan: Plan
    report: Summary
    program: ExportedProgram
    qualified_names: Mapping[str, str]
    submodule_of: Mapping[str, str]
    _inputs: GivenInputs
    _direct: DirectRun
    _checks_inputs: int  # the key of the hook that it comes with
    _replay: Replay
    _loading: tuple[Mapping[str, str], list[str]]  # the model's own names by those here, and what torch complains about

    def __getattr__(self, name: str) -> Any:
        """What is here, or else what the model has by that name: its state dict names paths of the model."""
        try:
            here = super().__getattr__(name)
        except AttributeError:
            if (found := self._of_model(name)) is None:
                raise
            return found.value() if isinstance(found, HeldTensor) else found
        return ModelPath(self, name, self._own_names) if self._holds_less(name, here) else here

    def _holds_less(self, name: str, here: Any) -> bool:
        """Whether the model's module of this name has more: of it, only what parts share is held here."""
        return type(here) is torch.nn.Module and "qualified_names" in vars(self) and name in self._own_names.modules

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what is here, or else a tensor that the model has by that name."""
        found = self._of_model(name) if isinstance(value, torch.Tensor) else None
        if isinstance(found, HeldTensor):
            found.put(value)
        else:
            super().__setattr__(name, value)

    def get_buffer(self, target: str) -> torch.Tensor:
        """A buffer by its name here, or by the model's own."""
        found, (path, _, name) = self._of_model(target), target.rpartition(".")
        if isinstance(found, HeldTensor):
            return cast("torch.Tensor", found.value())
        here = really_at(self, path)
        return here._buffers[name] if here is not None and name in here._buffers else super().get_buffer(target)

    def _of_model(self, path: str) -> HeldTensor | ModelPath | None:
        """What only the model has at a path."""
        here, name = vars(self), path.partition(".")[0]
        if "qualified_names" not in here or name in here or any(name in here[kind] for kind in _HELD):
            return None
        return self._own_names.at(self, path)

    @cached_property
    def _own_names(self) -> OwnNames:
        return OwnNames.of(self.program.state_dict, self.qualified_names)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model: by its direct code when nobody looks, by the code of its graph otherwise."""
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        levels = open_levels()
        try:
            result = OTHERWISE
            if self._is_undisturbed() and nobody_looks():
                leaves = self._inputs.leaves_of(args, kwargs)
                result = OTHERWISE if is_traced(leaves) else self._direct(self, leaves)
            return super().__call__(*args, **kwargs) if result is OTHERWISE else result
        except BaseException:
            close_levels(levels)
            raise

    def _is_undisturbed(self) -> bool:
        """Whether calling it does nothing but check its inputs and run its graph."""
        return not (
            len(self._forward_pre_hooks) != 1
            or self._checks_inputs not in self._forward_pre_hooks
            or self._forward_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or self._compiled_call_impl is not None
            or "forward" in self.__dict__  # somebody put another one in its place
        )

    def __copy__(self) -> LoweredModule:
        """Another lowered model of the same graph, parts and tensors; hooks on this one are not taken over."""
        kind = OffloadedModule if isinstance(self, OffloadedModule) else LoweredModule
        copied = kind(self, self.graph, "LoweredModule")
        copied.meta.update(self.meta)
        vars(copied).update((name, vars(self)[name]) for name in _DESCRIPTION if name in vars(self))
        _make_callable(self, copied, self._inputs)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredModule:
        """A copy with tensors of its own; what describes the model is shared."""
        described = {name: vars(self)[name] for name in _DESCRIPTION if name in vars(self)}
        memo.update((id(value), value) for value in (*described.values(), self._inputs))
        copied = cast("LoweredModule", super().__deepcopy__(memo))
        vars(copied).update(described)
        _make_callable(self, copied, self._inputs)
        compact_recurrent_weights(copied)
        if "plan" in described:
            refuse_to_run_on_paper(copied, self.plan.device_of.values())
        return copied

    def __reduce__(self) -> Any:
        """Pickle the program, the plan and the state; graphs edited by hand and hooks are not kept."""
        check_data(self, self.program, self.qualified_names, device_of_submodules(self))
        file = BytesIO()
        structure = save_flat(self.program, file)
        held = {id(each) for each in (*self.program.state_dict.values(), *self.program.constants.values())}
        tensors = tensors_of(self)
        own = {name: each for name, each in tensors.items() if id(each) not in held and not each.is_meta}
        state = {name: each.detach().cpu() for name, each in own.items()}
        trained = {name for name, each in tensors.items() if each.requires_grad}
        types = zip(InputContract.of(self.program).types, self._inputs.contract.types, strict=True)
        converted = {before: after for before, after in types if before is not None and after is not None}
        packed = _Packed(file.getvalue(), structure, self.plan.to_json(), state, trained, self.training, converted)
        return (_unpacked, (self._replay, packed))

    @property
    def direct_code(self) -> str | None:
        """What runs when nobody looks: the whole graph as one function; None if its own code always runs."""
        return self._direct.source(self)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> LoweredModule:
        """Convert all tensors where they are, or to ``meta``; torch asks for this in ``to``, ``cuda`` and ``half``.

        Operators that name a type keep it, and a warning says which do.
        """
        for here in {tensor.device for tensor in (*self.parameters(), *self.buffers()) if not tensor.is_meta}:
            there = _moved_to(fn, here)
            if there.type != "meta" and not same_torch_device(here, there):
                raise PlacementError(
                    f"A lowered model cannot be moved from {here} to {there}: its plan says where each part runs, and "
                    "copies go between these. Lower the model again with other devices, or edit and replay the plan."
                )
        held = [
            (table, name, tensor)
            for module in self.modules()
            for table in (module._parameters, module._buffers)
            for name, tensor in table.items()
        ]
        self._warn_of_types({tensor.dtype for _table, _name, tensor in held if tensor is not None}, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        converted: dict[int, Any] = {}
        for table, name, tensor in held:  # torch converts what several parts hold once for each
            table[name] = converted.setdefault(id(tensor), table[name])
        compact_recurrent_weights(self)
        types = {dtype for dtype in self._inputs.contract.types if dtype is not None}
        self._take_inputs_in({dtype: fn(torch.empty(0, dtype=dtype)).dtype for dtype in types})
        return self

    def _warn_of_types(self, types: Collection[torch.dtype], fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Say which operators name a type that is converted."""
        into = {dtype: fn(torch.empty(0, dtype=dtype)).dtype for dtype in types}
        changed = {before: after for before, after in into.items() if before != after}
        if changed and (otherwise := captured_in_types(self.program.graph_module, changed)):
            before, after = next(iter(sorted(changed.items(), key=str)))
            warnings.warn(
                f"The model was captured in {before}, and stays so in {listed(node.name for node in otherwise)}. To "
                f"run it in {after}, convert the model (model.to({after})) and lower it again.",
                stacklevel=4,
            )

    def _take_inputs_in(self, converted: Mapping[torch.dtype, torch.dtype]) -> None:
        """Ask for inputs in other types than before."""
        if any(before != after for before, after in converted.items()):
            contract = self._inputs.contract.in_types(converted)
            self._inputs = attrs.evolve(self._inputs, contract=contract)
            self._forward_pre_hooks[self._checks_inputs] = self._inputs
            self._guard_inputs()

    def _guard_inputs(self) -> None:
        """Let the graph, if it has a check of its own, ask for the same inputs as calls do."""
        if self._modules.pop(GUARDS, None) is not None:
            self._modules[GUARDS] = InputGuards(self._inputs.contract)  # behind the parts

    def train(self, mode: bool = True) -> LoweredModule:
        """Switch the mode; operators keep the one in which they were captured, and a warning says which do."""
        if otherwise := captured_otherwise(self.program.graph, mode):
            was, names = "evaluation" if mode else "training", listed(node.name for node in otherwise)
            warnings.warn(
                f"The model was captured in {was}, and stays so in {names}. To run it in the other mode, call "
                f"model.{'train' if mode else 'eval'}() and lower it again.",
                stacklevel=2,
            )
        return super().train(mode)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Parameters in the model's own order, as an optimizer's checkpoint counts them.

        Each is listed once, under the model's own name; without ``remove_duplicate`` under all of its names here, of
        which each part that uses it has one.
        """
        named = super().named_parameters("", recurse, remove_duplicate)
        yield from _behind(prefix, self._as_in_model(named, remove_duplicate))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Buffers, under the model's own names and in its order as parameters are."""
        named = super().named_buffers("", recurse, remove_duplicate)
        yield from _behind(prefix, self._as_in_model(named, remove_duplicate))

    def _as_in_model(
        self, named: Iterable[tuple[str, _Tensor]], remove_duplicate: bool
    ) -> Iterable[tuple[str, _Tensor]]:
        """In the model's own order, and where each is listed once under its own names."""
        places, names = _places(self.program), self.qualified_names
        ordered = sorted(named, key=lambda each: places.get(names.get(each[0], each[0]), len(places)))
        return self._own_named(ordered) if remove_duplicate else ordered

    def _own_named(self, named: Iterable[tuple[str, _Tensor]]) -> list[tuple[str, _Tensor]]:
        """Under the model's own names; what somebody put in the place of one in a single part keeps its name here."""
        first, found = self._own_names.first, dict[str, _Tensor]()
        for here, tensor in named:
            own = self.qualified_names.get(here, here)
            own = first.get(own, own)
            found[here if own in found else own] = tensor
        return list(found.items())

    def _fqn_modifiers(self) -> Mapping[str, str]:
        """The steps that ``torch.distributed.checkpoint`` leaves out of names: the parts."""
        return {f"{part}.": part for part in self.submodule_of.values()}  # a key that is no step of any name

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """Itself and the modules in it.

        A module around it asks with a ``memo``, and takes the parameters of each of these, every one the first time: a
        module that only lists them comes first there, so that they are in the model's own order, too.
        """
        if memo is not None and remove_duplicate and self not in memo:
            listing = torch.nn.Module()
            listing._parameters.update(self.named_parameters())
            listing._buffers.update(self.named_buffers())
            yield prefix, listing
        yield from super().named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Parameters and buffers under the model's own names, in its order, also where it is part of another module."""
        if args:  # as old code gives them
            given: Any = (*args, *(destination, prefix, keep_vars)[len(args) :])
            destination, prefix, keep_vars = given
        own: Any = super().state_dict(prefix=prefix, keep_vars=keep_vars)
        names, places = self.qualified_names, checkpoint_places(self.program)
        entries = [(names.get(key[len(prefix) :], key[len(prefix) :]), value) for key, value in own.items()]
        entries.sort(key=lambda entry: places.get(entry[0], len(places)))
        renamed = {prefix + name: value for name, value in entries}
        if destination is None:
            destination = type(own)()
            destination._metadata = own._metadata
        elif hasattr(destination, "_metadata"):
            destination._metadata.update(own._metadata)
        destination.update(renamed)
        return destination

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a checkpoint of the model, whose own names are expected; torch asks each module of a module for this."""
        held = {prefix + key: value for key, value in super().state_dict(keep_vars=True).items()}
        names = {key: prefix + self.qualified_names.get(key[len(prefix) :], key[len(prefix) :]) for key in held}
        found = {key: state_dict[name] for key, name in names.items() if name in state_dict}
        if args[0].get("assign_to_params_buffers"):
            assigned = _kept_tied(found, held)
            missing: list[str] = args[2]
            missing.extend(names[key] for key in assigned if key not in found)
            found = assigned
        for name in set(names.values()):
            state_dict.pop(name, None)
        state_dict.update(found)
        self._loading = names, args[-1]
        super()._load_from_state_dict(state_dict, prefix, *args)


def _moved_to(fn: Callable[[torch.Tensor], torch.Tensor], here: torch.device) -> torch.device:
    """Where a conversion puts what is on a device, also if that is a device that this torch cannot use."""
    try:
        return fn(torch.empty(0, device=here)).device
    except (AssertionError, RuntimeError):  # torch compiled without it, or no driver
        asked = _AskedDevice()
        with suppress(AssertionError, RuntimeError), asked:  # the same again
            fn(torch.empty(0, device=here))
        if asked.device is None or asked.device.type == here.type:
            raise
        return asked.device


class _AskedDevice(TorchFunctionMode):
    """Which device a conversion asks for, seen before torch looks for it."""

    device: torch.device | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (*args, *(kwargs or {}).values())
        if func is torch.Tensor.cuda:
            given = (torch.device("cuda"), *given)
        self.device = next((each for each in given if isinstance(each, torch.device)), self.device)
        return func(*args, **(kwargs or {}))


def _behind(prefix: str, named: Iterable[tuple[str, _Tensor]]) -> Iterator[tuple[str, _Tensor]]:
    for name, tensor in named:
        yield f"{prefix}.{name}" if prefix else name, tensor


def _kept_tied(found: Mapping[str, Any], held: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Tensors to assign: one for all names of a tensor, where it is; torch makes each name, and each part, its own."""
    last = {id(held[key]): value for key, value in found.items()}
    made = {id(tensor): _like(tensor, last[id(tensor)]) for tensor in held.values() if id(tensor) in last}
    return {key: made[id(tensor)] for key, tensor in held.items() if id(tensor) in made}


def _like(tensor: torch.Tensor, value: Any) -> Any:
    """What a checkpoint has in the place of a tensor, on its device and as a parameter where that is one."""
    if isinstance(value, torch.Tensor) and not (tensor.is_meta or value.is_meta):
        value = value.to(tensor.device)
    if isinstance(tensor, torch.nn.Parameter) and isinstance(value, torch.Tensor):
        is_parameter = isinstance(value, torch.nn.Parameter)
        return value if is_parameter else torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value


def _tell_own_names(lowered: LoweredModule, keys: Any) -> None:
    """Parts tell what they miss or cannot take under their own names, and after the lowered model itself was asked."""
    names, complaints = lowered._loading
    keys.missing_keys[:] = dict.fromkeys(names.get(key, key) for key in keys.missing_keys)
    for key, name in names.items():
        complaints[:] = [text.replace(f" {key}:", f" {name}:").replace(f'"{key}"', f'"{name}"') for text in complaints]


class OffloadedModule(LoweredModule):
    """A lowered model of which some parts load their parameters when they run, in backward as in forward."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; autograd keeps no loaded parameter, unless the model is compiled."""
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        with loading_again():
            return super().__call__(*args, **kwargs)


def lowered_module(parts: Split, program: ExportedProgram, *, replay: Replay, offloads: bool = False) -> LoweredModule:
    """Make the module that users call from a split whose parts are on their devices.

    Args:
        parts: The split, placed.
        program: What it was made of.
        replay: What makes such a module of a program and a plan, for pickles.
        offloads: Whether parts load parameters.
    """
    placed = parts.graph_module
    inputs = GivenInputs.of(InputContract.of(program), placed)
    guard_inputs(placed, inputs.contract)
    lowered = (OffloadedModule if offloads else LoweredModule)(placed, placed.graph, "LoweredModule")
    lowered.meta.update(placed.meta)
    lowered.program = program
    lowered._replay = replay
    lowered.qualified_names = parts.original_names
    lowered.submodule_of = {str(part): name for part, name in parts.part_names.items()}
    _make_callable(placed, lowered, inputs)
    return lowered


def _make_callable(source: GraphModule, lowered: LoweredModule, inputs: GivenInputs) -> None:
    """Give a new module what ``GraphModule(root, graph)`` did not take over from its source."""
    _keep_persistence(source, lowered)
    for part in lowered.modules():
        if isinstance(part, LazyGraphModule):
            part.take_own_class()
    lowered._inputs = inputs
    lowered._guard_inputs()  # a copy has the module of its source
    lowered._direct = DirectRun()
    if _tell_own_names not in lowered._load_state_dict_post_hooks.values():  # a copy has those of its source
        lowered.register_load_state_dict_post_hook(_tell_own_names)  # type: ignore[no-untyped-call]  # torch does not say
    lowered._checks_inputs = lowered.register_forward_pre_hook(inputs, with_kwargs=True).id


@attrs.frozen
class _Packed:
    """What a pickle holds: state that the program does not share with the module stands beside it."""

    program: bytes
    structure: Mapping[str, Any]
    plan: Any
    state: Mapping[str, torch.Tensor]
    trained: Collection[str]
    training: bool
    converted: Mapping[torch.dtype, torch.dtype]


def device_of_submodules(lowered: LoweredModule) -> dict[str, Device]:
    """The device of each part's submodule, by its name."""
    return {name: lowered.plan.device_of[part] for part, name in lowered.submodule_of.items()}


def _unpacked(replay: Replay, packed: _Packed) -> LoweredModule:
    """Load a pickle: replay the plan, and put the state back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = from_file(BytesIO(packed.program))
    lowered = replay(with_structure(program, packed.structure), Plan.from_json(packed.plan))
    with torch.no_grad():
        for name, tensor in tensors_of(lowered).items():
            tensor.requires_grad_(name in packed.trained)
            if name in packed.state and tensor.dtype != packed.state[name].dtype:  # the module was converted
                tensor.data = packed.state[name].to(tensor.device)
            elif name in packed.state:
                tensor.copy_(packed.state[name])
    torch.nn.Module.train(lowered, packed.training)
    lowered._take_inputs_in(packed.converted)
    return lowered


def _places(program: ExportedProgram) -> dict[str, int]:
    """The place of each parameter and buffer in the model's own order, by name; of tied ones that of the first."""
    tensors, signature = {**program.constants, **program.state_dict}, program.graph_signature
    first: dict[int, int] = {}
    return {name: first.setdefault(id(tensors[name]), len(first)) for name in signature.parameters + signature.buffers}


def _keep_persistence(source: GraphModule, target: GraphModule) -> None:
    """``GraphModule(root, graph)`` makes every tensor a persistent buffer; keep apart what was out of checkpoints."""
    holders = dict(target.named_modules())
    for name, module in source.named_modules():
        if (holder := holders.get(name)) is None:
            continue
        kept = module._buffers.keys() - module._non_persistent_buffers_set
        holder._non_persistent_buffers_set |= holder._buffers.keys() - kept
        for constant in sorted(holder._buffers.keys() & vars(module).keys()):
            holder._non_persistent_buffers_set.discard(constant)
            holder.__dict__[constant] = holder._buffers.pop(constant)
