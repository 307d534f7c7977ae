"""Sphinx: the documents as they lie in the repository, and the API from the docstrings. Run by `make docs`.

The source folder is the repository's root, so that the documents' own links hold on the site as they do in a checkout.
"""

import re
import sys
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "hetccl"
author = "the hetccl developers"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "examples/*.md", "slurm/*.md", "tests/*.md", "tests/softroce/*.md"]
# Folders that make fills; they are not walked.
exclude_patterns = [".*", "build", "docs/_build"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
# The stubs' types would hide the signatures that the docstrings are about.
autodoc_typehints = "none"
html_theme = "furo"
html_title = project
html_show_sphinx = False

# One entry of a docstring: "sendbuf, recvbuf : buffer, ..." or "Blocks  : until ...". A name may be keyword = value.
ENTRY = re.compile(r"(?P<names>\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*)\s* : ?(?P<text>.*)")


def literal(text):
    """Text of a docstring as reStructuredText that shows it as it is."""
    parts = text.split("`")
    marked = [re.sub(r"([\\*|])", r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(parts)]
    return "``".join(re.sub(r"_(?=\W|$)", r"\\_", part) if i % 2 == 0 else part for i, part in enumerate(marked))


def entries(app, what, name, obj, options, lines):
    """Turn the entries of a docstring into a definition list; lines that are indented more continue an entry."""
    made, entry = [], False
    # Of a method that has two names autodoc leaves the embedded signature there.
    start = 1 if lines and re.fullmatch(r"[\w.]+\(.*\)", lines[0]) else 0
    for line in lines[start:]:
        found = ENTRY.fullmatch(line)
        if found:
            if not entry and made and made[-1]:
                made.append("")
            made += [f"``{found['names']}``", f"    {literal(found['text'].strip())}"]
        elif entry and line.startswith(" "):
            made.append(f"    {literal(line.strip())}")
        else:
            if entry and line:
                made.append("")
            made.append(literal(line))
        entry = bool(found) or entry and line.startswith(" ")
    lines[:] = made


def anchors(app, doctree):
    """Make each rule of semantics.md a place that a link can name: semantics.html#R-block-1."""
    for item in doctree.findall(nodes.list_item):
        name = next((strong.astext() for strong in item.findall(nodes.strong)), "")
        if re.fullmatch(r"R-[a-z0-9]+-\d+", name):
            item["ids"].append(name)


def signature(app, what, name, obj, options, arguments, returns):
    """Drop `self` and `cls`, which the signature that Cython embeds in a docstring still has."""
    return (re.sub(r"^\((self|cls)(, )?", "(", arguments or ""), returns) if what == "method" else None


def setup(app):
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", entries)
    app.connect("doctree-read", anchors)
    return {"parallel_read_safe": True}
