"""Ops as written -> ops as they run: repeats unrolled, used files brought in, names looked up.

Buffers are not made here: whose a scratch buffer is shows only when all of its users are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from graphc.kernels.contract import Catalog, Contract
from graphc.spec.faults import Faults
from graphc.spec.model import (
    GLOBALS,
    BlocksSpec,
    BrokenSpec,
    BufferSpec,
    ExternOpSpec,
    FillOpSpec,
    KernelOpSpec,
    OpsFileSpec,
    OpSpec,
    PeersSpec,
    RepeatSpec,
    TransferOpSpec,
    UseSpec,
    repair,
)
from graphc.spec.names import NAME, why_no_index
from graphc.spec.values import holds
from graphc.text.diagnostics import Note, Span, SpecError, error
from graphc.text.explain import examine_with_repairs
from graphc.text.expr import evaluate_count, evaluate_number, evaluate_word
from graphc.text.load import Site, kind, read_yaml
from graphc.text.suggest import did_you_mean

MOST_OPS = 200_000
DEEPEST_USE = 8

RunnableSpec: TypeAlias = KernelOpSpec | TransferOpSpec | FillOpSpec | ExternOpSpec


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the equal participants: its number, what its names begin with, where it is."""

    number: int
    name: str  # what expressions call its number
    prefix: str  # "rank.3/"
    device: str


