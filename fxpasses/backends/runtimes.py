"""Parts that another runtime runs: ONNX Runtime and OpenVINO, both from the part's own exported program.

They infer only: no gradients, no writes to state. What they cannot run is refused when the part is compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.effects import analyze_effects
from fxpasses.errors import InputError
from fxpasses.passes.part_programs import part_program

__all__ = ["RuntimePart", "compile_with_onnxruntime", "compile_with_openvino"]

Run = Callable[[Sequence[Any]], Sequence[Any]]


class RuntimePart(torch.nn.Module):
    """A part that a runtime runs; takes and gives tensors as the part did.

    Attributes:
        part: The part itself, whose parameters keep their names.
    """

    def __init__(self, part: GraphModule, run: Run, outputs: int | None, backend: str) -> None:
        super().__init__()
        self._parameters, self._buffers, self._modules = part._parameters, part._buffers, part._modules
        self._non_persistent_buffers_set = part._non_persistent_buffers_set
        self.__dict__["part"] = part
        self.backend = backend
        self._run = run
        self._outputs = outputs

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the part; results are new tensors without gradients, where the inputs are."""
        results = self._run([tensor.detach().contiguous().cpu().numpy() for tensor in inputs])
        home = inputs[0].device if inputs else torch.device("cpu")
        tensors = tuple(torch.from_numpy(result).to(home) for result in results)
        return tensors[0] if self._outputs is None else tensors


def compile_with_onnxruntime(part: GraphModule) -> torch.nn.Module:
    """Compile a part with ONNX Runtime on the CPU.

    Raises:
        InputError: onnxruntime is not installed, or cannot run the part.
    """

    def compile_program(program: ExportedProgram) -> Run:
        import onnxruntime

        converted: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(
            converted.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [given.name for given in session.get_inputs()]
        return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))

    return _compiled(part, "onnxruntime", compile_program)


def compile_with_openvino(part: GraphModule) -> torch.nn.Module:
    """Compile a part with OpenVINO on the CPU.

    Raises:
        InputError: openvino is not installed, or cannot run the part.
    """

    def compile_program(program: ExportedProgram) -> Run:
        import openvino

        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        model = openvino.compile_model(openvino.convert_model(program), "CPU", exact)
        return lambda inputs: [result.copy() for result in model(list(inputs)).to_tuple()]

    return _compiled(part, "openvino", compile_program)


def _compiled(part: GraphModule, backend: str, compile_program: Callable[[ExportedProgram], Run]) -> torch.nn.Module:
    _refuse_writes(part, backend)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = compile_program(part_program(part, name=backend))
    except ImportError as error:
        raise InputError(
            f"The backend {backend!r} needs a package that is not installed ({error.name}); "
            f"install it with pip install 'fxpasses[{backend}]'."
        ) from error
    except Exception as error:  # exporters and runtimes raise errors of their own of every kind
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(f"The backend {backend!r} cannot run a part: {first.strip()}") from error
    results = part.graph.output_node().args[0]
    return RuntimePart(part, run, len(results) if isinstance(results, (tuple, list)) else None, backend)


def _refuse_writes(part: GraphModule, backend: str) -> None:
    effects = analyze_effects(part)
    outside = {
        storage
        for node in part.graph.nodes
        if node.op in ("placeholder", "get_attr")
        for storage in effects.storages(node)
    }
    for node in part.graph.nodes:
        if outside.intersection(effects.of(node).writes):
            raise InputError(
                f"The backend {backend!r} cannot run a part that writes to its inputs or buffers: {node.name} does "
                f"({effects.of(node).reason}); leave that part on eager or inductor.",
                node=node,
            )
