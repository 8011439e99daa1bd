"""The checks of one run: some look at a graph, some compare it with the input, some look at the pass as well.

A check is any callable of one argument that raises. Two more kinds know more of the run:

* :class:`InputCheck` sees the input first, and compares every later graph with it;
* :class:`PassCheck` is asked before and after each pass.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any

import attrs
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.errors import CheckError, FxPassesError, also_as
from fxpasses.instruments.records import CheckOutcome
from fxpasses.pass_base.naming import pass_name

__all__ = ["CheckSession", "InputCheck", "PassCheck", "check_error", "check_name", "run_checks"]


class InputCheck(abc.ABC):
    """A check that compares a graph with the input of the run."""

    wants_program: bool = False
    every_change: bool = False
    """Whether it is asked after every pass that changed something, even where checks only run at the end."""

    @abc.abstractmethod
    def begin(self, subject: GraphModule | ExportedProgram) -> Callable[[Any], None]:
        """Look at the input; give the check of every graph that follows."""


class PassCheck(abc.ABC):
    """A check of what a pass does, rather than of what it leaves."""

    def before_pass(self, pass_: Any, graph_module: GraphModule) -> Any:  # noqa: B027 - a hook, empty by default
        """Look at the graph before the pass; what is returned is given to :meth:`after_pass`."""

    @abc.abstractmethod
    def after_pass(self, pass_: Any, before: Any, graph_module: GraphModule) -> None:
        """Raise if the pass did not do as it should."""


@attrs.define
class CheckSession:
    """The checks of one manager, during one run.

    Attributes:
        named: Plain checks, and input checks that have seen the input, by name.
        pass_checks: Those that are asked before and after each pass.
        each_change: Those of ``named`` that are asked whenever something changed.
    """

    named: list[tuple[str, Callable[[Any], Any], bool]]
    pass_checks: list[PassCheck]
    each_change: list[tuple[str, Callable[[Any], Any], bool]]

    @classmethod
    def begin(cls, checks: Iterable[Any], module: GraphModule, program: ExportedProgram | None) -> CheckSession:
        """Show the input to the checks that compare with it."""
        named: list[tuple[str, Callable[[Any], Any], bool]] = []
        pass_checks: list[PassCheck] = []
        each_change: list[tuple[str, Callable[[Any], Any], bool]] = []
        for check in checks:
            wants_program = bool(getattr(check, "wants_program", False))
            if isinstance(check, PassCheck):
                pass_checks.append(check)
            elif isinstance(check, InputCheck):
                begun = check.begin(program if wants_program and program is not None else module)
                named.append((check_name(check), begun, wants_program))
                if check.every_change:
                    each_change.append(named[-1])
            else:
                named.append((check_name(check), check, wants_program))
        return cls(named, pass_checks, each_change)

    def before_pass(self, pass_: Any, module: GraphModule) -> list[Any]:
        """What the pass checks want to remember."""
        return [check.before_pass(pass_, module) for check in self.pass_checks]

    def after_pass(
        self, pass_: Any, remembered: list[Any], module: GraphModule
    ) -> tuple[list[CheckOutcome], list[tuple[str, Exception]]]:
        """Run the pass checks."""
        bound = [
            (check_name(check), _bind(check, pass_, before), False)
            for check, before in zip(self.pass_checks, remembered, strict=True)
        ]
        return run_checks(bound, module, None)

    def run(
        self, module: GraphModule, program: ExportedProgram | None
    ) -> tuple[list[CheckOutcome], list[tuple[str, Exception]]]:
        """Run the checks of a graph."""
        return run_checks(self.named, module, program)


def run_checks(
    checks: Iterable[tuple[str, Callable[[Any], Any], bool]], module: GraphModule, program: ExportedProgram | None
) -> tuple[list[CheckOutcome], list[tuple[str, Exception]]]:
    """Run every check, whatever the others say: an outcome for each, and the errors of those that failed."""
    outcomes: list[CheckOutcome] = []
    failures: list[tuple[str, Exception]] = []
    for name, check, wants_program in checks:
        try:
            check(program if wants_program and program is not None else module)
        except CheckError as error:  # several things at once, such as a manager's own check()
            inner = [(one, cause) for one, cause in error.failures if isinstance(cause, Exception)] or [(name, error)]
            failures.extend(inner)
            outcomes.extend(CheckOutcome(one, _told(cause)) for one, cause in inner)
        except Exception as error:  # a check may raise anything: that is how it says no
            failures.append((name, error))
            outcomes.append(CheckOutcome(name, _told(error)))
        else:
            outcomes.append(CheckOutcome(name))
    return outcomes, failures


def check_error(
    failures: list[tuple[str, Exception]],
    *,
    where: str,
    pass_name: str | None = None,
    index: int | None = None,
    advice: str = "",
) -> CheckError:
    """All failures in one error, which every one of their types catches too."""
    kind: type[CheckError] = CheckError
    for _, cause in failures:
        kind = also_as(kind, cause)
    listed = "\n".join(f"  {name}: {_told(cause)}" for name, cause in failures)
    count = "a check" if len(failures) == 1 else f"{len(failures)} checks"
    node = next((found for _, cause in failures if (found := getattr(cause, "node", None)) is not None), None)
    message = f"{count} failed {where}:\n{listed}" + (f"\n{advice}" if advice else "")
    error = kind(message, failures=failures, pass_name=pass_name, index=index, node=node)
    error.__cause__ = failures[0][1]
    return error


def check_name(check: Any) -> str:
    """What a check is called."""
    return pass_name(check)


def _bind(check: PassCheck, pass_: Any, before: Any) -> Callable[[GraphModule], None]:
    return lambda module: check.after_pass(pass_, before, module)


def _told(error: BaseException) -> str:
    if isinstance(error, FxPassesError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
