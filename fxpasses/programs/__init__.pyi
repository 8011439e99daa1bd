from .capturing import capture, load_program
from .edits import (
    add_buffer,
    add_constant,
    add_input,
    add_mutation,
    add_output,
    add_parameter,
    convert_input,
    remove_input,
    remove_output,
    rename_input,
    rename_output,
    replace_output,
    retype_input,
    retype_output,
    with_graph_module,
)
from .input_contract import InputContract
from .moving import move_to_device
from .saving import load, save
from .signatures import constant_of, is_buffer, is_lifted_constant, is_parameter, is_user_input, spec_of, tensor_of

__all__ = [
    "InputContract",
    "add_buffer",
    "add_constant",
    "add_input",
    "add_mutation",
    "add_output",
    "add_parameter",
    "capture",
    "constant_of",
    "convert_input",
    "is_buffer",
    "is_lifted_constant",
    "is_parameter",
    "is_user_input",
    "load",
    "load_program",
    "move_to_device",
    "remove_input",
    "remove_output",
    "rename_input",
    "rename_output",
    "replace_output",
    "retype_input",
    "retype_output",
    "save",
    "spec_of",
    "tensor_of",
    "with_graph_module",
]
