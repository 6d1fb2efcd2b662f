"""Exceptions that have one cause on a cluster are known by their words, or by the check of the script that raised."""

import runpy
import textwrap

import pytest

from sandtable.vgpu.known_failures import known_failure, worker_failure


def raised(tmp_path, body: str) -> BaseException:
    """Return what a script with this body raises."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(body), encoding="utf-8")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any: each test says what becomes of it
        runpy.run_path(str(script))
    return caught.value


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("No backend type associated with device type cpu", "wrong-device-for-nccl"),
        ("Tensors must be contiguous", "non-contiguous-tensor"),
        ("Cannot re-initialize CUDA in forked subprocess. To use CUDA ...", "cuda-after-fork"),
        ("CUDA error: invalid device ordinal", "wrong-device-index"),
        (
            "Expected to have finished reduction in the prior iteration before starting a new one. ...",
            "unused-parameters",
        ),
        ("Expected to mark a variable ready only once. This error is caused by ...", "gradient-ready-twice"),
        ("Mesh should not be bigger than default world size 4, but found 6 ranks!", "world-size-not-divisible"),
        ("world_size (4) is not divisible by tensor_model_parallel_size (3)", "world-size-not-divisible"),
    ],
)
def test_torch_and_frameworks_say_what_is_wrong(message: str, rule: str):
    failure = known_failure(RuntimeError(message), world_size=4)
    assert failure is not None
    assert failure.rule == rule
    assert failure.remedy


@pytest.mark.parametrize(
    ("body", "divisor"),
    [
        ("world, tp, pp = 4, 3, 1\nassert world % (tp * pp) == 0", "tp * pp is 3"),
        ("config = {'tp': 3}\nworld = 4\nif world % config['tp']:\n    raise ValueError('bad layout')", "is 3"),
        (
            """
            from types import SimpleNamespace

            args = SimpleNamespace(tp=8)

            def check(world_size):
                if world_size % args.tp != 0:
                    raise RuntimeError("no")

            check(4)
            """,
            "args.tp is 8",
        ),
    ],
)
def test_a_check_that_takes_the_world_size_modulo_something_tells_what(tmp_path, body: str, divisor: str):
    failure = known_failure(raised(tmp_path, body), world_size=4)
    assert failure is not None
    assert failure.rule == "world-size-not-divisible"
    assert divisor in failure.because


@pytest.mark.parametrize(
    "body",
    [
        "assert 7 % 2 == 0",
        "batch, size = 10, 4\nassert batch % size == 0",
        "world = 4\nif world % 2 == 0:\n    raise ValueError('even')",
        "raise ValueError('learning rate must be positive')",
    ],
)
def test_other_checks_are_not_about_the_world_size(tmp_path, body: str):
    assert known_failure(raised(tmp_path, body), world_size=4) is None


def test_the_error_of_a_data_loader_worker_is_named_with_its_lines():
    error = RuntimeError(
        "Caught ValueError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        '  File "/lib/worker.py", line 3, in loop\n    fetch()\n  File "train.py", line 9, in __getitem__\n'
        "    read()\nValueError: no such sample\n"
    )
    assert worker_failure(error) == (
        "ValueError: no such sample [DataLoader worker 1]",
        [("/lib/worker.py", 3), ("train.py", 9)],
    )
    assert worker_failure(ValueError("no such sample")) is None
