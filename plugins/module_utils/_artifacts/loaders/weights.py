# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A pickle read as data: a stack machine that builds inert values and imports, calls and unpickles nothing.

It knows the opcodes that torch.save and pickle's protocols 0 to 5 write. A global is a name, a call is a note of what
would be called; nothing is resolved. Sources: pickletools' opcode table; torch/_weights_only_unpickler.py and
torch/_utils.py (``_rebuild_*``) for the shapes of what torch writes.
"""

from __future__ import annotations

import pickletools
import struct
import typing as t

from ..structure import Problem, _short


class Global(t.NamedTuple):
    """A name that a real load would import."""

    name: str


class Call:
    """What a real load would call, with its arguments, the items it would then be given, and the state."""

    __slots__ = ("args", "function", "items", "state")

    def __init__(self, function: t.Any, args: t.Any) -> None:
        self.function, self.args = function, args
        self.items: Map | None = None
        self.state: t.Any = None


class Map:
    """A dict as pairs: nothing of the file's is hashed."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[t.Any, t.Any]] = []


class Persistent(t.NamedTuple):
    """A persistent id; torch's name a storage."""

    value: t.Any


class _Mark:
    """What MARK leaves on the stack."""


_MARK = _Mark()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


_VALUES = _words(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES",
    "SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8",
)


