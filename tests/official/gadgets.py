"""Pickle programs that would touch a file if anything in them were run."""

from __future__ import annotations

import pickle
from pathlib import Path


class _Call:
    def __init__(self, function: object, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call  # type: ignore[return-value]


def gadgets(target: Path) -> dict[str, bytes]:
    """Programs by name; each creates ``target`` under a reader that runs it."""
    command = f"touch {target}"
    text = b"X" + len(command).to_bytes(4, "little") + command.encode()
    python = f"open({str(target)!r}, 'w')"
    code = b"X" + len(python).to_bytes(4, "little") + python.encode()
    short = bytes([0x8C])

    def word(value: str) -> bytes:
        return short + bytes([len(value)]) + value.encode()

    found = {
        "os.system": b"\x80\x02cos\nsystem\n" + text + b"\x85R.",
        "posix.system": b"\x80\x02cposix\nsystem\n" + text + b"\x85R.",
        "nt.system": b"\x80\x02cnt\nsystem\n" + text + b"\x85R.",
        "subprocess": b"\x80\x02csubprocess\ngetoutput\n" + text + b"\x85R.",
        "eval": b"\x80\x02cbuiltins\neval\n" + code + b"\x85R.",
        "exec of Python 2": b"\x80\x02c__builtin__\nexec\n" + code + b"\x85R.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\ncos\nX\x06\0\0\0system\x86R" + text + b"\x85R.",
        "protocol 0": b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.",
        "INST": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\n" + text + b"o.",
        "NEWOBJ": b"\x80\x02csubprocess\nPopen\n" + text + b"\x85\x81.",
        "NEWOBJ_EX": b"\x80\x04" + word("subprocess") + word("Popen") + b"\x93" + text
        + b"\x85}\x92.",
        "STACK_GLOBAL": b"\x80\x04" + word("os") + word("system") + b"\x93" + text + b"\x85R.",
        "STACK_GLOBAL from the memo": b"\x80\x04" + word("os") + b"\x940" + word("system")
        + b"\x940h\0h\x01\x93" + text + b"\x85R.",
        "dotted name": b"\x80\x04" + word("vocab") + word("Vocabulary.__init__.__globals__")
        + b"\x93.",
        "dotted module": b"\x80\x04" + word("os.path") + word("os.system") + b"\x93" + text
        + b"\x85R.",
        "class of the class": b"\x80\x04" + word("vocab") + word("Vocabulary.__class__") + b"\x93.",
        "copyreg": b"\x80\x02ccopyreg\n_reconstructor\ncsubprocess\nPopen\n"
        b"c__builtin__\nobject\nN\x87R.",
        "copy_reg of Python 2": b"\x80\x02ccopy_reg\n__newobj__\ncsubprocess\nPopen\n" + text
        + b"\x86R.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Pos.system\n.",
        "persistent binary": b"\x80\x02" + text + b"Q.",
        "hidden in words": b"\x80\x02}X\x08\0\0\0word2idx}X\x03\0\0\0dogcos\nsystem\n" + text
        + b"\x85Rss.",
        "as a key": b"\x80\x02}cos\nsystem\n" + text + b"\x85RK\x01s.",
        "thrown away": b"\x80\x02cos\nsystem\n" + text + b"\x85R0}.",
        "options": b"\x80\x02}X\x03\0\0\0optcargparse\nNamespace\n)\x81}X\x01\0\0\0acos\nsystem\n"
        + text + b"\x85Rsbs.",
        "two in a row": b"\x80\x02}0cos\nsystem\n" + text + b"\x85R.",
        "through partial": pickle.dumps(_Call(__import__("functools").partial, print), 2),
        "through map": b"\x80\x02cbuiltins\nlist\ncbuiltins\nmap\ncos\nsystem\n](" + text
        + b"e\x86R\x85R.",
        "import": b"\x80\x02cbuiltins\n__import__\nX\x02\0\0\0os\x85R.",
        "pickle in a pickle": b"\x80\x02cpickle\nloads\nC\x02..\x85R.",
        "torch.load": b"\x80\x02ctorch\nload\nX\x01\0\0\0x\x85R.",
        "torch.hub": b"\x80\x02ctorch.hub\nload\nX\x01\0\0\0x\x85R.",
        "numpy.load": b"\x80\x02cnumpy\nload\nX\x01\0\0\0x\x85R.",
        "code": b"\x80\x02ctypes\nCodeType\n)R.",
    }  # fmt: skip
    for protocol in range(6):
        found[f"__reduce__, protocol {protocol}"] = pickle.dumps(
            {"model": [_Call(__import__("os").system, command)]}, protocol
        )
    return found


NAMES = tuple(gadgets(Path("x")))
