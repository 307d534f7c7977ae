"""The version, for pyproject.toml and for the ranks to compare."""

VERSION = "0.1.0"
