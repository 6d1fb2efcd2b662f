"""A torch that is not known is tried once, and the result is reported in one line."""

from pathlib import Path

import pytest

from sandtable.errors import BuildError
from sandtable.vgpu import self_test, self_testing


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An unknown torch whose core is already built; the list holds the result of the test, and takes its runs."""
    runs = [""]

    def attempt(core: Path) -> str:
        runs.append(str(core))
        return runs[0]

    monkeypatch.setattr(self_testing, "installed_torch", lambda: "2.99.0+cu150")
    monkeypatch.setattr(self_testing, "core_path", lambda: tmp_path / "core.so")
    monkeypatch.setattr(self_testing, "_try", attempt)
    return runs


def test_the_installed_torch_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_testing, "_TIME_LIMIT_SECONDS", 120)  # other tests run beside this one
    result = self_test(again=True)
    assert result.passed, result.message
    assert result.is_known_release
    assert self_test() == result


def test_an_unknown_torch_is_tried_once(attempts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    self_testing.require_known_or_tried()
    assert capsys.readouterr().err == (
        "sandtable: torch 2.99.0+cu150 is not among the known releases (2.12, 2.13, 2.14, 2.15); "
        "the self-test passed in 0 s\n"
    )
    self_testing.require_known_or_tried()
    assert capsys.readouterr().err == ""
    assert len(attempts) == 2


def test_an_unknown_torch_that_fails_is_refused_with_the_known_ones(attempts: list[str]) -> None:
    attempts[0] = "ImportError: no such luck"
    with pytest.raises(
        BuildError, match=r"self-test on torch 2\.99\.0\+cu150.*no such luck.*2\.12, 2\.13, 2\.14, 2\.15"
    ):
        self_testing.require_known_or_tried()
    attempts[0] = ""
    self_testing.require_known_or_tried()  # it is tried again


def test_a_known_torch_is_not_tried(attempts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_testing, "installed_torch", lambda: "2.14.1+cu130")
    self_testing.require_known_or_tried()
    assert len(attempts) == 1


def test_a_test_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(self_testing, "_TIME_LIMIT_SECONDS", 0.01)
    assert self_testing._try(tmp_path / "core.so") == "it took longer than 0.01 s"
