#!/usr/bin/env python3
"""Runs launches that check_gcn kept in tinygrad's emulator, and compares every instruction's results.

    check_gcn stdlib/causal.attn --target=gfx1100 --shape=B=1,H=2,Sq=65,Sk=129 --keep=FOLDER
    TINYGRAD=CHECKOUT beside.py FOLDER [--dtype=f16|bf16|f32] [--alone] [N...]

After each instruction of each wave the registers that it wrote are held against the trace; where
they differ the other emulator goes on with ours, so that every instruction is judged by itself.
Printed are, by mnemonic, how many results differ, by how many units of the last bit, and where the
first did that is more than --ulp=64 away. --alone: the other one runs undisturbed, and the outputs are
compared; --dtype is that of the first output, others are f32. N: launches; all of them.

That emulator is no part of the tests: this is a comparison by hand (README.md says what came of it).
"""
import argparse
import collections
import ctypes
import inspect
import mmap
import os
import pathlib
import re
import struct
import subprocess
import sys

ARCHS = {0x3F: "cdna", 0x4C: "cdna", 0x41: "rdna3"}  # by EF_AMDGPU_MACH
LDS_UNIT, PAGE = 512, 4096
MAP_FIXED_NOREPLACE = 0x100000


class Code:
    """A linked code object in memory."""

    def __init__(self, data):
        header = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        self.arch = ARCHS[header[6] & 0xFF]
        segments = [struct.unpack_from("<IIQQQQQQ", data, header[4] + i * header[8])
                    for i in range(header[9])]
        loads = [s for s in segments if s[0] == 1]
        self.memory = (ctypes.c_uint8 * (max(s[3] + s[6] for s in loads) + PAGE))()
        self.base = (ctypes.addressof(self.memory) + PAGE - 1) & -PAGE
        for s in loads:
            ctypes.memmove(self.base + s[3], data[s[2]:s[2] + s[5]], s[5])
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, header[5] + i * header[10])
                    for i in range(header[11])]
        self.symbols = {}
        for s in (s for s in sections if s[1] == 11):  # SHT_DYNSYM
            names = sections[s[6]][4]
            for at in range(s[4], s[4] + s[5], 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                end = data.index(b"\0", names + name)
                self.symbols[data[names + name:end].decode()] = value

    def descriptor(self, kernel):
        at = self.base + self.symbols[kernel + ".kd"]
        lds, scratch, _, _, entry = struct.unpack("<IIIIq", ctypes.string_at(at, 24))
        _, _, rsrc2, props, preload = struct.unpack("<IIIHH", ctypes.string_at(at + 44, 16))
        return lds, scratch, at + entry, rsrc2, props, preload


def first_registers(props, preload, scratch, kernarg, packet):
    """What the kernel finds in its scalar registers."""
    def pair(v):
        return [v & 0xFFFFFFFF, v >> 32]
    wanted = [[0] * 4, pair(packet), pair(0), pair(kernarg), pair(0), pair(0), [scratch]]
    out = [r for bit, regs in enumerate(wanted) if props >> bit & 1 for r in regs]
    n, first = preload & 0x7F, preload >> 7
    return out + list(struct.unpack(f"<{n}I", ctypes.string_at(kernarg + 4 * first, 4 * n)))


class Memory:
    """Pages where the kept launch had its buffers: addresses are in registers."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                   ctypes.c_int, ctypes.c_long]
        self.pages = set()

    def reach(self, base, size):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
        for page in range(base & -PAGE, base + size + 1, PAGE):
            if page in self.pages:
                continue
            if self.libc.mmap(page, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != page:
                sys.exit(f"beside.py: {page:#x} is not free in this process; once more")
            self.pages.add(page)


class Launch:
    def __init__(self, folder, number):
        self.path = pathlib.Path(folder) / number
        text = self.read("launch").decode()

        def one(name):
            return re.search(rf"^{name} (.*)$", text, re.M).group(1)
        self.kernel, self.threads = one("kernel"), int(one("threads"))
        self.dynamic = int(one("dynamic"))
        self.grid = [int(n) for n in one("grid").split()]
        self.args = bytes.fromhex(one("kernarg"))
        self.buffers = [[int(n) for n in line.split()]
                        for line in re.findall(r"^buffer (.*)$", text, re.M)]
        self.code = Code(self.read("hsaco"))
        self.lanes = 32 if self.code.arch == "rdna3" else 64

    def read(self, what):
        return self.path.with_name(f"{self.path.name}.{what}").read_bytes()

    def run(self, run_asm, memory):
        lds, scratch, entry, rsrc2, props, preload = self.code.descriptor(self.kernel)
        for i, (base, size, _) in enumerate(self.buffers):
            memory.reach(base, size)
            ctypes.memmove(base, self.read(f"before.{i}"), size)
        args = ctypes.create_string_buffer(self.args, len(self.args) + 64)
        packet = (ctypes.c_uint8 * 64)()
        rsrc2 |= (lds + self.dynamic + LDS_UNIT - 1) // LDS_UNIT << 15
        user = first_registers(props, preload, scratch, ctypes.addressof(args),
                               ctypes.addressof(packet))
        run_asm(entry, 0, *self.grid, self.threads, 1, 1, ctypes.addressof(args), rsrc2, scratch,
                self.code.arch, user)
        return [(self.read(f"after.{i}"), ctypes.string_at(b[0], b[1]))
                for i, b in enumerate(self.buffers) if b[2]]

    def text(self):
        """Each instruction by its offset."""
        path = self.path.with_name(self.path.name + ".hsaco")
        tool = subprocess.run(["tests/tools.sh", "llvm-objdump"], check=True, capture_output=True)
        out = subprocess.run([tool.stdout.decode().strip(), "-d", path], check=True, capture_output=True)
        lines = (l.rsplit("// ", 1) for l in out.stdout.decode().splitlines() if "// " in l)
        return {int(at.split(":")[0], 16): text.strip() for text, at in lines}


class Trace:
    """What our instructions left, by wave, held against another emulator's registers."""

    def __init__(self, launch, ulp):
        self.launch, self.ulp, self.text = launch, ulp, launch.text()
        self.waves = collections.defaultdict(list)
        self.at = collections.Counter()
        self.results, self.differ = collections.Counter(), collections.Counter()
        self.most, self.example = collections.Counter(), {}
        data, p = launch.read("trace"), 0
        while p < len(data):
            group, wave, at, low, high, n = struct.unpack_from("<6I", data, p)
            p, registers, exec_mask = p + 24, [], low | high << 32
            for _ in range(n):
                vector, reg, low, high = struct.unpack_from("<4I", data, p)
                count = launch.lanes if vector else 1
                values = struct.unpack_from(f"<{count}I", data, p + 16)
                p += 16 + 4 * count
                registers.append((vector, reg, low | high << 32, values))
            self.waves[group, wave].append((at, exec_mask, registers))

    def check(self, group, wave, pc, state):
        at = pc - self.launch.code.base
        records, text = self.waves[group, wave], self.text.get(at, "?")
        while True:
            i = self.at[group, wave]
            if records[i][0] != at:
                sys.exit(f"group {group}, wave {wave}: `{text}` at {at:#x} is run, ours goes on at "
                         f"{records[i][0]:#x}")
            self.at[group, wave] += 1
            for register in records[i][2]:
                self.hold(f"group {group}, wave {wave}, at {at:#x} `{text}`", text.split()[0],
                          register, records[i][1], state)
            # a dual instruction is two of ours
            if i + 1 == len(records) or records[i + 1][0] != at or not text.startswith("v_dual"):
                return

    def hold(self, where, name, register, exec_mask, state):
        vector, reg, written, ours = register
        if not vector and not name.startswith("v_"):
            return  # may be an address of the code or the arguments
        if vector:
            lanes = self.launch.lanes
            theirs = state._vgpr_mv
            if reg >= 256:
                theirs = state.accvgpr_buf.as_memoryview(force_zero_copy=True).cast("I")
            first, stride = reg % 256 * lanes, range(lanes)
            apart = [l for l in stride if written >> l & 1 and ours[l] != theirs[first + l]]
        else:
            # of a carry the lanes that are not active mean nothing
            if "_co_" in name or "mad_u64" in name:
                written &= exec_mask >> (32 if reg % 2 and self.launch.lanes == 64 else 0)
            theirs, first = state._sgpr_mv, reg
            apart = [0] if (ours[0] ^ theirs[reg]) & written else []
        self.results[name] += 1
        if not apart:
            return
        pairs = [(l, ours[l], theirs[first + l]) for l in apart]
        most = max(abs((a & 0x7FFFFFFF) - (b & 0x7FFFFFFF)) + ((a ^ b) & 0x80000000) for _, a, b in pairs)
        self.differ[name] += 1
        self.most[name] = max(self.most[name], most)
        if most > self.ulp and name not in self.example:
            self.example[name] = f"{where}: {len(apart)} lanes; " + ", ".join(
                f"{l}: ours {a:08x}, theirs {b:08x}" for l, a, b in pairs[:3])
        for l, a, _ in pairs:
            theirs[first + l] = a

    def report(self):
        total, differ = sum(self.results.values()), sum(self.differ.values())
        print(f"  {total} results of {len(self.results)} mnemonics, {differ} differ")
        for name, n in self.differ.most_common():
            print(f"    {name}: {n} of {self.results[name]}, by up to {self.most[name]}")
            if name in self.example:
                print(f"      {self.example[name]}")


def watched(emu, check):
    """Their run_asm with a call behind every instruction."""
    source, run = inspect.getsource(emu.run_asm), "fxn(*[c_bufs[g] for g in globals_list])\n"
    assert source.count(run) == 1, "another version of the emulator"
    space = dict(vars(emu), beside_check=check)
    exec(source.replace(run, run + " " * 10 + "beside_check(gidx, wi, pc, st)\n"), space)
    return space["run_asm"]


def numbers(data, dtype):
    if dtype == "bf16":
        return [struct.unpack("<f", struct.pack("<I", u << 16))[0]
                for u in struct.unpack(f"<{len(data) // 2}H", data)]
    letter = {"f16": "e", "f32": "f"}[dtype]
    return struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)


