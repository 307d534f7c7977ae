"""The texts of hetccl's errors, read from its sources: what stands in them for sure, and … for what differs.

Python's parser reads no Cython, so this looks for calls of error classes and takes the strings of the argument that is
the message. A text that is made elsewhere is looked up where a name of the same file gets it.
"""

import functools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LITERAL = re.compile(r'[rbf]{0,2}("""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')', re.DOTALL)
CLASSES = re.compile(
    r"(?<![\w.])(\w*Error|CommTimeout|CommClosed|LibraryNotFound|SymbolNotFound|Refused|MpiMissing"
    r"|kind|type\(first\))\("
)
# Their first argument is a number.
NUMBERED = ("OSError", "ConnectionRefusedError", "Refused")
NAME = re.compile(r"[a-z_]\w*")


class Text(NamedTuple):
    """file: path from the repository's root; line; kind: the class; text; code: of the argument, S for each string"""

    file: str
    line: int
    kind: str
    text: str
    code: str


def sources():
    """Of the package, but for modules that tests alone use."""
    found = [*ROOT.glob("hetccl/**/*.py"), *ROOT.glob("pyx/*.pyx"), *ROOT.glob("pyx/*.pxd")]
    return sorted(path for path in found if not path.stem.endswith("_trial"))


def shown(literal):
    """What a literal is sure to say: an f-string with … in the place of its fields."""
    text = LITERAL.fullmatch(literal)[1].strip('"' if literal.endswith('"') else "'")
    if "f" in literal[:2].partition('"')[0]:
        made, depth = [], 0
        for part in re.split(r"(\{\{|\}\}|[{}])", text):
            if part == "{":
                made += ["…"] * (depth == 0)
                depth += 1
            elif part == "}":
                depth -= 1
            elif depth == 0:
                made.append(part[0] if part in ("{{", "}}") else part)
        text = "".join(made)
    return tidy(text.replace("\\n", " ").replace("\\", ""))


def tidy(text):
    return re.sub(r"…+", "…", re.sub(r"\s+", " ", text)).replace("`", "").strip(" ")


def arguments(text, at):
    """The arguments of a call whose bracket opens before `at`: [(sure text, code)]."""
    found, said, code, depth = [], "", "", 0
    while depth >= 0:
        literal = LITERAL.match(text, at)
        if literal:
            inner = literal[0]
            at = literal.end()
            if text.startswith(".join(", at):
                inner = '"…"'
                said = f"{said} …"
            else:
                raw = shown(inner)
                # Strings that follow one another lose the space between them when they are tidied.
                lead = " " if re.match(r'[rbf]*"+\s', inner) else ""
                trail = " " if re.search(r'\s"+$', inner) else ""
                said += lead + raw + trail
            code += "S"
            continue
        letter = text[at]
        at += 1
        if letter == "#":
            at = text.index("\n", at)
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0 or letter == "," and depth == 0:
            found.append((tidy(said), code))
            said, code = "", ""
        elif not letter.isspace():
            code += letter
    return found


def assigned(text, name, end):
    """The sure texts that a name gets before a place."""
    places = [m.end() for m in re.finditer(rf"(?<![\w.]){name} = (?=\(?[rbf]{{0,2}}\")", text[:end])]
    bracketed = [arguments(text, at + 1)[0][0] for at in places if text[at] == "("]
    return bracketed + [shown(LITERAL.match(text, at)[0]) for at in places if text[at] != "("]


@functools.cache
def texts():
    """Of all errors that the package makes; `text` is "" where it is made in a way that this does not follow."""
    found = []
    for path in sources():
        text = path.read_text()
        for call in CLASSES.finditer(text):
            before = text[text.rfind("\n", 0, call.start()) + 1 : call.start()]
            if re.search(r"#|\bclass\b|\bdef\b|\bexcept\b", before):
                continue
            given = arguments(text, call.end())
            position = 1 if call[1] in NUMBERED and len(given) > 1 else 0
            said, code = given[position]
            made = assigned(text, code, call.start()) if NAME.fullmatch(code) else []
            line = text.count("\n", 0, call.start()) + 1
            found += [Text(str(path.relative_to(ROOT)), line, call[1], each, code) for each in made or [said]]
    return found


@functools.cache
def all_literals():
    """Every string of the package, those that follow one another as one; for texts that are no argument of an error."""
    found = []
    for path in sources():
        run, end, text = "", 0, path.read_text()
        for literal in LITERAL.finditer(text):
            if text[end : literal.start()].strip():
                found.append(tidy(run))
                run = ""
            lead = " " if re.match(r'[rbf]*"+\s', literal[0]) else ""
            run += lead + shown(literal[0]) + (" " if re.search(r'\s"+$', literal[0]) else "")
            end = literal.end()
        found.append(tidy(run))
    return "\n".join(found)
