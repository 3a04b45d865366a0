"""The file format of specs, and nothing else: what fields there are and what may stand in them.

Where a ``Number`` may stand, an expression may; where a ``Word`` may stand, text that begins with
``=`` is an expression. What the names and values mean is ``build``'s to know.
"""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, PrivateAttr, Tag
from pydantic_core import ErrorDetails

from graphc.kernels.contract import RowsSpec, as_rows
from graphc.text.diagnostics import Diagnostic, SpecError
from graphc.text.explain import (
    Condition,
    Number,
    Scalar,
    Word,
    Written,
    examine_with_repairs,
    fault,
)
from graphc.text.load import Document, PathInFile, Site, kind, read_yaml
from graphc.text.suggest import did_you_mean

BROKEN = "<broken>"  # the field that stands for an entry whose own faults are reported already


class ParamSpec(Written):
    """A value that can be set; its type is that of the default."""

    default: Scalar
    min: Number | None = None
    max: Number | None = None
    multiple_of: Number | None = None
    choices: list[Scalar] = Field(default=[])
    count: bool = False  # the extent that varies from launch to launch; the value is the capacity
    doc: str | None = None


class RequireSpec(Written):
    """A relation that must hold, with what to say if it does not."""

    that: Condition
    else_: str = Field(alias="else")


class CutSpec(Written):
    """A named partition of an axis; how many parts it has is the schedule's."""

    extent: Number


class OverlaySpec(Written):
    """The bytes of another buffer, from an offset on."""

    buffer: Word
    offset: Number = 0


class BufferSpec(Written):
    """An array on a device or in mapped host memory."""

    device: Word | None = None
    memory: Literal["mapped"] | None = None
    dtype: Word
    shape: list[Number]
    role: Literal["input", "output", "inout", "weight", "state", "status"] | None = None
    optional: bool = False
    symmetric: bool = False  # ops of other ranks may touch it
    below: Number | None = None  # of integers that the caller brings: they go from 0 up to it
    odd: list[Number] = Field(default=[])  # others that now and then stand among them
    each: str | None = None
    at: OverlaySpec | None = None
    if_: Condition = Field(default=True, alias="if")


class BlocksSpec(Written):
    """An argument of which the whole blocks of a cut are read that meet the piece."""

    buffer: Word
    blocks: str


class PeersSpec(Written):
    """An argument over that buffer on every rank: all of it, or one row."""

    peers: Word | None
    row: Number | None = None


def as_argument(value: object) -> object:
    if isinstance(value, dict):
        of_blocks = bool({"buffer", "blocks"} & {*value})
        if of_blocks and {"peers", "row"} & {*value}:
            hint = "write {buffer: name, blocks: cut}, {peers: name} or {peers: name, row: number}"
            raise fault("an argument is over blocks or over peers, not both", hint=hint)
        return (BlocksSpec if of_blocks else PeersSpec).model_validate(value)
    if isinstance(value, list):
        raise fault(f"expected a buffer's name, null or a value, found {kind(value)}")
    return value


ArgumentValue = Annotated[BlocksSpec | PeersSpec | Any, BeforeValidator(as_argument)]


class KernelOpSpec(Written):
    """One call of a kernel template."""

    name: str
    kernel: Word
    device: Word | None = None
    args: dict[str, ArgumentValue] = Field(default={})
    scalars: dict[str, Number] = Field(default={})
    options: dict[str, Scalar] = Field(default={})
    estimate: dict[str, Number] = Field(default={})  # sizes that only the device knows, in all
    cut: Word | None = None
    if_: Condition = Field(default=True, alias="if")


class PairSpec(Written):
    source: Word
    target: Word


class TransferSpec(Written):
    """One pair of buffers, or several small pairs that travel together."""

    source: Word | None = None
    target: Word | None = None
    wire: Word | None = None
    pairs: list[PairSpec] | None = Field(default=None, min_length=1)


class TransferOpSpec(Written):
    """A logical copy between devices."""

    name: str
    transfer: TransferSpec
    cut: Word | None = None
    if_: Condition = Field(default=True, alias="if")


class FillSpec(Written):
    target: Word
    value: Number = 0


class FillOpSpec(Written):
    """Every element of a buffer set to a value."""

    name: str
    fill: FillSpec
    cut: Word | None = None
    if_: Condition = Field(default=True, alias="if")


