"""A small assembler for programs of a few system calls, and the executable files that hold them.

It knows as much of two processors as such a program needs. A program is written once, with names of its own for registers: ``v0`` … ``v5``
keep their values, ``a0`` … ``a4`` are the arguments of a system call, ``result`` is what it returned (on aarch64 the same as ``a0``).
Encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; Arm Architecture Reference Manual for A-profile, C6.
Format of the file: elf(5).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping

_BASE = 0x400000
_HEADERS = 64 + 2 * 56
_STEP = 0x10000
"""A page of any kernel is no larger."""


class Assembler(ABC):
    """Gathers instructions. Jumps may lead to labels that come later."""

    machine: int
    """``e_machine`` of elf(5)."""
    calls: Mapping[str, int]
    """Numbers of system calls."""

    def __init__(self) -> None:
        self.code = bytearray()
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []
        """Where an instruction is that leads to a label."""

    def label(self, name: str) -> None:
        """What comes next is to be found by this name."""
        self._labels[name] = len(self.code)

    def data(self, name: str, content: bytes) -> None:
        """Bytes that ``address`` finds. Nothing may run into them."""
        self.label(name)
        self.code += content + b"\0" * (-len(content) % 8)

    def call(self, name: str, **arguments: str | int) -> None:
        """A system call. Arguments by register: from another register, a number, or none (it holds the right value already)."""
        for register, value in arguments.items():
            if isinstance(value, int):
                self.constant(register, value)
            elif value != register:
                self.move(register, value)
        self._enter_kernel(self.calls[name])

    def executable(self) -> bytes:
        """The file."""
        for position, label in self._jumps:
            self._aim(position, self._labels[label] - position)
        size = _HEADERS + len(self.code)
        header = struct.pack("<4sBBBBQHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 0, 2, self.machine, 1, _BASE + _HEADERS,
                             64, 0, 0, 64, 56, 2, 64, 0, 0)  # fmt: skip
        load = struct.pack("<IIQQQQQQ", 1, 0b101, 0, _BASE, _BASE, size, size, _STEP)
        stack = struct.pack("<IIQQQQQQ", 0x6474E551, 0b110, 0, 0, 0, 0, 0, 16)
        return header + load + stack + bytes(self.code)

    def _jump_to(self, label: str) -> None:
        """Note that the instruction that comes next leads there."""
        self._jumps.append((len(self.code), label))

    @abstractmethod
    def constant(self, to: str, value: int) -> None: ...
    @abstractmethod
    def move(self, to: str, source: str) -> None: ...
    @abstractmethod
    def stack(self, to: str) -> None:
        """The stack pointer."""

    @abstractmethod
    def reserve(self, size: int) -> None:
        """Lower the stack pointer; a multiple of 16, less than 4096."""

    @abstractmethod
    def add(self, to: str, value: int) -> None:
        """A number from -4095 to 4095."""

    @abstractmethod
    def add_register(self, to: str, other: str) -> None: ...
    @abstractmethod
    def shift(self, to: str, bits: int) -> None:
        """To the left; to the right if negative."""

    @abstractmethod
    def mask(self, to: str, bits: int) -> None:
        """Keep that many lowest bits."""

    @abstractmethod
    def load(self, to: str, base: str, *, size: int = 8) -> None:
        """From the address in ``base``: 8, 4 or 1 bytes."""

    @abstractmethod
    def store(self, source: str, base: str, *, size: int = 8) -> None:
        """To the address in ``base``: 8 or 4 bytes."""

    @abstractmethod
    def address(self, to: str, label: str) -> None: ...
    @abstractmethod
    def jump(self, label: str) -> None: ...
    @abstractmethod
    def jump_if_equal(self, register: str, value: int, label: str) -> None:
        """A number from 0 to 4095."""

    @abstractmethod
    def jump_if_negative(self, register: str, label: str) -> None: ...
    @abstractmethod
    def _enter_kernel(self, number: int) -> None: ...
    @abstractmethod
    def _aim(self, position: int, distance: int) -> None:
        """Write the distance into the instruction at a position."""


class X86(Assembler):
    """x86-64."""

    machine = 62
    calls: Mapping[str, int] = {
        "read": 0, "write": 1, "close": 3, "rt_sigaction": 13, "getpid": 39, "clone": 56, "execve": 59, "exit_group": 231,
        "wait4": 61, "kill": 62, "setuid": 105, "setgid": 106, "setgroups": 116, "prctl": 157, "setns": 308,
    }  # fmt: skip
    _NUMBERS: Mapping[str, int] = {
        "result": 0, "v0": 3, "v1": 5, "v2": 12, "v3": 13, "v4": 14, "v5": 15, "a0": 7, "a1": 6, "a2": 2, "a3": 10, "a4": 8,
    }  # fmt: skip
    _STACK = 4

    def constant(self, to: str, value: int) -> None:
        number = self._NUMBERS[to]
        self.code += bytes((0x48 | number >> 3, 0xB8 | number & 7)) + struct.pack("<q", value)  # MOV r64, imm64

    def move(self, to: str, source: str) -> None:
        self._pair(0x89, self._NUMBERS[source], self._NUMBERS[to])  # MOV r/m64, r64

    def stack(self, to: str) -> None:
        self._pair(0x89, self._STACK, self._NUMBERS[to])

    def reserve(self, size: int) -> None:
        self._with_number(0x81, 5, self._STACK, size)  # SUB r/m64, imm32

    def add(self, to: str, value: int) -> None:
        self._with_number(0x81, 0, self._NUMBERS[to], value)  # ADD r/m64, imm32

    def add_register(self, to: str, other: str) -> None:
        self._pair(0x01, self._NUMBERS[other], self._NUMBERS[to])  # ADD r/m64, r64

    def shift(self, to: str, bits: int) -> None:
        self._with_number(0xC1, 4 if bits > 0 else 5, self._NUMBERS[to], abs(bits), "<B")  # SHL, SHR r/m64, imm8

    def mask(self, to: str, bits: int) -> None:
        self._with_number(0x81, 4, self._NUMBERS[to], (1 << bits) - 1)  # AND r/m64, imm32

    def load(self, to: str, base: str, *, size: int = 8) -> None:
        self._memory({8: b"\x8b", 4: b"\x8b", 1: b"\x0f\xb6"}[size], to, base, wide=size != 4)  # MOV, MOVZX

    def store(self, source: str, base: str, *, size: int = 8) -> None:
        self._memory(b"\x89", source, base, wide=size == 8)  # MOV r/m, r

    def address(self, to: str, label: str) -> None:
        number = self._NUMBERS[to]
        self._jump_to(label)
        self.code += bytes((0x48 | (number >> 3) << 2, 0x8D, 0x05 | (number & 7) << 3)) + bytes(
            4
        )  # LEA r64, [RIP + disp32]

    def jump(self, label: str) -> None:
        self._jump_to(label)
        self.code += b"\xe9" + bytes(4)  # JMP rel32

    def jump_if_equal(self, register: str, value: int, label: str) -> None:
        self._with_number(0x81, 7, self._NUMBERS[register], value)  # CMP r/m64, imm32
        self._jump_to(label)
        self.code += b"\x0f\x84" + bytes(4)  # JE rel32

    def jump_if_negative(self, register: str, label: str) -> None:
        self._with_number(0x81, 7, self._NUMBERS[register], 0)
        self._jump_to(label)
        self.code += b"\x0f\x8c" + bytes(4)  # JL rel32

    def _enter_kernel(self, number: int) -> None:
        self.constant("result", number)
        self.code += b"\x0f\x05"  # SYSCALL

    def _aim(self, position: int, distance: int) -> None:
        length = {0xE9: 5, 0x0F: 6}.get(self.code[position], 7)  # JMP, J.., LEA
        struct.pack_into("<i", self.code, position + length - 4, distance - length)

    def _pair(self, operation: int, register: int, other: int) -> None:
        prefix = 0x48 | (register >> 3) << 2 | other >> 3
        self.code += bytes((prefix, operation, 0xC0 | (register & 7) << 3 | other & 7))

    def _with_number(self, operation: int, extension: int, register: int, value: int, form: str = "<i") -> None:
        code = bytes((0x48 | register >> 3, operation, 0xC0 | extension << 3 | register & 7))
        self.code += code + struct.pack(form, value)

    def _memory(self, operation: bytes, register: str, base: str, *, wide: bool) -> None:
        number, at = self._NUMBERS[register], self._NUMBERS[base]
        prefix = 0x40 | wide << 3 | (number >> 3) << 2 | at >> 3
        form = bytes((0x80 | (number & 7) << 3 | at & 7,)) + (b"\x24" if at & 7 == 4 else b"")  # [base + disp32]
        self.code += bytes((prefix,)) + operation + form + bytes(4)


class Arm(Assembler):
    """aarch64."""

    machine = 183
    calls: Mapping[str, int] = {
        "read": 63, "write": 64, "close": 57, "rt_sigaction": 134, "getpid": 172, "clone": 220, "execve": 221, "exit_group": 94,
        "wait4": 260, "kill": 129, "setuid": 146, "setgid": 144, "setgroups": 159, "prctl": 167, "setns": 268,
    }  # fmt: skip
    _NUMBERS: Mapping[str, int] = {
        "result": 0, "v0": 19, "v1": 20, "v2": 21, "v3": 22, "v4": 23, "v5": 24, "a0": 0, "a1": 1, "a2": 2, "a3": 3, "a4": 4,
    }  # fmt: skip

    def constant(self, to: str, value: int) -> None:
        self._load_number(self._NUMBERS[to], value)

    def move(self, to: str, source: str) -> None:
        self._word(0xAA0003E0 | self._NUMBERS[source] << 16 | self._NUMBERS[to])  # ORR Xd, XZR, Xm

    def stack(self, to: str) -> None:
        self._word(0x910003E0 | self._NUMBERS[to])  # ADD Xd, SP, #0

    def reserve(self, size: int) -> None:
        self._word(0xD10003FF | size << 10)  # SUB SP, SP, #imm

    def add(self, to: str, value: int) -> None:
        number = self._NUMBERS[to]
        self._word((0x91000000 if value >= 0 else 0xD1000000) | abs(value) << 10 | number << 5 | number)  # ADD, SUB

    def add_register(self, to: str, other: str) -> None:
        number = self._NUMBERS[to]
        self._word(0x8B000000 | self._NUMBERS[other] << 16 | number << 5 | number)  # ADD Xd, Xn, Xm

    def shift(self, to: str, bits: int) -> None:
        number = self._NUMBERS[to]
        first, last = (64 - bits, 63 - bits) if bits > 0 else (-bits, 63)
        self._word(0xD3400000 | first << 16 | last << 10 | number << 5 | number)  # UBFM: LSL, LSR

    def mask(self, to: str, bits: int) -> None:
        number = self._NUMBERS[to]
        self._word(0xD3400000 | (bits - 1) << 10 | number << 5 | number)  # UBFM: UBFX from bit 0

    def load(self, to: str, base: str, *, size: int = 8) -> None:
        operation = {8: 0xF9400000, 4: 0xB9400000, 1: 0x39400000}[size]  # LDR, LDR, LDRB
        self._word(operation | self._NUMBERS[base] << 5 | self._NUMBERS[to])

    def store(self, source: str, base: str, *, size: int = 8) -> None:
        operation = {8: 0xF9000000, 4: 0xB9000000}[size]  # STR
        self._word(operation | self._NUMBERS[base] << 5 | self._NUMBERS[source])

    def address(self, to: str, label: str) -> None:
        self._jump_to(label)
        self._word(0x10000000 | self._NUMBERS[to])  # ADR

    def jump(self, label: str) -> None:
        self._jump_to(label)
        self._word(0x14000000)  # B

    def jump_if_equal(self, register: str, value: int, label: str) -> None:
        self._word(0xF100001F | value << 10 | self._NUMBERS[register] << 5)  # CMP Xn, #imm
        self._jump_to(label)
        self._word(0x54000000)  # B.EQ

    def jump_if_negative(self, register: str, label: str) -> None:
        self._word(0xF100001F | self._NUMBERS[register] << 5)
        self._jump_to(label)
        self._word(0x5400000B)  # B.LT

    def _enter_kernel(self, number: int) -> None:
        self._load_number(8, number)
        self._word(0xD4000001)  # SVC #0

    def _aim(self, position: int, distance: int) -> None:
        (word,) = struct.unpack_from("<I", self.code, position)
        if word >> 26 == 0x14000000 >> 26:
            word |= (distance >> 2) & 0x3FFFFFF
        elif word >> 24 == 0x54:
            word |= ((distance >> 2) & 0x7FFFF) << 5
        else:
            word |= (distance & 3) << 29 | ((distance >> 2) & 0x7FFFF) << 5
        struct.pack_into("<I", self.code, position, word)

    def _load_number(self, number: int, value: int) -> None:
        for part in range(4):
            piece = value >> 16 * part & 0xFFFF
            operation = 0xF2800000 if part else 0xD2800000  # MOVK, MOVZ
            self._word(operation | part << 21 | piece << 5 | number)

    def _word(self, word: int) -> None:
        self.code += struct.pack("<I", word)


ASSEMBLERS: Mapping[str, type[Assembler]] = {"x86_64": X86, "aarch64": Arm}
"""By machine, as ``uname -m`` says."""
