"""Every method has its page: in the index, of the same form, with a picture that can be drawn."""

import re
from pathlib import Path
from xml.etree import ElementTree

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "methods"
SYNCS = (
    "bulk-synchronous",
    "local-sgd",
    "post-local-sgd",
    "outer-optimizers",
    "streaming",
    "noloco",
    "sparseloco",
    "stale-synchronous",
    "asynchronous",
)
EXCHANGES = ("all-reduce", "gossip", "parameter-server", "hierarchical")
COMPRESSIONS = (
    "half",
    "sign",
    "qsgd",
    "top-k",
    "random-k",
    "threshold",
    "power-sgd",
    "error-feedback",
    "momentum-correction",
)
PIPELINES = ("pipedream", "pipeline-schedules")
BESIDE = ("large-minibatches", "sharded", "tensor-parallelism", "downpour", "sandblaster")
PAGES = (*SYNCS, *EXCHANGES, *COMPRESSIONS, *PIPELINES, *BESIDE)
SVG = "{http://www.w3.org/2000/svg}"
SECTIONS = ["The formula", "Cost", "Use it", "When", "What it costs in accuracy", "Paper"]


def test_every_page_is_listed_and_there_is_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*PAGES, "README"}
    assert {path.stem for path in (DOCS / "images" / "methods").iterdir()} == set(PAGES)


def test_the_index_links_every_page_once() -> None:
    rows = re.findall(r"\| \[[^]]+\]\(([a-z-]+)\.md\) \|$", _read("README"), flags=re.MULTILINE)
    assert rows == list(PAGES)


def test_the_overview_links_every_page() -> None:
    overview = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert {name for name in PAGES if f"(methods/{name}.md)" not in overview} == set()


def test_every_page_has_all_sections_in_order() -> None:
    for name in PAGES:
        page = _read(name)
        assert page.startswith("# "), name
        assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == SECTIONS, name
        assert "```python" in page, name


def test_every_page_embeds_its_picture_with_a_description() -> None:
    for name in PAGES:
        pictures = re.findall(r"^!\[([^]]+)\]\(([^)]+)\)$", _read(name), flags=re.MULTILINE)
        assert [target for _, target in pictures] == [f"../images/methods/{name}.svg"], name
        assert all(len(description) > 40 for description, _ in pictures), name


def test_every_picture_can_be_drawn_and_its_words_be_read() -> None:
    for name in PAGES:
        root = ElementTree.parse(DOCS / "images" / "methods" / f"{name}.svg").getroot()
        assert root.tag == f"{SVG}svg", name
        usual = root.get("font-size", "0")
        assert min(float(words.get("font-size", usual)) for words in root.iter(f"{SVG}text")) >= 12, name


def test_links_between_pages_lead_somewhere() -> None:
    for name in (*PAGES, "README"):
        targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+\.md[^)]*)\)", _read(name))]
        # The results are written when the study has run.
        assert [each for each in targets if "results/" not in each and not (FOLDER / each).is_file()] == [], name


def _read(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")