class ExternArgumentSpec(Written):
    """What an external function touches: it has no contract, so the spec says it."""

    buffer: Word
    access: Literal["read", "write", "write_some", "update", "accumulate"]
    rows: Annotated[RowsSpec, BeforeValidator(as_rows)] = RowsSpec(kind="all")


class ExternSpec(Written):
    """A Python callable that enqueues work on the stream that it is given."""

    function: str
    reference: str
    args: dict[str, ExternArgumentSpec]
    scalars: dict[str, Scalar] = Field(default={})
    axis: Number | None = None  # what pieces cut; without it the op cannot be cut


class ExternOpSpec(Written):
    name: str
    device: Word | None = None
    extern: ExternSpec
    cut: Word | None = None
    if_: Condition = Field(default=True, alias="if")


class RepeatSpec(Written):
    """The body once for each value of the index."""

    repeat: Number
    index: str
    body: list[OpSpec]
    if_: Condition = Field(default=True, alias="if")


class UseSpec(Written):
    """The ops of another file, under a name, with arguments."""

    name: str
    use: str
    args: dict[str, Scalar] = Field(default={})
    if_: Condition = Field(default=True, alias="if")


class BrokenSpec(Written):
    """An op whose faults are reported already."""

    broken: str | None = Field(default=None, alias="<broken>")  # BROKEN


KINDS = ("kernel", "transfer", "fill", "extern", "repeat", "use")


def kind_of_op(value: Any) -> str:
    fields = value if isinstance(value, dict) else {}
    found = [each for each in (*KINDS, BROKEN) if each in fields]
    return {
        "kernel": "KernelOpSpec",
        "transfer": "TransferOpSpec",
        "fill": "FillOpSpec",
        "extern": "ExternOpSpec",
        "repeat": "RepeatSpec",
        "use": "UseSpec",
        BROKEN: "BrokenSpec",
    }[found[0] if len(found) == 1 else BROKEN]


def as_known_op(value: object) -> object:
    """Refuse what is no op, or two at once, before its kind is chosen."""
    if not isinstance(value, dict):
        raise fault(f"expected an op, found {kind(value)}")
    found = [each for each in KINDS if each in value]
    if len(found) > 1:
        raise fault(f"an op is one of {' and '.join(found)}, not both", code="bad-op")
    if not found and BROKEN not in value:
        others = [each for each in value if each not in ("name", "device", "args", "if", "cut")]
        near = (did_you_mean(each, KINDS) for each in others)
        hint = next((each for each in near if each), None)
        raise fault(f"an op needs one of {', '.join(KINDS)}", code="bad-op", hint=hint)
    return value


OpSpec = Annotated[
    Annotated[KernelOpSpec, Tag("KernelOpSpec")]
    | Annotated[TransferOpSpec, Tag("TransferOpSpec")]
    | Annotated[FillOpSpec, Tag("FillOpSpec")]
    | Annotated[ExternOpSpec, Tag("ExternOpSpec")]
    | Annotated[RepeatSpec, Tag("RepeatSpec")]
    | Annotated[UseSpec, Tag("UseSpec")]
    | Annotated[BrokenSpec, Tag("BrokenSpec")],
    Discriminator(kind_of_op),
    BeforeValidator(as_known_op),
]


