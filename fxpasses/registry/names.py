"""The registry: which names there are, which options they take, and what a text makes of them."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs

from fxpasses.arguments import REQUIRED
from fxpasses.errors import FxPassesError, InputError, PipelineError, PipelineSyntaxError
from fxpasses.pass_base import ExportedProgramPassBase, FunctionPass, PassBase, naming
from fxpasses.registry.pipeline_grammar import (
    OptionText,
    PassText,
    kebab_case,
    option_name,
    parse_pipeline_text,
    read_value,
    syntax_error,
    write_value,
)
from fxpasses.wording import did_you_mean

__all__ = [
    "ENTRY_POINT_GROUP",
    "PassEntry",
    "PassOption",
    "Registry",
    "default_registry",
    "parse_pipeline",
    "pipeline_text",
    "register_condition",
    "register_pass",
]

PassT = TypeVar("PassT", bound=Callable[..., Any])

ENTRY_POINT_GROUP = "fxpasses.passes"
"""The group of entry points in which an installed package lists its passes."""

_INNER = "passes"
_REQUIRED: Any = REQUIRED


@attrs.frozen
class PassOption:
    """One option of a pass.

    Args:
        name: As the class spells it (``max_bytes``); text spells it ``max-bytes``.
        type: Its declared type; ``Any`` if it declares none.
        default: ``fxpasses.arguments.REQUIRED`` if it must be given.
    """

    name: str
    type: Any = Any
    default: Any = _REQUIRED

    @property
    def text_name(self) -> str:
        """The name in text."""
        return option_name(self.name)

    @property
    def is_size(self) -> bool:
        """It counts bytes."""
        return "bytes" in self.name.split("_")


@attrs.frozen
class PassEntry:
    """A name and what it stands for.

    Args:
        name: The name in text.
        maker: The class of the pass, a function that is a pass, or a pass object without options.
        origin: Who brought it, for messages.
    """

    name: str
    maker: Any
    origin: str

    @property
    def options(self) -> tuple[PassOption, ...]:
        """What can stand in braces, without the inner passes."""
        return tuple(option for option in _parameters(self.maker) if option.name != _INNER)

    @property
    def takes_passes(self) -> bool:
        """Passes can stand in parentheses."""
        return any(option.name == _INNER for option in _parameters(self.maker))

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        documented = self.maker.function if isinstance(self.maker, FunctionPass) else self.maker
        return (inspect.getdoc(documented) or "").strip().partition("\n")[0]

    def make(self, options: dict[str, Any]) -> Any:
        """The pass with these options."""
        return self.maker(**options) if inspect.isclass(self.maker) else self.maker


def _parameters(maker: Any) -> tuple[PassOption, ...]:
    if not inspect.isclass(maker):
        return ()
    if attrs.has(maker):
        fields = [field for field in attrs.fields(maker) if field.init]
        return tuple(
            PassOption(field.alias or field.name, _field_type(maker, field), _default(field.default))
            for field in fields
        )
    try:
        formal = list(inspect.signature(maker).parameters.values())
    except (TypeError, ValueError):  # a constructor in C
        return ()
    hints = _hints(maker.__init__)
    return tuple(
        PassOption(p.name, hints.get(p.name, Any), _REQUIRED if p.default is p.empty else p.default)
        for p in formal
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )


def _field_type(maker: type, field: attrs.Attribute[Any]) -> Any:
    """The type of a field; one given as text is looked up in the module of the class that declares it."""
    written: Any = field.type  # annotated as a type, but text under postponed evaluation
    if not isinstance(written, str):
        return written or Any
    owner = next((base for base in maker.__mro__ if field.name in vars(base).get("__annotations__", {})), maker)
    holder = types.SimpleNamespace(__annotations__={field.name: written})
    try:
        return typing.get_type_hints(holder, globalns=vars(sys.modules[owner.__module__]))[field.name]
    except (NameError, TypeError):  # a name that only a type checker knows
        return Any


def _hints(annotated: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotated)
    except (NameError, TypeError):  # annotations that only a type checker can resolve
        return {}


def _default(default: Any) -> Any:
    if default is attrs.NOTHING:
        return _REQUIRED
    if hasattr(default, "takes_self"):  # an attrs.Factory
        return default.factory() if not default.takes_self else _REQUIRED
    return default


class Registry:
    """A table of names; explicit, so that a test or a tool can have one of its own.

    Args:
        sources: Functions that add to the table; they run the first time somebody looks a name up.
    """

    def __init__(self, sources: Iterable[Callable[[Registry], None]] = ()) -> None:
        self._waiting = list(sources)
        self._entries: dict[str, PassEntry] = {}
        self._conditions: dict[str, Callable[..., Any]] = {}
        self._problems: dict[str, str] = {}

    # --- filling ------------------------------------------------------------------------------------------------

    def register(self, maker: Any, name: str | None = None, *, origin: str | None = None) -> PassEntry:
        """Give a pass a name.

        Args:
            maker: A class whose options are its fields or ``__init__`` parameters, a function, or a pass object.
            name: The name; made from the class or function name if None.
            origin: Who brings it; the module of ``maker`` if None.

        Returns:
            The entry. The same thing may be registered twice under the same name.

        Raises:
            PipelineError: The name is taken by something else, cannot be written, or ``maker`` is no pass.
        """
        if not callable(maker):
            raise PipelineError(f"{maker!r} is no pass: register a class, a function, or a pass object")
        name = name or kebab_case(naming.pass_name(maker))
        if not _is_writable(name):
            raise PipelineError(f"{name!r} cannot be the name of a pass: use letters, digits, '-', '_' and '.'")
        entry = PassEntry(name, maker, origin or str(getattr(maker, "__module__", None) or type(maker).__module__))
        taken = self._entries.get(name)
        if taken is not None and not _same_maker(taken.maker, maker):
            raise PipelineError(
                f"the name {name!r} is taken: {_described(taken)} has it, and {_described(entry)} wants it; "
                f"register one of them under another name"
            )
        self._entries[name] = taken or entry
        return self._entries[name]

    def register_condition(self, function: Callable[..., Any], name: str | None = None) -> None:
        """Give a condition a name, for ``when(...){condition=name}``.

        Raises:
            PipelineError: The name is taken by another condition.
        """
        name = name or kebab_case(naming.pass_name(function))
        if self._conditions.get(name, function) is not function:
            raise PipelineError(f"the condition name {name!r} is taken by {self._conditions[name]!r}")
        self._conditions[name] = function

    def load_entry_points(self, group: str = ENTRY_POINT_GROUP) -> None:
        """Register what installed packages offer.

        A package that cannot be imported, or that wants a name which is taken, hurts only those who use that name: they
        get the error, which names the package.
        """
        for point in sorted(importlib.metadata.entry_points(group=group), key=lambda point: (point.name, point.value)):
            package = point.dist.name if point.dist is not None else "an installed package"
            try:
                self.register(point.load(), point.name, origin=f"entry point of {package}")
            except Exception as error:  # a package of somebody else's may fail in any way
                reason = error.message if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
                self._problems[point.name] = (
                    f"the pass {point.name!r} of {package} ({point.value}) cannot be used: {reason}; "
                    f"repair or uninstall {package}"
                )

    def _fill(self) -> None:
        while self._waiting:
            self._waiting[0](self)
            self._waiting.pop(0)

    # --- looking up ---------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All names, sorted."""
        self._fill()
        return sorted(self._entries)

    def entries(self) -> list[PassEntry]:
        """All entries, sorted by name."""
        return [self._entries[name] for name in self.names()]

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._entries

    def __getitem__(self, name: str) -> PassEntry:
        self._fill()
        if (problem := self._problem(name)) is not None:
            raise PipelineError(problem)
        return self._entries[name]

    def _problem(self, name: str) -> str | None:
        """Why a name cannot be used."""
        if name in self._problems or name in self._entries:
            return self._problems.get(name)
        known = ", ".join(sorted(self._entries)) or "none"
        return f"unknown pass {name!r}{did_you_mean(name, self._entries)} There are: {known}"

    def entry_of(self, pass_: Any) -> PassEntry:
        """The entry that made a pass.

        Raises:
            PipelineError: It has no name.
        """
        self._fill()
        for entry in self._entries.values():
            if _same_maker(entry.maker, pass_) or (inspect.isclass(entry.maker) and type(pass_) is entry.maker):
                return entry
        raise PipelineError(
            f"the pass {naming.spelled(pass_)} has no name to write it by; register it with @register_pass"
        )

    # --- text ---------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> Any:
        """Make the :class:`~fxpasses.PassManager` that a text describes.

        >>> registry = Registry()
        >>> registry.parse("reemove")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        PipelineSyntaxError: unknown pass 'reemove'

        Raises:
            PipelineSyntaxError: The text does not parse, names an unknown pass or option, or gives a value of the
                wrong type; the message points at the character and lists what there is.
        """
        from fxpasses.pass_manager import PassManager

        self._fill()
        made = [self._build(each, text) for each in parse_pipeline_text(text)]
        return made[0] if len(made) == 1 and type(made[0]) is PassManager else PassManager(made)

    def _build(self, found: PassText, text: str) -> Any:
        if (problem := self._problem(found.name)) is not None:
            raise syntax_error(text, found.column, problem)
        entry = self._entries[found.name]
        options = self._read_options(entry, found, text)
        if entry.takes_passes:
            if found.inner is None:
                reason = f"{found.name!r} needs passes in parentheses: {found.name}(pass,pass)"
                raise syntax_error(text, found.column + len(found.name), reason)
            options[_INNER] = [self._build(each, text) for each in found.inner]
        elif found.inner is not None:
            raise syntax_error(text, found.column + len(found.name), f"{found.name!r} takes no passes in parentheses")
        try:
            return entry.make(options)
        except (FxPassesError, TypeError, ValueError) as error:
            raise syntax_error(text, found.column, f"{found.name!r} refuses these options: {error}") from error

    def _read_options(self, entry: PassEntry, found: PassText, text: str) -> dict[str, Any]:
        known = {option.text_name: option for option in entry.options}
        options: dict[str, Any] = {}
        for given in found.options:
            option = known.get(option_name(given.name))
            if option is None:
                raise syntax_error(text, given.column, _unknown_option(entry, given, list(known)))
            options[option.name] = self._read_option(option, given, text)
        for option in entry.options:
            if option.default is _REQUIRED and option.name not in options:
                column = found.column + len(found.name)
                raise syntax_error(text, column, f"{entry.name!r} needs the option {option.text_name!r}")
        return options

    def _read_option(self, option: PassOption, given: OptionText, text: str) -> Any:
        if _is_condition(option.type):
            return self._condition(given, text)
        try:
            return read_value(given.value, option.type)
        except InputError as error:
            raise syntax_error(text, given.value.column, f"option {given.name!r}: {error}") from None

    def _condition(self, given: OptionText, text: str) -> Callable[..., Any]:
        name = getattr(given.value, "text", "")
        if name not in self._conditions:
            there = ", ".join(sorted(self._conditions)) or "none; register one with register_condition"
            raise syntax_error(text, given.value.column, f"unknown condition {name!r}. There are: {there}")
        return self._conditions[name]

    def text_of(self, pipeline: Any) -> str:
        """Write a pipeline so that :meth:`parse` gives an equal one; options at their defaults are left out.

        Args:
            pipeline: A PassManager, a list of passes, or one pass.

        Raises:
            PipelineError: A pass has no name, or an option cannot be written.
        """
        from fxpasses.pass_manager import PassManager

        if type(pipeline) is PassManager and not self._written_options(self.entry_of(pipeline), pipeline):
            pipeline = pipeline.passes
        passes = pipeline if isinstance(pipeline, list | tuple) else [pipeline]
        return ",".join(self._text_of_pass(each) for each in passes)

    def _text_of_pass(self, pass_: Any) -> str:
        entry = self.entry_of(pass_)
        inner = f"({self.text_of(list(getattr(pass_, _INNER)))})" if entry.takes_passes else ""
        options = self._written_options(entry, pass_)
        return f"{entry.name}{inner}{{{','.join(options)}}}" if options else f"{entry.name}{inner}"

    def _written_options(self, entry: PassEntry, pass_: Any) -> list[str]:
        defaults = _defaults(entry)
        values = [(option, _option_value(pass_, option)) for option in entry.options]  # defaults may not be hashable
        return [
            f"{option.text_name}={self._write_option(option, value)}"
            for option, value in values
            if not _is_default(defaults.get(option.name, _REQUIRED), value)
        ]

    def _write_option(self, option: PassOption, value: Any) -> str:
        if _is_condition(option.type):
            for name, function in self._conditions.items():
                if function is value:
                    return name
            raise PipelineError(f"the condition {value!r} has no name; register it with register_condition")
        return write_value(value, is_size=option.is_size)


