"""The operators of one training step of ResNet-50 and of VGG-16 in float32, written down by hand."""

from collections.abc import Iterator

from compute_cases.gpt import op, spec
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["resnet50", "vgg16"]

BOTH = ("forward", "backward")


class Recorder:
    """Passes the shape of an image through layers, and records the operators of both passes."""

    def __init__(self, batch: int) -> None:
        self.shape = [batch, 3, 224, 224]
        self.forward: list[Signature] = []
        self.backward: list[Signature] = []

    @property
    def tensor(self) -> TensorSpec:
        return spec("float32", *self.shape)

    def conv(self, filters: int, size: int, stride: int = 1) -> None:
        x, is_first = self.tensor, not self.forward
        weight = spec("float32", filters, self.shape[1], size, size)
        self.shape = [x.shape[0], filters, x.shape[2] // stride, x.shape[3] // stride]
        wanted = "false" if is_first else "true"
        self.forward.append(op("convolution", [x, weight], [self.tensor], '["t","t","t",[],[],[],false,[],1]'))
        mask = f'["t","t","t",null,[],[],[],false,[],1,[{wanted},true,false]]'
        self.backward.append(op("convolution_backward", [self.tensor, x, weight], [x, weight], mask))

    def norm(self) -> None:
        x, row = self.tensor, spec("float32", self.shape[1])
        self.forward.append(op("native_batch_norm", [x, row, row, row, row], [x, row, row]))
        self.backward.append(op("native_batch_norm_backward", [x, x, row, row, row, row, row], [x, row, row]))

    def relu(self) -> None:
        self.forward.append(op("relu", [self.tensor], [self.tensor]))
        self.backward.append(op("threshold_backward", [self.tensor, self.tensor], [self.tensor]))

    def add(self) -> None:
        for direction in (self.forward, self.backward):
            direction.append(op("add", [self.tensor, self.tensor], [self.tensor]))

    def pool(self) -> None:
        x = self.tensor
        self.shape = [*self.shape[:2], self.shape[2] // 2, self.shape[3] // 2]
        index = spec("int64", *self.shape)
        self.forward.append(op("max_pool2d_with_indices", [x], [self.tensor, index]))
        self.backward.append(op("max_pool2d_with_indices_backward", [self.tensor, x, index], [x]))

    def linear(self, rows: int, columns: int) -> None:
        batch = self.shape[0]
        x, weight, y = spec("float32", batch, rows), spec("float32", rows, columns), spec("float32", batch, columns)
        self.forward.append(op("mm", [x, weight], [y]))
        self.backward += [
            op("mm", [y, spec("float32", columns, rows)], [x]),
            op("mm", [spec("float32", rows, batch), y], [weight]),
        ]

    def ops(self, passes: tuple[str, ...], num_params: int) -> Iterator[Signature]:
        if "forward" in passes:
            yield from self.forward
        if "backward" in passes:
            yield from self.backward
        if passes == BOTH:  # momentum: weight, gradient and buffer
            params = [spec("float32", num_params // 50)] * 50
            yield op("_foreach_add_", params + params, [], '["t","t"]')
            yield op("_foreach_add_", params + params, [], '["t","t"]')


def resnet50(batch: int, passes: tuple[str, ...] = BOTH) -> Iterator[Signature]:
    """Return the operators of ResNet-50 (He et al. 2015), with the stride in the 3 x 3 filters."""
    net = Recorder(batch)
    net.conv(64, 7, 2)
    net.norm()
    net.relu()
    net.pool()
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            before = list(net.shape)
            if block == 0:
                net.conv(4 * width, 1, step)
                net.norm()
                net.shape = before
            net.conv(width, 1)
            net.norm()
            net.relu()
            net.conv(width, 3, step)
            net.norm()
            net.relu()
            net.conv(4 * width, 1)
            net.norm()
            net.add()
            net.relu()
    net.linear(2048, 1000)
    return net.ops(passes, 25_557_032)


def vgg16(batch: int, passes: tuple[str, ...] = BOTH) -> Iterator[Signature]:
    """Return the operators of VGG-16 (Simonyan and Zisserman 2014, configuration D)."""
    net = Recorder(batch)
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            net.conv(width, 3)
            net.relu()
        net.pool()
    for rows, columns in ((25088, 4096), (4096, 4096), (4096, 1000)):
        net.linear(rows, columns)
    return net.ops(passes, 138_357_544)
