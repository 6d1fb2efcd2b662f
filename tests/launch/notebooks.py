"""Notebooks as Jupyter writes them, from the text of their cells."""

import json
from pathlib import Path


def write_notebook(path: Path, *cells: str, language: str = "python") -> str:
    """Write a notebook with these code cells, each behind one of text."""
    content = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"language_info": {"name": language}},
        "cells": [
            cell
            for text in cells
            for cell in (
                {"cell_type": "markdown", "metadata": {}, "source": ["# What comes next"]},
                {"cell_type": "code", "metadata": {}, "outputs": [], "source": text.splitlines(keepends=True)},
            )
        ],
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)