class Machine:
    """Interprets one pickle. After ``run``, ``globals`` holds every name it would import."""

    def __init__(self) -> None:
        self.globals: set[str] = set()
        self._stack: list[t.Any] = []
        self._memo: dict[int, t.Any] = {}

    def run(self, stream: t.Any) -> t.Any:
        """The inert root value. Raises Problem."""
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._do(opcode.name, argument)
        except (ValueError, IndexError, KeyError, struct.error, OverflowError, TypeError, AttributeError) as problem:
            raise Problem("corrupt", f"the pickle does not hold together: {_short(problem)}") from problem
        raise Problem("truncated", "the pickle ends before its STOP")

    def _do(self, name: str, argument: t.Any) -> None:
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name not in ("PROTO", "FRAME"):
            operation = _OPERATIONS.get(name)
            if operation is None:
                raise Problem("structural_only", f"the pickle uses {name}, which no checkpoint needs; not interpreted")
            operation(self, argument)

    def _until_mark(self) -> list[t.Any]:
        items: list[t.Any] = []
        while True:
            item = self._stack.pop()
            if item is _MARK:
                return items[::-1]
            items.append(item)

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("stack is too short")
        items = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        self._stack.append(items)

    def _append(self, items: list[t.Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Call):  # list items of an object (protocol 2's listitems)
            target.args = (target.args, items)
        else:
            raise TypeError("appends to what is no list")

    def _set(self, items: list[t.Any]) -> None:
        if len(items) % 2:
            raise ValueError("a key without a value")
        target = self._stack[-1]
        pairs = list(zip(items[::2], items[1::2], strict=True))
        if isinstance(target, Map):
            target.pairs.extend(pairs)
        elif isinstance(target, Call):
            target.items = target.items or Map()
            target.items.pairs.extend(pairs)
        else:
            raise TypeError("sets items of what is no dict")

    def _name(self, module: t.Any, name: t.Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a global that is no name")
        self.globals.add(f"{module}.{name}")
        self._stack.append(Global(f"{module}.{name}"))

    def _call(self, args: t.Any, function: t.Any) -> None:
        self._stack.append(Call(function, args))

    # opcodes, each as (self, argument)

    def _op_global(self, argument: t.Any) -> None:
        self._name(*str(argument).split(" ", 1))

    def _op_stack_global(self, argument: t.Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._name(module, name)

    def _op_inst(self, argument: t.Any) -> None:
        args = tuple(self._until_mark())
        self._op_global(argument)
        self._call(args, self._stack.pop())

    def _op_obj(self, argument: t.Any) -> None:
        items = self._until_mark()
        self._call(tuple(items[1:]), items[0])

    def _op_reduce(self, argument: t.Any) -> None:
        args = self._stack.pop()
        self._call(args, self._stack.pop())

    def _op_newobj_ex(self, argument: t.Any) -> None:
        keywords, args = self._stack.pop(), self._stack.pop()
        self._call((args, keywords), self._stack.pop())

    def _op_build(self, argument: t.Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Call):
            target.state = state if target.state is None else (target.state, state)
        elif not isinstance(target, (Map, list)):
            raise TypeError("gives a state to what has none")

    def _op_memoize(self, argument: t.Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _op_put(self, argument: t.Any) -> None:
        self._memo[argument] = self._stack[-1]

    def _op_get(self, argument: t.Any) -> None:
        self._stack.append(self._memo[argument])

    def _op_pop_mark(self, argument: t.Any) -> None:
        self._until_mark()

    def _op_dict(self, argument: t.Any) -> None:
        items = self._until_mark()
        self._stack.append(Map())
        self._set(items)

    def _op_setitem(self, argument: t.Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _op_append(self, argument: t.Any) -> None:
        item = self._stack.pop()
        self._append([item])

    def _op_persistent(self, argument: t.Any) -> None:
        self._stack.append(Persistent(argument if argument is not None else self._stack.pop()))


def _push(make: t.Callable[[], t.Any]) -> t.Callable[[Machine, t.Any], None]:
    return lambda machine, argument: machine._stack.append(make())


_OPERATIONS: dict[str, t.Callable[[Machine, t.Any], None]] = {
    "MARK": _push(lambda: _MARK),
    "EMPTY_DICT": _push(Map),
    "EMPTY_LIST": _push(list),
    "EMPTY_SET": _push(list),
    "EMPTY_TUPLE": _push(tuple),
    "DICT": Machine._op_dict,
    "LIST": lambda machine, argument: machine._stack.append(machine._until_mark()),
    "TUPLE": lambda machine, argument: machine._stack.append(tuple(machine._until_mark())),
    "FROZENSET": lambda machine, argument: machine._stack.append(tuple(machine._until_mark())),
    "TUPLE1": lambda machine, argument: machine._tuple(1),
    "TUPLE2": lambda machine, argument: machine._tuple(2),
    "TUPLE3": lambda machine, argument: machine._tuple(3),
    "APPEND": Machine._op_append,
    "APPENDS": lambda machine, argument: machine._append(machine._until_mark()),
    "ADDITEMS": lambda machine, argument: machine._append(machine._until_mark()),
    "SETITEM": Machine._op_setitem,
    "SETITEMS": lambda machine, argument: machine._set(machine._until_mark()),
    "GLOBAL": Machine._op_global,
    "STACK_GLOBAL": Machine._op_stack_global,
    "INST": Machine._op_inst,
    "OBJ": Machine._op_obj,
    "REDUCE": Machine._op_reduce,
    "NEWOBJ": Machine._op_reduce,
    "NEWOBJ_EX": Machine._op_newobj_ex,
    "BUILD": Machine._op_build,
    "PUT": Machine._op_put,
    "BINPUT": Machine._op_put,
    "LONG_BINPUT": Machine._op_put,
    "MEMOIZE": Machine._op_memoize,
    "GET": Machine._op_get,
    "BINGET": Machine._op_get,
    "LONG_BINGET": Machine._op_get,
    "PERSID": Machine._op_persistent,
    "BINPERSID": Machine._op_persistent,
    "POP": lambda machine, argument: machine._stack.pop(),
    "POP_MARK": Machine._op_pop_mark,
    "DUP": lambda machine, argument: machine._stack.append(machine._stack[-1]),
}


# --- names -----------------------------------------------------------------------------------------------------------

#: what torch's own weights-only load takes, and plain data classes; none of them runs code of the file
_ALLOWED = _words(
    "collections.OrderedDict collections.defaultdict collections.Counter collections.deque builtins.set",
    "builtins.frozenset builtins.bytearray builtins.complex builtins.dict builtins.list builtins.tuple",
    "builtins.int builtins.float builtins.str builtins.bytes builtins.bool builtins.slice builtins.range",
    "builtins.object __builtin__.set __builtin__.frozenset __builtin__.bytearray __builtin__.complex",
    "__builtin__.dict __builtin__.list __builtin__.slice __builtin__.object __builtin__.xrange __builtin__.long",
    "argparse.Namespace pathlib.PosixPath pathlib.Path pathlib.PurePosixPath pathlib.WindowsPath",
    "pathlib._local.PosixPath datetime.datetime datetime.date datetime.timedelta datetime.timezone",
    "decimal.Decimal fractions.Fraction uuid.UUID _codecs.encode copyreg._reconstructor copy_reg._reconstructor",
    "numpy.core.multiarray._reconstruct numpy.core.multiarray.scalar numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar numpy.dtype numpy.ndarray numpy._core.numeric._frombuffer",
    "numpy.core.numeric._frombuffer torch.Size torch.device torch.Tensor torch.nn.parameter.Parameter",
    "torch.nn.parameter.Buffer torch.nn.parameter.UninitializedParameter torch._tensor._rebuild_from_type_v2",
    "torch._tensor.Tensor torch.Generator torch.serialization._get_layout torch._C._nn.gelu",
)
_ALLOWED_PREFIXES = ("torch._utils._rebuild_", "torch.storage.", "numpy.dtypes.")
_TORCH_NAMES = _words(
    "float16 float32 float64 bfloat16 half float double int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool",
    "complex32 complex64 complex128 qint8 quint8 qint32 quint4x2 float8_e4m3fn float8_e5m2 float8_e4m3fnuz",
    "float8_e5m2fnuz float8_e8m0fnu strided sparse_coo sparse_csr preserve_format contiguous_format",
    "per_tensor_affine per_channel_affine",
)
#: modules whose mere mention in a checkpoint is an attack or a gross error
_DANGEROUS = _words(
    "os posix nt posixpath subprocess sys shutil socket ssl pty tty runpy importlib imp pkgutil ctypes _ctypes",
    "code codeop commands popen2 webbrowser threading _thread multiprocessing pickle _pickle cPickle dill",
    "cloudpickle marshal shelve tempfile pip setuptools urllib http requests ftplib smtplib telnetlib xmlrpc pdb",
    "bdb cProfile timeit trace inspect gc operator _operator site zipimport linecache builtins __builtin__",
    "__builtins__ distutils fileinput glob sqlite3",
)
_DANGEROUS_NAMES = (
    "types.CodeType",
    "types.FunctionType",
    "joblib.load",
    "torch.hub",
    "torch.load",
    "torch.jit.load",
    "torch._inductor",
    "numpy.load",
    "numpy.f2py",
    "numpy.testing",
)


def allowed(name: str) -> bool:
    """Whether a weights-only load would take this global."""
    if name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES):
        return True
    module, _, last = name.rpartition(".")
    return module == "torch" and (last in _TORCH_NAMES or last.endswith(("Storage", "Tensor")))


def dangerous(name: str) -> bool:
    """Whether importing this global runs or could run something that no checkpoint needs."""
    if allowed(name):
        return False
    return name.split(".", 1)[0] in _DANGEROUS or name.startswith(_DANGEROUS_NAMES)


# --- tensors ---------------------------------------------------------------------------------------------------------


class Tensor(t.NamedTuple):
    """One tensor: ``key`` of its storage, whose elements are ``storage`` (torch's class) or ``dtype`` where given."""

    name: str
    key: str
    storage: str
    dtype: str | None
    elements: int  # of the storage
    offset: int  # in elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]


_REBUILD = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
_MAX_TENSORS = 1_000_000


def tensors(root: t.Any) -> list[Tensor]:
    """Every tensor that can be reached from the root, once, named by its path. Raises Problem."""
    found: list[Tensor] = []
    seen: set[int] = set()
    todo: list[tuple[str, t.Any]] = [("", root)]
    while todo:
        name, value = todo.pop()
        if not isinstance(value, (Map, Call, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        tensor = _tensor(name, value) if isinstance(value, Call) else None
        if tensor is not None:
            found.append(tensor)
            if len(found) > _MAX_TENSORS:
                raise Problem("corrupt", f"more than {_MAX_TENSORS} tensors")
        else:
            todo.extend(_children(name, value))
    return found[::-1]


def _children(name: str, value: t.Any) -> list[tuple[str, t.Any]]:
    if isinstance(value, Map):
        return [(_join(name, key), inner) for key, inner in value.pairs]
    if isinstance(value, Call):
        return [(name, value.args), (name, value.items), (name, value.state)]
    return [(_join(name, place) if len(value) > 1 else name, inner) for place, inner in enumerate(value)]


def _join(name: str, key: t.Any) -> str:
    part = _short(key) if isinstance(key, (str, int)) else "?"
    return (f"{name}.{part}" if name else part)[-200:]


def _tensor(name: str, call: Call) -> Tensor | None:
    function, args = call.function, call.args
    if not isinstance(function, Global) or not isinstance(args, tuple):
        return None
    short = function.name.rpartition(".")[2]
    if short == "_rebuild_from_type_v2" and len(args) > 2:
        return _tensor(name, Call(args[0], args[2]))
    if not function.name.startswith("torch._utils.") or short not in _REBUILD or len(args) < 4:
        return None
    name = name or "the tensor"
    key, storage, count = _storage(args[0])
    shape, stride = args[2], args[3]
    shape = shape.args[0] if isinstance(shape, Call) and isinstance(shape.args, tuple) and shape.args else shape
    if type(args[1]) is not int or not _naturals(shape) or not _naturals(stride) or len(shape) != len(stride):
        raise Problem("corrupt", f"tensor {name}: its offset, shape or stride are no numbers")
    dtype = (
        args[6].name.rpartition(".")[2]
        if short.endswith("v3") and len(args) > 6 and isinstance(args[6], Global)
        else None
    )
    return Tensor(name, key, storage, dtype, count, args[1], tuple(shape), tuple(stride))


def _naturals(value: t.Any) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) <= 64
        and all(type(one) is int and 0 <= one < 1 << 63 for one in value)
    )


def _storage(value: t.Any) -> tuple[str, str, int]:
    row = value.value if isinstance(value, Persistent) else None
    if not isinstance(row, tuple) or len(row) < 5 or row[0] != "storage" or not isinstance(row[1], Global):
        raise Problem("corrupt", "a tensor whose storage is none")
    if not isinstance(row[2], str) or type(row[4]) is not int or row[4] < 0:
        raise Problem("corrupt", "a storage without a key or a size")
    return row[2], row[1].name.rpartition(".")[2], row[4]


def get(value: t.Any, key: str) -> t.Any:
    """``get`` for ``base.look_up``: the last value under a key of a dict, or of an object's items or state."""
    from .base import nothing

    if isinstance(value, Call):
        args = value.args if isinstance(value.args, tuple) else ()
        for inner in (value.items, value.state, *args):
            found = get(inner, key) if isinstance(inner, Map) else nothing()
            if found is not nothing():
                return found
        return nothing()
    if isinstance(value, Map):
        for name, inner in reversed(value.pairs):
            if isinstance(name, (str, int)) and str(name) == key:
                return inner
    return nothing()


def keys(value: t.Any) -> list[str]:
    """The top keys, for messages."""
    if isinstance(value, Call):
        value = value.items if value.items is not None else value.state
    return [_short(name) for name, _ in value.pairs] if isinstance(value, Map) else []
