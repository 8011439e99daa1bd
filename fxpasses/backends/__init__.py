"""What compiles one part of a lowered model: eager, inductor, onnxruntime, openvino."""
