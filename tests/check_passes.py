"""Passes that tests send to other processes, so they must be importable there."""

import torch


def relu_to_tanh(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.tanh


def first_in_hash_order(graph_module):
    """Pick a node in the order of a hash, which differs from process to process."""
    names = sorted((node.name for node in graph_module.graph.nodes if node.op == "call_function"), key=hash)
    for node in graph_module.graph.nodes:
        if node.name == names[0]:
            node.target = torch.sin


def toggle(graph_module):
    for node in graph_module.graph.nodes:
        if node.op == "call_function":
            node.target = torch.tanh if node.target is torch.relu else torch.relu


def fails_anywhere(graph_module):
    raise ValueError("never works")