def _is_writable(name: str) -> bool:
    try:
        return parse_pipeline_text(name) == (PassText(name, 0),)
    except PipelineSyntaxError:
        return False


def _same_maker(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if isinstance(left, FunctionPass) or isinstance(right, FunctionPass):
        return getattr(left, "function", left) is getattr(right, "function", right)
    return False


def _described(entry: PassEntry) -> str:
    return f"{naming.pass_name(entry.maker)} ({entry.origin})"


def _unknown_option(entry: PassEntry, given: OptionText, known: Sequence[str]) -> str:
    hint = did_you_mean(option_name(given.name), known)
    return f"{entry.name!r} has no option {given.name!r}{hint} Its options: {', '.join(known) or 'none'}"


def _is_condition(kind: Any) -> bool:
    return typing.get_origin(kind) is Callable


def _option_value(pass_: Any, option: PassOption) -> Any:
    value = naming.options_of(pass_).get(option.name, _REQUIRED)
    value = getattr(pass_, option.name, _REQUIRED) if value is _REQUIRED else value
    if value is _REQUIRED:
        raise PipelineError(
            f"{naming.pass_name(pass_)} does not keep its option {option.name!r} as an attribute, so it cannot be "
            f"written; make it an attrs class, or set self.{option.name} in __init__"
        )
    return value


def _defaults(entry: PassEntry) -> dict[str, Any]:
    """What the options are when none is given: as the pass keeps them, which may differ from what it declares."""
    declared = {option.name: option.default for option in entry.options if option.default is not _REQUIRED}
    if len(declared) < len(entry.options) or not inspect.isclass(entry.maker) or attrs.has(entry.maker):
        return declared
    plain = entry.maker()
    return {option.name: getattr(plain, option.name, option.default) for option in entry.options}


def _is_default(default: Any, value: Any) -> bool:
    if default is _REQUIRED:
        return False
    if isinstance(value, list | tuple) and isinstance(default, list | tuple | None):
        return tuple(value) == tuple(default or ())
    return type(value) is type(default) and bool(value == default)


# --- the registry that everybody shares -----------------------------------------------------------------------------


_GROUPS = {"pipeline": "PassManager", "repeat": "FixedPoint", "stage": "Stage", "when": "When"}


def _add_groups(registry: Registry) -> None:
    module = importlib.import_module("fxpasses.pass_manager")
    for name, kind in _GROUPS.items():
        registry.register(getattr(module, kind), name)


def _add_own_passes(registry: Registry) -> None:
    module = importlib.import_module("fxpasses.passes")
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, FunctionPass) or _is_pass_class(found):
            registry.register(found)