@dataclass(frozen=True, slots=True)
class Round:
    """One iteration of a repeat: which repeat, and what its names begin with."""

    repeat: str
    index: str
    value: int
    prefix: str  # "layer.0/"


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A buffer as it is written, and where it is declared: what its names begin with there."""

    name: str
    spec: BufferSpec
    site: Site
    prefix: str
    depth: int  # how many rounds enclose the declaration
    scope: Mapping[str, Any]
    siblings: Mapping[str, Declared | None]
    rank: Rank | None = None


Names: TypeAlias = Mapping[str, Declared | None]


@dataclass(frozen=True, slots=True)
class Context:
    """Where an op stands: what it may name, and what its own name begins with."""

    scope: Mapping[str, Any]
    buffers: Names
    root: Mapping[str, Any]  # what the schedule's expressions may name here
    prefix: str = ""  # "layer.0/ffn/"
    key: str = ""  # the same without iterations: "ffn/"
    rounds: tuple[Round, ...] = ()
    notes: tuple[Note, ...] = ()  # how a used file came in
    folder: Path = Path()
    uses: tuple[str, ...] = ()
    rank: Rank | None = None
    peers: tuple[Names, ...] = ()  # the spec's own buffers on each rank
    place: tuple[int, ...] = ()  # where in the program: the same for the twins of all ranks

    @property
    def repeats(self) -> tuple[str, ...]:
        return tuple(each.repeat for each in self.rounds)

    @property
    def indices(self) -> list[str]:
        """What tells the iterations and ranks apart that an op stands in."""
        ranks = [self.rank.name] if self.rank is not None else []
        return [*ranks, *(each.index for each in self.rounds)]


@dataclass(frozen=True, slots=True)
class Use:
    """What an op gives for an argument: a buffer, that of every rank, or null."""

    declared: Declared | None
    span: Span
    blocks: str | None = None
    is_written: bool = False
    peers: tuple[Declared, ...] = ()
    row: int | None = None

    @property
    def all_declared(self) -> tuple[Declared, ...]:
        return self.peers or ((self.declared,) if self.declared is not None else ())


@dataclass(frozen=True, slots=True)
class Draft:
    """One op before its buffers exist."""

    name: str
    key: str  # its name in the schedule
    spec: RunnableSpec
    site: Site
    context: Context
    uses: Mapping[str, Use]
    contract: Contract | None = None
    scalars: Mapping[str, int | float] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    place: tuple[int, ...] = ()

    @property
    def span(self) -> Span:
        return self.site["name"].span

    @property
    def family(self) -> str:
        """Its name without its rank; empty outside of SPMD specs."""
        rank = self.context.rank
        return "" if rank is None else self.name.removeprefix(rank.prefix)


class Expander:
    """Walks the ops of a spec and of the files that it uses."""

    def __init__(self, catalog: Catalog, faults: Faults) -> None:
        self.catalog, self.faults = catalog, faults
        self.drafts: list[Draft] = []
        self.keys: dict[str, Span] = {}  # every op that a schedule may name
        self.taken: dict[str, Span] = {}
        self.files: dict[str, tuple[OpsFileSpec, Site] | None] = {}
        self.contracts: dict[str, Contract] = {}

    def expand(self, ops: list[OpSpec], site: Site, context: Context) -> None:
        for index, spec in enumerate(ops):
            if isinstance(spec, BrokenSpec):
                continue
            if len(self.drafts) > MOST_OPS:
                raise error(
                    "too-many-ops", f"this makes more than {MOST_OPS} ops", site[index].span
                )
            self.note_key(spec, site[index], context)
            with self.faults.collecting(context.notes):
                self.expand_one(spec, site[index], replace(context, place=(*context.place, index)))

    def note_key(self, spec: OpSpec, site: Site, context: Context) -> None:
        if isinstance(spec, RepeatSpec | UseSpec | BrokenSpec):
            return
        name, at = spec.name, site["name"].span
        if not NAME.fullmatch(name) or (name in (*GLOBALS, "params") and not context.key):
            self.faults.mistake("bad-name", f"'{name}' cannot be an op's name", at, *context.notes)
        self.keys.setdefault(context.key + name, at)

    def expand_one(self, spec: OpSpec, site: Site, context: Context) -> None:
        is_wanted = holds(spec.if_, context.scope, site["if"].span)  # type: ignore[union-attr]
        if isinstance(spec, RepeatSpec):
            self.repeat(spec, site, context, is_wanted=is_wanted)
        elif isinstance(spec, UseSpec):
            self.use(spec, site, context, is_wanted=is_wanted)
        elif is_wanted and not isinstance(spec, BrokenSpec):
            self.drafts.append(self.draft(spec, site, context))

    def repeat(self, spec: RepeatSpec, site: Site, context: Context, *, is_wanted: bool) -> None:
        if (why := why_no_index(spec.index, context.scope)) is not None:
            raise error("bad-name", f"'{spec.index}' cannot be an index: {why}", site["index"].span)
        count = evaluate_count(spec.repeat, context.scope, site["repeat"].span)
        if not is_wanted or count == 0:
            for index, each in enumerate(spec.body):  # the schedule may name them nevertheless
                self.note_key(each, site["body"][index], context)
        if count * max(1, len(spec.body)) > MOST_OPS:
            text = f"this makes more than {MOST_OPS} ops"
            raise error("too-many-ops", text, site["repeat"].span)
        for index in range(count if is_wanted else 0):
            prefix = f"{context.prefix}{spec.index}.{index}/"
            scope = {**context.scope, spec.index: index}
            place = f"{site.document.file}:{site.path}:{context.key}"
            inner = replace(
                context,
                scope=scope,
                root={**context.root, spec.index: index},
                prefix=prefix,
                rounds=(*context.rounds, Round(place, spec.index, index, prefix)),
                place=(*context.place, index),
            )
            self.expand(spec.body, site["body"], inner)

    def use(self, spec: UseSpec, site: Site, context: Context, *, is_wanted: bool) -> None:
        path = str(context.folder / spec.use)
        if path in context.uses or len(context.uses) >= DEEPEST_USE:
            raise error("bad-use", f"'{spec.use}' uses itself", site["use"].span)
        note = Note("used here", site["use"].span)
        with self.faults.collecting((note, *context.notes)):
            found = self.file(path)
            if found is None:
                return
            ops, root = found
            inner = self.inside(spec, site, context, ops, root, note, path)
            if is_wanted:
                self.expand(ops.ops, root["ops"], inner)
            else:
                for index, each in enumerate(ops.ops):
                    self.note_key(each, root["ops"][index], inner)

    def file(self, path: str) -> tuple[OpsFileSpec, Site] | None:
        if path not in self.files:
            self.files[path] = None
            document = read_yaml(path)
            found, faults = examine_with_repairs(OpsFileSpec, document, repair)
            self.files[path] = None if found is None else (found, document.root)
            if faults:
                raise SpecError(faults)
        return self.files[path]

    def inside(
        self,
        spec: UseSpec,
        site: Site,
        context: Context,
        ops: OpsFileSpec,
        root: Site,
        note: Note,
        path: str,
    ) -> Context:
        """What the ops of a used file may name: its arguments and its own buffers."""
        given, buffers = self.arguments(spec, site, context, ops, root)
        prefix, key = f"{context.prefix}{spec.name}/", f"{context.key}{spec.name}/"
        names: dict[str, Declared | None] = {**buffers}
        for name, each in ops.buffers.items():
            at = root["buffers"][name]
            names[name] = Declared(
                name, each, at, prefix, len(context.rounds), given, names, context.rank
            )
        return replace(
            context,
            scope=given,
            buffers=names,
            prefix=prefix,
            key=key,
            notes=(note, *context.notes),
            folder=Path(path).parent,
            uses=(*context.uses, path),
        )

    def arguments(
        self, spec: UseSpec, site: Site, context: Context, ops: OpsFileSpec, root: Site
    ) -> tuple[dict[str, Any], dict[str, Declared | None]]:
        rank = context.rank
        given: dict[str, Any] = {rank.name: rank.number} if rank is not None else {}
        buffers: dict[str, Declared | None] = {}
        for name, value in spec.args.items():
            at = site["args"][name]
            if name not in ops.args:
                hint = did_you_mean(name, ops.args) or f"its arguments: {', '.join(ops.args)}"
                self.faults.mistake(
                    "unknown-argument", f"'{spec.use}' has no argument '{name}'", at.key, hint=hint
                )
                continue
            found = evaluate_word(value, context.scope, at.span)
            given[name] = found
            if isinstance(found, str) and found in context.buffers:
                buffers[name] = buffers[found] = context.buffers[found]
            elif isinstance(found, str) and found in context.scope:
                given[name] = context.scope[found]
            elif found is None:
                buffers[name] = None
        for index, name in enumerate(ops.args):
            if name not in spec.args:
                raise error(
                    "missing-argument",
                    f"'{spec.use}' needs the argument '{name}'",
                    site.key,
                    notes=[Note("declared here", root["args"][index].span)],
                )
        return given, buffers

    def draft(self, spec: RunnableSpec, site: Site, context: Context) -> Draft:
        name, span = context.prefix + spec.name, site["name"].span
        if name in self.taken:
            raise error(
                "duplicate-name",
                f"a second op '{spec.name}'",
                span,
                notes=[Note("the first is here", self.taken[name])],
            )
        self.taken[name] = span
        key = context.key + spec.name
        if isinstance(spec, KernelOpSpec):
            return self.kernel_draft(name, key, spec, site, context)
        if isinstance(spec, TransferOpSpec):
            uses = dict(transfer_uses(spec, site["transfer"], context))
        elif isinstance(spec, FillOpSpec):
            at = site["fill"]["target"]
            uses = {"target": Use(buffer_named(spec.fill.target, at, context), at.span, None, True)}
        else:
            args = site["extern"]["args"]
            uses = {
                argument: Use(
                    buffer_named(each.buffer, args[argument]["buffer"], context),
                    args[argument]["buffer"].span,
                    None,
                    each.access != "read",
                )
                for argument, each in spec.extern.args.items()
            }
        return Draft(name, key, spec, site, context, uses, place=context.place)

    def kernel_draft(
        self, name: str, key: str, spec: KernelOpSpec, site: Site, context: Context
    ) -> Draft:
        word = evaluate_word(spec.kernel, context.scope, site["kernel"].span)
        contract = self.contract(str(word), site["kernel"].span)
        uses: dict[str, Use] = {}
        scalars: dict[str, int | float] = {}
        spans: dict[str, Span] = {}
        for argument, value in {**spec.args, **spec.scalars}.items():
            at = site["args" if argument in spec.args else "scalars"][argument]
            if argument not in contract.args and argument not in contract.scalars:
                uses[argument] = Use(None, at.key)  # for bind to refuse
                continue
            spans[argument] = at.span
            with self.faults.collecting(context.notes):
                if argument in contract.scalars:
                    scalars[argument] = scalar(value, context, at.span)
                    continue
                access = contract.args.get(argument)
                is_written = access is not None and access.access != "read"
                uses[argument] = argument_use(value, at, context, is_written=is_written)
        missing = [each for each in spec.args if each not in uses and each not in scalars]
        if missing:
            raise SpecError([])  # said already
        return Draft(name, key, spec, site, context, uses, contract, scalars, spans, context.place)

    def contract(self, name: str, span: Span) -> Contract:
        found = self.contracts.get(name)
        if found is None:
            found = self.contracts[name] = self.catalog.contract(name, span)
        return found


def scalar(value: Any, context: Context, span: Span) -> int | float:
    if not isinstance(value, int | float | str):
        raise error("bad-value", f"a number is needed here, not {kind(value)}", span)
    number: int | float = evaluate_number(value, context.scope, span)
    return int(number) if isinstance(number, int) else number


def argument_use(value: Any, at: Site, context: Context, *, is_written: bool) -> Use:
    if isinstance(value, BlocksSpec):
        declared = buffer_named(value.buffer, at["buffer"], context)
        blocks = evaluate_word(value.blocks, context.scope, at["blocks"].span)
        return Use(declared, at["buffer"].span, str(blocks), is_written)
    if isinstance(value, PeersSpec):
        return peers_use(value, at, context, is_written=is_written)
    if value is None:
        return Use(None, at.span)
    if not isinstance(value, str):
        raise error("bad-value", f"expected a buffer's name or null, found {kind(value)}", at.span)
    return Use(buffer_named(value, at, context), at.span, None, is_written)


def peers_use(value: PeersSpec, at: Site, context: Context, *, is_written: bool) -> Use:
    """That buffer on every rank: it is the spec's own, and symmetric."""
    span = at["peers"].span
    if context.rank is None:
        raise error("bad-peers", "this spec has no ranks, so no buffer has peers", span)
    declared = buffer_named(value.peers, at["peers"], context)
    if declared is None:
        return Use(None, span)
    row = None
    if value.row is not None:
        row = int(evaluate_count(value.row, context.scope, at["row"].span))
    notes = [Note("declared here", declared.site.key)]
    peers = [names.get(declared.name) for names in context.peers]
    if peers[context.rank.number] is not declared:
        text = f"'{declared.name}' is a used file's own, which other ranks do not know"
        raise error("bad-peers", text, span, notes=notes, hint="declare it in the spec itself")
    if not declared.spec.symmetric:
        text = f"'{declared.name}' is not symmetric: only its own rank may touch it"
        hint = "declare it with symmetric: true"
        raise error("bad-peers", text, span, notes=notes, hint=hint)
    known = tuple(each for each in peers if each is not None)
    return Use(declared, span, None, is_written, known, row)


