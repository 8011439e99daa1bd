"""The managers: a list of passes that runs as one, for graphs and for exported programs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch.export import ExportedProgram

from fxpasses.checks.sessions import InputCheck, PassCheck, check_error, check_name, run_checks
from fxpasses.errors import InputError, PipelineError, also_as
from fxpasses.pass_base import ExportedProgramPassResult, PassResult, pass_result_wrapper
from fxpasses.pass_manager.constraints import (
    ConstraintType,
    PassConstraint,
    topological_sort_passes,
    validate_constraints,
)
from fxpasses.pass_manager.groups import PassGroup
from fxpasses.pass_manager.running import Run, run_pipeline

__all__ = [
    "ExportedProgramPassManager",
    "PassManager",
    "pass_result_wrapper",
]


class PassManager(PassGroup):
    """A pipeline: passes in order, each ``requires`` → ``call`` → ``ensures`` → checks → one record.

    It works in place on the module it is given. If anything fails, text, metadata and attributes of that module are
    what they were before the run.

    Args:
        passes: Passes, functions, groups and managers; lists in it are flattened.
        constraints: Rules about the order, see :mod:`fxpasses.pass_manager.constraints`; a list that breaks one is put
            in order.
        steps: How often the passes run at most; they stop when nothing changes.
        run_checks_after_each_pass: Lint, and run all checks, after every pass.
        suppress_check_failures: Failed checks become warnings in the report instead of errors.
        checks: What must hold for the result, and after each pass if asked for.
        instruments: Observers, see :mod:`fxpasses.instruments`.
        on_failure: ``"rollback"``: a pass that fails ends the run, and the module is as it was before the run.
            ``"skip"``: only what this pass did is taken back, with a warning, and the run goes on.
        strict: A pass that edits and says it did not is an error, not a warning.
        name: What the manager is called where it is a pass of another one.
    """

    def __init__(
        self,
        passes: Iterable[Any] | None = None,
        constraints: Iterable[ConstraintType] | bool | None = None,
        steps: int | None = None,
        run_checks_after_each_pass: bool = False,
        suppress_check_failures: bool = False,
        *,
        checks: Iterable[Callable[..., Any]] = (),
        instruments: Iterable[Any] = (),
        on_failure: Literal["rollback", "skip"] = "rollback",
        strict: bool = False,
        name: str | None = None,
    ) -> None:
        if isinstance(constraints, bool):  # ExecuTorch's order: passes, run_checks, suppress, steps
            run_checks_after_each_pass, suppress_check_failures, steps, constraints = (
                constraints,
                bool(steps),
                int(run_checks_after_each_pass) or None,
                None,
            )
        if on_failure not in ("rollback", "skip"):
            raise PipelineError(f"on_failure is {on_failure!r}; use 'rollback' or 'skip'")
        super().__init__(passes)
        self.constraints: list[ConstraintType] = list(constraints or [])
        self.steps = _valid_steps(steps)
        self.run_checks_after_each_pass = run_checks_after_each_pass
        self.suppress_check_failures = suppress_check_failures
        self.checks = list(map(_valid_check, checks))
        self.added_checks: list[Callable[[Any], Any]] = []
        self.instruments = list(instruments)
        self.on_failure = on_failure
        self.strict = strict
        self.name = name

    @property
    def pass_name(self) -> str:
        """The name it was given, or that of its class."""
        return self.name or type(self).__name__

    def __call__(self, module: Any) -> PassResult:
        """Run the pipeline.

        Args:
            module: A GraphModule, an ExportedProgram, or what another pass returned.

        Returns:
            A :class:`PassResult` with ``records``, ``warnings`` and ``report``; of an ExportedProgram also the program,
            with a signature that fits.

        Raises:
            PassError: A pass failed; also catchable as what it raised.
            CheckError: Checks failed; also catchable as what they raised.
            PipelineError: The pipeline cannot work: constraints, properties.
        """
        return run_pipeline(self, module)

    # --- order -------------------------------------------------------------------------------------------------------

    def add_constraint(self, constraint: ConstraintType) -> None:
        """Add a rule about the order of the passes."""
        self.constraints.append(constraint)

    def validate_constraints(self) -> None:
        """Refuse the present order if it breaks a constraint.

        Raises:
            PipelineError: What is wrong, all of it (also a ``RuntimeError``, as upstream's).
        """
        validate_constraints(self.passes, self.constraints)

    def solve_constraints(self) -> None:
        """Put the passes into an order that obeys the constraints, moving no more than must be moved.

        Raises:
            PipelineError: The constraints contradict each other (the circle is shown), or a pass they need is missing.
        """
        self.passes = topological_sort_passes(self.passes, self.constraints)
        composed = [constraint for constraint in self.constraints if isinstance(constraint, PassConstraint)]
        validate_constraints(self.passes, composed)

    # --- checks ------------------------------------------------------------------------------------------------------

    def add_checks(self, *checks: Callable[[Any], Any]) -> None:
        """Add functions of one parameter, the graph module, that raise when something is wrong.

        They run once on the input before the first pass, on the result, and after each pass if
        ``run_checks_after_each_pass``.

        Raises:
            TypeError: A check takes another number of parameters.
        """
        for check in checks:
            _check_takes_one(check)
        self.added_checks.extend(checks)

    def check(self, module: Any) -> None:
        """Run the added checks on a module; a subclass may check in its own way.

        Raises:
            CheckError: All that failed; also catchable as what the checks raised.
        """
        _, failures = run_checks([(check_name(check), check, False) for check in self.added_checks], module, None)
        if failures:
            raise check_error(failures, where="")

    def run_added_checks(self, module: Any, program: ExportedProgram | None) -> Any:
        """The outcomes and failures of :meth:`check`; used while running."""
        if type(self).check is PassManager.check and "check" not in vars(self):
            named = [
                (check_name(check), check, bool(getattr(check, "wants_program", False))) for check in self.added_checks
            ]
            return run_checks(named, module, program)
        return run_checks([("check", self.check, self.checks_take_programs)], module, program)

    checks_take_programs: bool = False

    def begin_run(self, run: Run) -> None:
        """Called by the run when it comes to this manager: order, lint of the input, checks of the input."""
        if self.constraints:
            self.solve_constraints()
        if self.run_checks_after_each_pass:
            run.lint_input()
        run.check_input(self)

    # --- what it is --------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "constraints": self.constraints,
            "run_checks_after_each_pass": self.run_checks_after_each_pass,
            "suppress_check_failures": self.suppress_check_failures,
            "checks": [*self.checks, *self.added_checks],
            "on_failure": self.on_failure,
            "strict": self.strict,
            "name": self.name,
        }

    def __repr__(self) -> str:
        defaults = PassManager()._state()
        shown = {
            name: value
            for name, value in self._state().items()
            if name not in ("passes", "checks") and value != defaults[name]
        }
        if self.checks:
            shown["checks"] = [_Named(check_name(check)) for check in self.checks]
        passes = super().__repr__().removesuffix(")")
        return passes + "".join(f", {name}={value!r}" for name, value in shown.items()) + ")"


class ExportedProgramPassManager(PassManager):
    """A pipeline over ExportedPrograms, as ExecuTorch has it: takes a program, gives an ExportedProgramPassResult.

    Works on a shallow copy of the program. Graph, signature and tensors are shared, so both stay in step.
    """

    checks_take_programs = True

    def __call__(  # type: ignore[override]
        self, exported_program: ExportedProgram, override_verifiers: list[type[Any]] | None = None
    ) -> ExportedProgramPassResult:
        """Run the pipeline; see :class:`PassManager`.

        Args:
            exported_program: The program.
            override_verifiers: Verifier classes that the result is validated with, instead of its own.

        Raises:
            InputError: It is given something else (also a ``TypeError``).
        """
        program = getattr(exported_program, "exported_program", exported_program)
        if not isinstance(program, ExportedProgram):
            raise also_as(InputError, TypeError())(
                f"ExportedProgramPassManager runs on an ExportedProgram, not on {type(program).__name__}; "
                "use PassManager for a GraphModule"
            )
        copied = copy.copy(program)
        if override_verifiers:
            copied._verifiers = override_verifiers
        result = run_pipeline(self, copied)
        after = copied if result.exported_program is None else result.exported_program
        return ExportedProgramPassResult(after, result.modified, report=result.report)


def _valid_steps(steps: int | None) -> int:
    if not steps:  # None and 0 mean the default, as upstream
        return 1
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise PipelineError(f"steps is {steps!r}, but must be a positive number")
    return steps


def _valid_check(check: Any) -> Any:
    if not callable(check) and not isinstance(check, (InputCheck, PassCheck)):
        raise also_as(PipelineError, TypeError())(
            f"a check must be a function of the graph module, not {check!r}; see fxpasses.checks for ready ones"
        )
    return check


def _check_takes_one(check: Any) -> None:
    try:
        parameters = list(inspect.signature(check).parameters.values())
    except (TypeError, ValueError) as error:
        raise TypeError(f"PassManager check function {check!r} cannot be called with one module") from error
    if len(parameters) != 1:
        raise TypeError(
            "PassManager check function should only take in one variable, a module; "
            f"'{check_name(check)}' takes {len(parameters)}"
        )


class _Named:
    """Prints as a bare name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name