def _is_pass_class(found: Any) -> bool:
    return (
        inspect.isclass(found)
        and issubclass(found, PassBase | ExportedProgramPassBase)
        and not inspect.isabstract(found)
    )


@functools.cache
def default_registry() -> Registry:
    """The registry of this process: the groups, the passes of this package, and those of installed packages.

    It is filled when the first name is looked up, not at import.
    """
    return Registry([_add_groups, _add_own_passes, Registry.load_entry_points])


def register_pass(
    name: str | Callable[..., Any] | None = None, *, registry: Registry | None = None
) -> Callable[[PassT], PassT]:
    """Give a class or function a name in text, as a decorator: ``@register_pass`` or ``@register_pass("name")``.

    Args:
        name: The name; made from the class or function name (``FuseConvBN`` is ``fuse-conv-bn``) if not given.
        registry: Where; the one that everybody shares if None.

    Raises:
        PipelineError: The name is taken.
    """
    table = registry if registry is not None else default_registry()
    if name is not None and not isinstance(name, str):
        table.register(name)
        return name  # used without parentheses: it is what is decorated

    def decorate(maker: PassT) -> PassT:
        table.register(maker, name)
        return maker

    return decorate


def register_condition(name: str, *, registry: Registry | None = None) -> Callable[[PassT], PassT]:
    """Give a condition on graph modules a name for ``when(...){condition=name}``, as a decorator.

    Raises:
        PipelineError: The name is taken.
    """
    table = registry if registry is not None else default_registry()

    def decorate(function: PassT) -> PassT:
        table.register_condition(function, name)
        return function

    return decorate


def parse_pipeline(text: str, *, registry: Registry | None = None) -> Any:
    """Make the :class:`~fxpasses.PassManager` that a text describes.

    Args:
        text: Such as ``"remove-detach,repeat(fuse-conv-bn,eliminate-dead-code){max-steps=4}"``.
        registry: Where names are looked up; the one that everybody shares if None.

    Raises:
        PipelineSyntaxError: The text does not parse, or names what is not there; it points at the character.
        PipelineError: It is no text (also a TypeError).
    """
    return (registry if registry is not None else default_registry()).parse(text)


def pipeline_text(pipeline: Any, *, registry: Registry | None = None) -> str:
    """Write a PassManager, a list of passes or one pass as text that makes an equal one.

    Raises:
        PipelineError: A pass has no name, or an option cannot be written.
    """
    return (registry if registry is not None else default_registry()).text_of(pipeline)
