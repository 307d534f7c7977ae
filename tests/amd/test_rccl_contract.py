"""hetccl's RCCL table against what AMD declared and compiled: names, signatures, numbers and the structs' layout."""

import pytest
from amd import contract
from amd.contract import Function
from amd.evidence import bindings, skip_without_compiler

import amd_files

FUNCTIONS = contract.rccl_functions()
SYMBOLS = [name for function in FUNCTIONS for name in function.names]
'''
'''
