"""Reads what tests must know of ELF files, AMD GPUs' code objects among them."""

import struct
from pathlib import Path
from typing import NamedTuple

SHT_DYNSYM = 11
EM_AMDGPU = 224


class Section(NamedTuple):
    name: str
    kind: int
    address: int
    data: bytes
    link: int


class Symbol(NamedTuple):
    value: int
    nbytes: int
    section: int


class Elf:
    """A 64-bit little-endian ELF file: machine, flags, sections."""

    def __init__(self, data):
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self.os_abi, self.abi_version = data[7], data[8]
        self.machine = struct.unpack_from("<H", data, 18)[0]
        (self.flags,) = struct.unpack_from("<I", data, 48)
        (table,), (size, count, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<3H", data, 58)
        rows = [struct.unpack_from("<2I4Q2I", data, table + i * size) for i in range(count)]
        texts = data[rows[names][4] : rows[names][4] + rows[names][5]]
        self.sections = [
            Section(text_at(texts, name), kind, address, b"" if kind == 8 else data[begin : begin + nbytes], link)
            for name, kind, _, address, begin, nbytes, link, _ in rows
        ]

    @classmethod
    def of(cls, path):
        return cls(Path(path).read_bytes())

    def section(self, name):
        return next(section for section in self.sections if section.name == name)

    def symbols(self):
        """{name: Symbol} of what it defines for others."""
        found = {}
        for table in self.sections:
            if table.kind == SHT_DYNSYM:
                texts = self.sections[table.link].data
                for name, _, _, section, value, nbytes in struct.iter_unpack("<IBBHQQ", table.data):
                    if section:
                        found[text_at(texts, name)] = Symbol(value, nbytes, section)
        return found

    def bytes_of(self, symbol):
        """What a symbol names."""
        section = self.sections[symbol.section]
        return section.data[symbol.value - section.address :][: symbol.nbytes]


def text_at(texts, begin):
    return texts[begin : texts.index(b"\0", begin)].decode()
