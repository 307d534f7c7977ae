"""What a test needs and cannot have here is a reason to skip it."""

import pytest

import amd_files


def fetched(get, *arguments):
    """get(*arguments), one of amd_files; the test is skipped with the reason if it cannot be had."""
    try:
        return get(*arguments)
    except amd_files.FetchError as error:
        pytest.skip(str(error))
