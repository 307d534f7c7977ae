"""AMD's Cython declarations (.pxd) as C++ declarations, so that a compiler can compare them with hetccl's own."""

import re
from pathlib import Path

FUNCTION = re.compile(r"^cdef ([\w* ]+?[* ])(\w+)\((.*)\) (?:except\S*(?: \S+)?|noexcept) nogil$")
SYMBOL = re.compile(r'__init_symbol\(&_(\w+)__funptr, ?"(\w+)"\)')
BLOCK = re.compile(r"^ {4}(?:ctypedef|cdef) (enum|struct|union) (\w+)(?: \"\w+\")?:$")
CALLBACK = re.compile(r"^ {4}ctypedef (.+?) \(\*(\w+)\) \((.*)\)$")
ALIAS = re.compile(r"^ {4}ctypedef (.+?) (\w+)$")
# C's own words, and stdint.h's types: everything else in a declaration is a type that the file defines.
KNOWN = {"const", "unsigned", "signed", "void", "char", "short", "int", "long", "float", "double", "size_t", "bint"}
KNOWN |= {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
HEAD = "#include <stddef.h>\n#include <stdint.h>\n"


class Declarations:
    """What some .pxd files declare.

    functions : {symbol in the library: (result, parameters)}, C text
    """

    def __init__(self, *paths):
        self.functions = {}
        self._types = {}  # name: (kind, lines or C text)
        for path in map(Path, paths):
            self._read(path.read_text().splitlines(), _symbols(path.with_suffix(".pyx")))

    def _read(self, lines, symbols):
        block = None
        for line in lines:
            if block is not None and line.startswith(" " * 8):
                block.append(line.strip())
                continue
            block = None
            if match := BLOCK.match(line):
                block = []
                self._types[match[2]] = (match[1], block)
            elif match := CALLBACK.match(line):
                self._types[match[2]] = ("alias", f"typedef {match[1]} (*{match[2]})({match[3]});")
            elif match := ALIAS.match(line):
                self._types[match[2]] = ("alias", f"typedef {match[1]} {match[2]};")
            elif (match := FUNCTION.match(line)) and match[2] in symbols:
                self.functions[symbols[match[2]]] = (match[1].strip(), match[3])

    def cpp(self, names):
        """C++ text that declares these functions, as far as AMD has them, and every type they need.

        Enums come as their size alone: their values are in the compiled modules.
        """
        made, text = set(), [HEAD]
        wanted = [name for name in names if name in self.functions]
        for name in wanted:
            for part in self.functions[name]:
                self._declare(part, made, text)
        text.append('extern "C" {')
        text += [f"{self.functions[n][0]} {n}({self.functions[n][1]});" for n in wanted]
        return "\n".join([*text, "}", ""])

    def _declare(self, words, made, text):
        for name in re.findall(r"[A-Za-z_]\w*", words):
            if name in made or name in KNOWN or name not in self._types:
                continue
            made.add(name)
            kind, body = self._types[name]
            if kind == "enum":
                text.append(f"enum {name} : int;")
            elif kind == "alias":
                self._declare(body, made, text)
                text.append(body)
            else:
                self._declare_struct(name, kind, body, made, text)

    def _declare_struct(self, name, kind, body, made, text):
        fields = [line for line in body if line != "pass"]
        if not fields:
            text.append(f"{kind} {name};")
            return
        for line in fields:
            self._declare(re.sub(r"\w+(\[.*)?$", "", line), made, text)
        text.append(f"{kind} {name} {{ {' '.join(line + ';' for line in fields)} }};")


def _symbols(path):
    """{Cython's name: name in the library}; they differ for functions whose layout HIP 6 changed."""
    return dict(SYMBOL.findall(path.read_text()))
