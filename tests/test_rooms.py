"""The picture of the rooms in docs/design.md is the one that the import contracts give."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTRACTS = """
[[tool.importlinter.contracts]]
name = "Downward only"
type = "layers"
layers = ["sandtable.cli", "sandtable.engine | sandtable.vgpu", "(sandtable.check)"]

[[tool.importlinter.contracts]]
name = "torch stays in its place"
type = "forbidden"
source_modules = ["sandtable.*"]
forbidden_modules = ["torch"]
ignore_imports = ["sandtable.vgpu -> torch", "sandtable.vgpu.** -> torch", "sandtable.lab.probes.* -> torch"]

[[tool.importlinter.contracts]]
name = "Doors"
type = "protected"
protected_modules = ["sandtable.methods.flat"]
allowed_importers = ["sandtable.methods"]
"""
PAGE = "# Title\n<!-- rooms -->\nold\n<!-- /rooms -->\nmore\n"
DRAWN = """# Title
<!-- rooms -->
```text
cli
 └─ engine | vgpu
    └─ (check)
```
- *torch stays in its place*: no room may import `torch`, except `vgpu`, `lab.probes`.
- *Doors*: only `methods` may import `methods.flat`.
<!-- /rooms -->
more
"""


def test_the_picture_in_the_docs_is_up_to_date() -> None:
    drawing = _draw("--check")
    assert drawing.returncode == 0, drawing.stderr


def test_an_old_picture_is_found_and_replaced(tmp_path: Path) -> None:
    config, page = tmp_path / "pyproject.toml", tmp_path / "design.md"
    config.write_text(CONTRACTS, encoding="utf-8")
    page.write_text(PAGE, encoding="utf-8")
    files = ("--config", str(config), "--page", str(page))

    checked = _draw("--check", *files)
    assert (checked.returncode, page.read_text(encoding="utf-8")) == (1, PAGE)
    assert "run scripts/draw-rooms" in checked.stderr

    assert _draw(*files).returncode == 0
    assert page.read_text(encoding="utf-8") == DRAWN
    assert _draw("--check", *files).returncode == 0


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "design.md"
    page.write_text("# Title\n", encoding="utf-8")
    drawing = _draw("--page", str(page))
    assert drawing.returncode == 1
    assert "<!-- /rooms -->" in drawing.stderr


def test_files_that_the_design_page_names_exist() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/]+\.py)`", page))
    assert {name for name in named if not (ROOT / "src" / "sandtable" / name).is_file()} == set()


def _draw(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "draw-rooms"), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)