def buffer_named(word: str | None, at: Site, context: Context) -> Declared | None:
    """The buffer that a word stands for; None for null and for one that is left out."""
    name = evaluate_word(word, context.scope, at.span)
    if name is None:
        return None
    if not isinstance(name, str):
        raise error("bad-value", f"'{word}' is {kind(name)}, not a buffer's name", at.span)
    if name not in context.buffers:
        hint = did_you_mean(name, context.buffers)
        if hint is None and name in context.scope and not str(word).startswith("="):
            hint = f"'{name}' is a value: write ={name} for the buffer that it names"
        raise error("unknown-buffer", f"unknown buffer '{name}'", at.span, hint=hint)
    return context.buffers[name]


def transfer_uses(spec: TransferOpSpec, at: Site, context: Context) -> Iterator[tuple[str, Use]]:
    transfer = spec.transfer
    if (transfer.pairs is None) == (transfer.source is None and transfer.target is None):
        text = "a transfer has source: and target:, or pairs:"
        raise error("bad-transfer", text, at.key)
    ends: list[tuple[str | None, str | None, Site]] = [(transfer.source, transfer.target, at)]
    if transfer.pairs is not None:
        pairs = enumerate(transfer.pairs)
        ends = [(each.source, each.target, at["pairs"][index]) for index, each in pairs]
    for index, (source, target, place) in enumerate(ends):
        for end, word in (("source", source), ("target", target)):
            if word is None:
                raise error("bad-transfer", f"this transfer needs a {end}", place.key)
            declared = buffer_named(word, place[end], context)
            yield f"{end}.{index}", Use(declared, place[end].span, None, end == "target")
