"""Every block of Python in docs/python runs, page by page, from top to bottom."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python"


@pytest.mark.parametrize("page", sorted(p.name for p in DOCS.glob("*.md")))
def test_the_pages_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text()
    scope = {"__name__": "page"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert blocks
    for block in blocks:
        line = text.count("\n", 0, block.start()) + 1
        # The line numbers of a traceback are those of the page.
        exec(compile("\n" * line + block[1], str(DOCS / page), "exec"), scope)


def test_links_lead_somewhere():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
