"""What hetccl's HIP and RCCL code takes for granted, read from its sources, and a C++ compiler's opinion of it.

The functions: symbol and C signature, from the lists of include/hetccl/runtime_hip.h and from pyx/_nccl.pyx with
include/hetccl/ccl.h and nccl.h. `mismatches` compares them with declarations of AMD's.
"""

import ast
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import launch

HERE = Path(__file__).resolve().parent
INCLUDE = launch.ROOT / "include"
COMPILE_S = 120
# A failed assertion's text is in braces, so that it is found in any compiler's words; other errors have none.
FAILED = re.compile(r" error: .*\{([^{}]*)\}")


# X(slot, symbol, older, release, (parameters)); parameters may be functions that take some themselves.
PARAMETERS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
ROW = re.compile(rf'\bX\(\w+,\s*(\w+),\s*(NULL|"\w+"),\s*"([\d.]+)",\s*({PARAMETERS})\)')


@dataclass(frozen=True)
class Function:
    """A function of a vendor's library as hetccl calls it.

    names      : what the library may call it, best first
    parameters : C text
    result     : C text
    release    : the library's first that has it, as the list says; "" where that is not asked
    """

    names: tuple
    parameters: str
    result: str = "int"
    release: str = ""


class CompilerError(Exception):
    """The compiler refuses more than the contract; the message is what it said."""


def compiler():
    """A C++ compiler's path, or None."""
    return shutil.which("g++") or shutil.which("c++")


def own(*headers):
    """C text of the enums and structs that headers of hetccl's define at their top level, for C and for C++."""
    texts = [(INCLUDE / "hetccl" / header).read_text() for header in headers]
    pattern = re.compile(r"^enum \{[^{}]*\};|^typedef struct[^{};]*\{[^{}]*\}\s*\w+;", re.MULTILINE)
    # An enum that counts a table's rows stands on code that only C reads.
    found = [match for text in texts for match in pattern.findall(text) if "sizeof" not in match]
    return "\n".join(["#include <limits.h>", "#include <stddef.h>", "#include <stdint.h>", *found, ""])


def constants(header):
    """The names of the constants that a header of hetccl's defines in its enums at top level."""
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / "hetccl" / header).read_text(), flags=re.DOTALL)
    bodies = [body for body in re.findall(r"^enum \{([^{}]*)\};", text, re.MULTILINE) if "sizeof" not in body]
    return [name for body in bodies for name in re.findall(r"(\w+) =", body)]


def hip_functions():
    """The functions of runtime_hip.h: of its lists `X(slot, symbol, older, release, parameters)`, and the texts'.

    Returns: list of Function; its `release` is what the list says
    """
    text = (INCLUDE / "hetccl" / "runtime_hip.h").read_text()
    functions = []
    for symbol, older, release, parameters in ROW.findall(text.replace("\\\n", " ")):
        names = (symbol, older.strip('"')) if older.startswith('"') else (symbol,)
        functions.append(Function(names, " ".join(parameters.split())[1:-1], release=release))
    texts = re.findall(r"^ {4}(const char \*)\(\*(\w+)\)\((.*?)\);", text, re.MULTILINE)
    return functions + [Function((name,), parameters, result) for result, name, parameters in texts]


def rccl_functions():
    """The functions that _nccl looks up, with the signatures of the slots that they go into."""
    text = (launch.ROOT / "pyx" / "_nccl.pyx").read_text()
    rows = ast.literal_eval(re.search(r"^ROWS = (\(.*?^\))", text, re.MULTILINE | re.DOTALL)[1])
    slots = _slots("ccl.h") | _adapted()
    direct = [Function(names, slots[slot][1], slots[slot][0]) for slot, names, _ in rows]
    casts = re.findall(r'<(\w+) \(\*\)\(([^)]*)\)[^>]*>library\.symbol\(b"(\w+)"\)', text)
    return direct + [Function((name,), parameters, result) for result, parameters, name in casts]


def _slots(header):
    text = (INCLUDE / "hetccl" / header).read_text()
    found = re.findall(r"^ {4}(int|const char \*)\s*\(\*(\w+)\)\((.*?)\);", text, re.MULTILINE | re.DOTALL)
    return {name: (result, parameters) for result, name, parameters in found}


def _adapted():
    """The functions behind nccl.h's adapters: their type stands where `raw` is cast."""
    text = (INCLUDE / "hetccl" / "nccl.h").read_text()
    types = dict(re.findall(r"typedef int (\w+)\((.*?)\);", text))
    slots = {}
    for cast, name in re.findall(r"\(\((.*?)\)\s*ccl->raw\[HETCCL_NCCL_(\w+)\]\)", text):
        parameters = types.get(cast.removesuffix(" *")) or re.fullmatch(r"int \(\*\)\((.*)\)", cast)[1]
        slots[name.lower()] = ("int", parameters)
    return slots


def mismatches(functions, declarations, own="", flags=()):
    """Names of the functions whose declaration at AMD takes or gives something else than hetccl hands over.

    functions    : list of Function; each name of each must be declared
    declarations : C++ text that declares them
    own          : C text of the structs that hetccl's signatures use
    Raises       : CompilerError, if a name is not declared at all
    """
    lines = ['#include "abi_equal.h"', declarations, own]
    for function in functions:
        pointer = f"{function.result} (*)({function.parameters})"
        lines += [
            f'static_assert(Alike<decltype(&::{name}), {pointer}>::value, "{{{name}}}");' for name in function.names
        ]
    return _failed(["-x", "c++", "-std=c++17", "-Wno-deprecated-declarations", f"-I{HERE}", *flags], "\n".join(lines))


def untrue(claims, prelude, flags=()):
    """Those of the claims that do not hold. claims: constant C expressions; prelude: C text with what they need."""
    source = prelude + "".join(f'\n_Static_assert({claim}, "{{{claim}}}");' for claim in claims) + "\n"
    return _failed(["-x", "c", "-std=gnu11", *flags], source)


def declared(include, header, flags=()):
    """The names of all functions that a header declares, after its own macros."""
    text = _preprocessed(["-x", "c", *flags, "-isystem", include], f"#include <{header}>\n")
    return set(re.findall(r"\b(\w+)\s*\(", text))


def _failed(arguments, source):
    """The texts of the assertions that fail. Raises CompilerError for any other error."""
    done = _compile(["-fsyntax-only", *arguments], source)
    errors = [line for line in done.stderr.splitlines() if " error: " in line]
    others = [line for line in errors if not FAILED.search(line)]
    if others or (done.returncode != 0 and not errors):
        raise CompilerError(done.stderr)
    return FAILED.findall("\n".join(errors))


def _preprocessed(arguments, source):
    done = _compile(["-E", "-P", *arguments], source)
    if done.returncode != 0:
        raise CompilerError(done.stderr)
    return done.stdout


def _compile(arguments, source):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(source)
        file.flush()
        return subprocess.run(
            [compiler(), f"-I{INCLUDE}", *map(str, arguments), file.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            env={**os.environ, "LC_ALL": "C"},
        )
