"""A standard set of operators that shows how fast a device is: matrix products, and memory-bound operators."""

import json

MM_SIZES = {"float32": (128, 256, 512, 1024), "bfloat16": (256,)}
STREAM_ELEMENTS = (1 << 12, 1 << 16, 1 << 20, 1 << 22)


def standard_signatures() -> list[str]:
    """Return matrix products, elementwise and row-wise operators, an embedding and a convolution."""
    signatures = [mm(size, dtype) for dtype, sizes in MM_SIZES.items() for size in sizes]
    for count in STREAM_ELEMENTS:
        rows, width = max(1, count // 256), 256
        tensor = spec("float32", [rows, width])
        vector = spec("float32", [width])
        column = spec("float32", [rows, 1])
        signatures += [
            sign("aten::mul", [tensor, tensor], [tensor], ["t", "t"]),
            sign("aten::gelu", [tensor], [tensor], ["t", "tanh"]),
            sign("aten::_softmax", [tensor], [tensor], ["t", 1, False]),
            sign(
                "aten::native_layer_norm",
                [tensor, vector, vector],
                [tensor, column, column],
                ["t", [width], "t", "t", 1e-5],
            ),
            sign("aten::index_select", [tensor, spec("int64", [rows])], [tensor], ["t", 0, "t"]),
        ]
    image, kernel = spec("float32", [8, 32, 32, 32]), spec("float32", [32, 32, 3, 3])
    args: list[object] = ["t", "t", None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    signatures.append(sign("aten::convolution", [image, kernel], [image], args))
    return signatures


def mm(size: int, dtype: str) -> str:
    """Return the signature of a square matrix product."""
    square = spec(dtype, [size, size])
    return sign("aten::mm", [square, square], [square], ["t", "t"])


def spec(dtype: str, shape: list[int]) -> list[object]:
    """Return the geometry of a dense tensor."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return [dtype, shape, strides, "cuda"]


def sign(op: str, inputs: list[object], outputs: list[object], args: list[object]) -> str:
    """Return the text of a signature."""
    return json.dumps({"op": op, "in": inputs, "out": outputs, "args": args})
