"""The error classes: what they can be caught as, what they carry, and that they survive pickling."""

import pickle

import pytest

import hetccl
from hetccl import errors

BASES = {
    "HetcclError": (Exception,),
    "LibraryError": (errors.HetcclError,),
    "GpuError": (errors.LibraryError,),
    "NcclError": (errors.LibraryError,),
    "RcclError": (errors.LibraryError,),
    "OneCclError": (errors.LibraryError,),
    "VerbsError": (errors.LibraryError,),
    "LibraryNotFound": (errors.HetcclError, ImportError),
    "SymbolNotFound": (errors.LibraryNotFound,),
    "PeerError": (errors.HetcclError, ConnectionError),
    "CommTimeout": (errors.HetcclError, TimeoutError),
    "CommClosed": (errors.HetcclError, ValueError),
}
FACTS = {"call": "Allreduce", "code": 5, "rank": 3, "peer": (0, 2)}


def test_all_classes_are_known():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes == set(BASES)


@pytest.mark.parametrize("name", BASES)
def test_bases(name):
    assert getattr(errors, name).__bases__ == BASES[name]


@pytest.mark.parametrize("name", BASES)
def test_exported(name):
    assert getattr(hetccl, name) is getattr(errors, name)
    assert name in hetccl.__all__


@pytest.mark.parametrize("name", BASES)
def test_carries_its_facts(name):
    error = getattr(errors, name)("rank 0 is gone", **FACTS)
    assert str(error) == "rank 0 is gone"
    assert {key: getattr(error, key) for key in FACTS} == FACTS


@pytest.mark.parametrize("name", BASES)
def test_facts_default_to_none(name):
    error = getattr(errors, name)("why")
    assert [getattr(error, key) for key in FACTS] == [None] * 4


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", BASES)
def test_pickles(name, protocol):
    error = getattr(errors, name)("rank 0 is gone", **FACTS)
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {key: getattr(copy, key) for key in FACTS} == FACTS


@pytest.mark.parametrize("name", BASES)
def test_facts_are_keywords(name):
    with pytest.raises(TypeError):
        getattr(errors, name)("why", "Allreduce")