def compare(ours, theirs, dtype):
    pairs = list(zip(numbers(ours, dtype), numbers(theirs, dtype)))
    same = sum(a == b or (a != a and b != b) for a, b in pairs)
    apart = max((abs(a - b) for a, b in pairs if a != b and a == a and b == b), default=0)
    nan = sum((a != a) != (b != b) for a, b in pairs)
    return f"{same} of {len(pairs)} the same, largest difference {apart:.3g}, {nan} NaN in one only"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("launches", nargs="*")
    parser.add_argument("--dtype", default="f16", choices=["f16", "bf16", "f32"])
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--ulp", type=int, default=64)
    o = parser.parse_args()
    sys.path.insert(0, os.environ["TINYGRAD"])
    import test.mockgpu.amd.emu as emu
    memory = Memory()
    every = (p.stem for p in pathlib.Path(o.folder).glob("*.launch"))
    for number in o.launches or sorted(every, key=int):
        launch = Launch(o.folder, number)
        trace = None if o.alone else Trace(launch, o.ulp)
        run = emu.run_asm if o.alone else watched(emu, trace.check)
        outputs = launch.run(run, memory)
        print(f"{number} {launch.kernel}, {launch.code.arch}")
        for i, (ours, theirs) in enumerate(outputs):
            print(f"  output {i}: {compare(ours, theirs, 'f32' if i else o.dtype)}")
        if trace:
            trace.report()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