def as_pieces(value: object) -> object:
    if isinstance(value, list):
        if not value:
            raise fault("expected at least one share")
        for each in value:
            if isinstance(each, bool) or not isinstance(each, int | float | str):
                raise fault(f"expected shares such as 1/4, found {kind(each)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise fault(f"expected a number of pieces, or a list of shares, found {kind(value)}")
    return value


def as_streams(value: object) -> object:
    if isinstance(value, dict):
        for each in value.values():
            if not isinstance(each, str):
                raise fault(f"expected a stream's name for each step, found {kind(each)}")
        return value
    if not isinstance(value, str):
        raise fault(f"expected a stream's name, or one for each step, found {kind(value)}")
    return value


def as_names(value: object, what: str) -> object:
    """Names of ops or of groups (``what``), or an expression that gives them."""
    if isinstance(value, str) and value.startswith("="):
        return value
    return listed_names(value, what, "write [a], or =expression")


def as_op_names(value: object) -> object:
    return listed_names(value, "ops", "write [a, b]")


def listed_names(value: object, what: str, hint: str) -> object:
    if not isinstance(value, list):
        raise fault(f"expected a list of {what}, found {kind(value)}", hint=hint)
    for each in value:
        if not isinstance(each, str):
            raise fault(f"expected a list of {what}, found {kind(each)} in it", hint=hint)
    return value


Pieces = Annotated[Any, BeforeValidator(as_pieces)]


class PlacementSpec(Written):
    """How one op is run."""

    pieces: Pieces | None = None
    route: Word | None = None
    stream: Annotated[Any, BeforeValidator(as_streams)] = None
    blocks: Number | None = None
    priority: Number | None = None
    after: Annotated[Any, BeforeValidator(partial(as_names, what="ops"))] = None


def as_placement(value: object) -> object:
    """What is no mapping is refused where the ops are known, in whose place it may stand."""
    return value if isinstance(value, dict) else {}


class ScheduleSpec(Written):
    """How the ops are run: the plan's own values, and an entry for each op that has any."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[PlacementSpec, BeforeValidator(as_placement)]]

    cuts: dict[str, Pieces] = Field(default={})
    emit: Word = "capture"
    memory: Word = "concurrent"
    max_streams: Number = 4
    units: Word = "one"
    sync: Word = "flags"
    launch: Word = "joined"

    @property
    def placements(self) -> dict[str, PlacementSpec]:
        return dict(self.__pydantic_extra__)


class ScheduleFileSpec(ScheduleSpec):
    """A file that stands for the schedule section; it may set params, too."""

    params: dict[str, Scalar] = Field(default={})


GLOBALS = tuple(ScheduleSpec.model_fields)


def as_version(value: object) -> object:
    if value != 1 or isinstance(value, bool):
        raise fault(f"this is format {value}; only format 1 is known", code="bad-version")
    return value


Version = Annotated[Any, BeforeValidator(as_version)]


class RanksSpec(Written):
    """Equal participants: every op and every buffer exists once for each."""

    count: Number
    name: str = "rank"


class RankDevicesSpec(Written):
    """On which device a rank is, by number."""

    ranks: Number


def as_devices(value: object) -> object:
    if isinstance(value, dict):
        return RankDevicesSpec.model_validate(value)
    if not isinstance(value, list) or not value:
        raise fault(f"expected a list of names, or {{ranks: number}}, found {kind(value)}")
    for each in value:
        if not isinstance(each, str):
            raise fault(f"expected the name of a device, found {kind(each)}")
    return value


class EntrySpec(Written):
    """A graph of its own: the groups of its ops, in order, and the entries that come before it."""

    groups: Annotated[Any, BeforeValidator(partial(as_names, what="groups"))]
    after: list[str] = Field(default=[])
    if_: Condition = Field(default=True, alias="if")


class HeadSpec(Written):
    """What a spec and a hand-written schedule have in common."""

    graphc: Version
    name: str
    doc: str | None = None
    params: dict[str, ParamSpec] = Field(default={})
    let: dict[str, Number] = Field(default={})
    require: list[RequireSpec] = Field(default=[])
    presets: dict[str, dict[str, Scalar]] = Field(default={})
    buffers: dict[str, BufferSpec] = Field(default={})

    _document: Document | None = PrivateAttr(None)
    _faults: tuple[Diagnostic, ...] = PrivateAttr(())

    @property
    def site(self) -> Site:
        assert self._document is not None
        return self._document.root

    @property
    def faults(self) -> tuple[Diagnostic, ...]:
        """Mistakes found so far, in what was left out; ``build`` reports them with its own."""
        return self._faults


class LayerSpec(HeadSpec):
    """A layer: what is done, and how."""

    devices: Annotated[RankDevicesSpec | list[str], BeforeValidator(as_devices)]
    ranks: RanksSpec | None = None
    cuts: dict[str, CutSpec] = Field(default={})
    ops: list[OpSpec] = Field(default=[])
    groups: dict[str, list[OpSpec]] = Field(default={})
    entries: dict[str, EntrySpec] = Field(default={})
    phases: dict[str, Annotated[list[str], BeforeValidator(as_op_names)]] = Field(default={})
    schedule: ScheduleSpec = Field(default_factory=lambda: ScheduleSpec.model_validate({}))


class OpaqueSpec(Written):
    """An op of a hand-written schedule: what it touches. ``x/split``: the piece's rows of ``x``."""

    reads: list[str] = Field(default=[])
    writes: list[str] = Field(default=[])
    updates: list[str] = Field(default=[])
    device: str | None = None


def as_issue(value: object) -> object:
    """Entries stay plain data: ``handwritten`` walks them with their places."""
    if not isinstance(value, list):
        raise fault(f"expected a list in issue order, found {kind(value)}")
    return value


class HandScheduleSpec(Written):
    """Streams with their devices, and what is issued to them, in order."""

    streams: dict[str, str] = Field(min_length=1)
    issue: Annotated[Any, BeforeValidator(as_issue)]


class HandSpec(HeadSpec):
    """A schedule that is checked as it stands."""

    devices: list[str] = Field(min_length=1)
    ops: dict[str, OpaqueSpec]
    schedule: HandScheduleSpec


class OpsFileSpec(Written):
    """A file of ops that ``use:`` brings in: its arguments, its own scratch, its ops."""

    graphc_ops: Version
    name: str
    doc: str | None = None
    args: list[str] = Field(default=[])
    buffers: dict[str, BufferSpec] = Field(default={})
    ops: list[OpSpec]


RepeatSpec.model_rebuild()
Spec = LayerSpec | HandSpec


def load_spec(path: str | Path) -> Spec:
    """Read a spec. What is wrong with parts of it is kept with the rest, for ``build`` to report.

    A ``SpecError`` only for a file of which nothing can be used.
    """
    try:
        state = Path(path).stat()
    except OSError:
        return parse_spec(read_yaml(path))  # which says what is wrong
    return kept_spec(str(path), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def kept_spec(path: str, mtime_ns: int, nbytes: int) -> Spec:
    """Specs read before, by the state of their files: they are frozen."""
    return parse_spec(read_yaml(path))


def parse_spec(document: Document) -> Spec:
    """A layer or a hand-written schedule."""
    if is_handwritten(document.data):
        return read(HandSpec, document)
    return read(LayerSpec, document)


def is_handwritten(data: Any) -> bool:
    fields = data if isinstance(data, dict) else {}
    schedule = fields.get("schedule")
    return isinstance(fields.get("ops"), dict) or (
        isinstance(schedule, dict) and "issue" in schedule
    )


SpecT = TypeVar("SpecT", LayerSpec, HandSpec)


def read(model: type[SpecT], document: Document) -> SpecT:
    spec, faults = examine_with_repairs(model, document, repair)
    if spec is None:
        raise SpecError(faults)
    spec._document, spec._faults = document, faults
    return spec


def repair(data: Any, path: PathInFile, fault_: ErrorDetails) -> bool:
    """Take out what is faulty: an unknown field alone, else the whole param, buffer or op.

    Of a buffer or an op nothing is kept: with a misspelt field it would mean something else.
    """
    if fault_["type"] == "missing" and not path:
        path = (str(fault_["loc"][-1]),)
    if not path:
        return False
    whole = {"ops", "groups", "body", "buffers"}
    is_alone = fault_["type"] == "extra_forbidden" and not whole & {*path}
    where = path if is_alone else faulty_entry(path)
    owner = data
    for part in where[:-1]:
        if isinstance(owner, dict) and part not in owner:
            return True  # left out already
        owner = owner[part]
    if isinstance(owner, list) and not isinstance(where[-1], int):
        return True  # a stand-in is in its place already
    if isinstance(owner, list) or (len(where) == 1 and where[0] in STAND_INS):
        stand_in = {BROKEN: None} if where[-2:-1] != ("require",) else {"that": True, "else": ""}
        owner[where[-1]] = deepcopy(STAND_INS[str(where[0])]) if len(where) == 1 else stand_in
    else:
        owner.pop(where[-1], None)
    return True


def repair_schedule(data: Any, path: PathInFile, fault_: ErrorDetails) -> bool:
    """Take out the faulty entry of a schedule."""
    if not path:
        return False
    where = path if fault_["type"] == "extra_forbidden" else path[:1]
    owner = data
    for part in where[:-1]:
        owner = owner.get(part, {})
    owner.pop(where[-1], None)
    return True


def faulty_entry(path: PathInFile) -> PathInFile:
    """The smallest entry that can be left out.

    >>> faulty_entry(("ops", 0, "body", 2, "args", "x")), faulty_entry(("buffers", "x", "dtype"))
    (('ops', 0, 'body', 2), ('buffers', 'x'))
    """
    for stop in range(len(path), 1, -1):
        is_listed = path[stop - 2] in ("ops", "body") or (path[0] == "groups" and stop == 3)
        if is_listed and isinstance(path[stop - 1], int):
            return path[:stop]
    return path[:1] if path[0] in STAND_INS else path[:2]


STAND_INS: dict[str, Any] = {
    "graphc": 1,
    "graphc_ops": 1,
    "name": "spec",
    "devices": ["device"],
    "ops": [],
}
