"""Declared buffers -> buffers: whose each one is, and its shape, dtype and place.

Scratch belongs to the innermost repeat that holds all of its users. What is written within a
repeat and used outside of it carries over from iteration to iteration, so it needs a role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from graphc.dtypes import DTYPES
from graphc.ir import HOST, MAPPED, Buffer, Op, Role
from graphc.spec.devices import device_named, placed_by_rank
from graphc.spec.expand import Declared, Draft, Round, Use
from graphc.spec.faults import Faults
from graphc.spec.names import NAME
from graphc.spec.values import holds
from graphc.text.diagnostics import Diagnostic, Note, SpecError, error
from graphc.text.expr import evaluate_count, evaluate_number, evaluate_word, factor_of, mentions
from graphc.text.suggest import did_you_mean

MOST_BYTES = 2**48


class Buffers:
    """The buffers made so far, by name."""

    def __init__(self, devices: Iterable[str], count_name: str | None, faults: Faults) -> None:
        self.devices, self.count_name, self.faults = tuple(devices), count_name, faults
        self.made: dict[str, Buffer] = {}
        self.depths: dict[Declared, int] = {}
        self.alike: dict[Declared, Buffer] = {}  # but for its name, the same in all iterations
        self.failed: set[str] = set()
        self.absent: set[str] = set()

    def learn(self, drafts: Iterable[Draft]) -> None:
        """See who uses what, so that every scratch buffer has an owner."""
        users: dict[Declared, list[tuple[Draft, Use]]] = {}
        for draft in drafts:
            for use in draft.uses.values():
                for each in use.all_declared:
                    self.note_user(each, draft, use, users)
        for declared, found in users.items():
            if declared.spec.role is None and declared.spec.each is None:
                with self.faults.collecting():
                    self.depths[declared] = owner_depth(declared, found)

    def note_user(
        self,
        declared: Declared | None,
        draft: Draft,
        use: Use,
        users: dict[Declared, list[tuple[Draft, Use]]],
    ) -> None:
        with self.faults.collecting():
            while declared is not None:
                users.setdefault(declared, []).append((draft, use))
                declared = base_of(declared)

    def of(self, use: Use, draft: Draft) -> Buffer | None:
        """The buffer that an op means; None if it is left out at these values."""
        assert use.declared is not None
        return self.checked(use.declared, draft)

    def peers(self, use: Use, draft: Draft) -> tuple[Buffer, ...]:
        """The buffers of all ranks that an op means; none if they are left out at these values."""
        found = [self.checked(each, draft) for each in use.peers]
        known = tuple(each for each in found if each is not None)
        if known and len(known) < len(found):
            text = f"'{use.peers[found.index(None)].name}' is left out on rank {found.index(None)}"
            raise error("bad-peers", f"{text}, but not on all", use.span)
        return known

    def checked(self, declared: Declared, draft: Draft) -> Buffer | None:
        try:
            return self.instance(declared, draft)
        except SpecError as problem:
            # Said once where it is declared; the op that uses it cannot be bound.
            self.faults.add(*problem.diagnostics)
            raise SpecError([]) from None

    def instance(self, declared: Declared, draft: Draft | None) -> Buffer | None:
        rounds = self.rounds(declared, draft)
        name = (on_rank(rounds[-1], draft, declared) if rounds else declared.prefix) + declared.name
        if name in self.made:
            return self.made[name]
        if name in self.absent:
            return None
        if name in self.failed:
            raise SpecError([])
        if declared in self.alike:
            self.made[name] = replace(self.alike[declared], name=name)
            return self.made[name]
        self.failed.add(name)  # until it is made
        scope = {**declared.scope, **{each.index: each.value for each in rounds}}
        if not holds(declared.spec.if_, scope, declared.site["if"].span):
            self.absent.add(name)
            return None
        buffer = self.make(name, declared, scope, draft)
        self.made[name] = buffer
        if declared.spec.at is None and not mentions(
            declared.spec, [each.index for each in rounds]
        ):
            self.alike[declared] = buffer
        return buffer

    def rounds(self, declared: Declared, draft: Draft | None) -> tuple[Round, ...]:
        """The iterations, within that of its declaration, to which the buffer of an op belongs."""
        if draft is None:
            return ()
        return draft.context.rounds[declared.depth : self.depth(declared, draft)]

    def depth(self, declared: Declared, draft: Draft) -> int:
        base = base_of(declared)
        if base is not None:
            return self.depth(base, draft)
        each = declared.spec.each
        if each is None:
            return self.depths.get(declared, declared.depth)
        indices = [round_.index for round_ in draft.context.rounds]
        if each not in indices:
            raise error(
                "bad-each",
                f"'{declared.name}' exists once for each '{each}', but '{draft.key}' is in no "
                f"such repeat",
                draft.span,
                notes=[Note("declared here", declared.site["each"].span)],
            )
        return len(indices) - indices[::-1].index(each)

    def make(
        self, name: str, declared: Declared, scope: Mapping[str, Any], draft: Draft | None
    ) -> Buffer:
        spec, at = declared.spec, declared.site
        if not NAME.fullmatch(declared.name):
            raise error("bad-name", f"'{declared.name}' cannot be a buffer's name", at.key)
        device = self.device(declared, scope)
        dtype = evaluate_word(spec.dtype, scope, at["dtype"].span)
        if dtype not in DTYPES:
            hint = did_you_mean(str(dtype), DTYPES) or f"the dtypes are {', '.join(DTYPES)}"
            raise error("unknown-dtype", f"'{dtype}' is no dtype", at["dtype"].span, hint=hint)
        shape = self.shape(declared, scope)
        role = Role(spec.role) if spec.role else Role.SCRATCH
        if spec.optional and role is not Role.INPUT:
            text = f"only an input can be optional, '{declared.name}' is {role.value}"
            raise error("bad-role", text, at["optional"].key)
        buffer = Buffer(
            name,
            device,
            dtype,
            tuple(int(each) for each in shape),
            factor_of(shape[0]) if shape else 0,
            role,
            spec.optional,
            is_symmetric=spec.symmetric,
            below=self.below(declared, dtype, role, scope),
            odd=self.odd(declared, dtype, scope),
            span=at.key,
        )
        if spec.symmetric and declared.rank is None:
            text = f"'{declared.name}' is symmetric, but this spec has no ranks"
            raise error("bad-peers", text, at["symmetric"].key)
        if buffer.nbytes > MOST_BYTES:
            text = f"'{declared.name}' would have {buffer.nbytes} bytes"
            raise error("bad-shape", text, at["shape"].span)
        if spec.at is None:
            return buffer
        return self.overlaid(buffer, declared, scope, draft)

    def device(self, declared: Declared, scope: Mapping[str, Any]) -> str:
        spec, at = declared.spec, declared.site
        if declared.rank is not None:
            if spec.device is not None:
                raise placed_by_rank(declared.name, at["device"].key)
            if spec.memory is None:
                return declared.rank.device
        elif (spec.device is None) == (spec.memory is None):
            text = f"'{declared.name}' is either on a device or in mapped memory"
            raise error("missing-field", text, at.key, hint="write device: NAME or memory: mapped")
        if spec.device is None:
            if spec.role not in (None, "state", "status"):
                text = f"'{declared.name}' is {spec.role}: what the caller binds is on a device"
                raise error("bad-role", text, at["role"].span)
            return MAPPED
        return device_named(spec.device, scope, self.devices, at["device"].span)

    def shape(self, declared: Declared, scope: Mapping[str, Any]) -> list[int]:
        at = declared.site["shape"]
        if len(declared.spec.shape) > 8:
            raise error("bad-shape", "at most 8 dimensions are known", at.span)
        shape: list[int] = []
        mistakes: list[Diagnostic] = []
        for index, each in enumerate(declared.spec.shape):
            try:
                shape.append(evaluate_count(each, scope, at[index].span))
            except SpecError as problem:
                mistakes += problem.diagnostics
        if mistakes:
            raise SpecError(mistakes)
        return shape

    def below(
        self, declared: Declared, dtype: str, role: Role, scope: Mapping[str, Any]
    ) -> int | None:
        """What integers that the caller brings do not reach."""
        if declared.spec.below is None:
            return None
        at = declared.site["below"]
        limit = int(evaluate_count(declared.spec.below, scope, at.span))
        if DTYPES[dtype].is_float or role not in (Role.INPUT, Role.INOUT, Role.STATE):
            text = f"'below' is for integers that the caller brings; '{declared.name}' is "
            raise error("bad-value", f"{text}{dtype} and {role.value}", at.key)
        if limit < 1 or limit - 1 > DTYPES[dtype].limits[1]:
            text = f"'below' is {limit}, but {dtype} holds 0 to {DTYPES[dtype].limits[1]}"
            raise error("bad-value", text, at.span)
        return limit

    def odd(self, declared: Declared, dtype: str, scope: Mapping[str, Any]) -> tuple[int, ...]:
        """What now and then stands among such integers."""
        at = declared.site["odd"]
        if declared.spec.odd and declared.spec.below is None:
            raise error("bad-value", "'odd' is for integers that go up to a 'below'", at.key)
        found = []
        for index, each in enumerate(declared.spec.odd):
            value = evaluate_number(each, scope, at[index].span)
            least, most = DTYPES[dtype].limits
            if value != int(value) or not least <= value <= most:
                text = f"{dtype} holds whole numbers from {least} to {most}, not {value}"
                raise error("bad-value", text, at[index].span)
            found.append(int(value))
        return tuple(found)

    def overlaid(
        self, buffer: Buffer, declared: Declared, scope: Mapping[str, Any], draft: Draft | None
    ) -> Buffer:
        """The buffer over the bytes of its base; the base of a base is taken at once."""
        spec, at = declared.spec.at, declared.site["at"]
        assert spec is not None
        base = base_of(declared)
        found = self.instance(base, draft) if base is not None else None
        if found is None:
            raise unknown_base(declared)
        offset = evaluate_count(spec.offset, scope, at["offset"].span)
        nbytes = DTYPES[buffer.dtype].nbytes
        notes = [Note(f"'{found.name}' is here", found.span)]
        if buffer.role is not Role.SCRATCH:
            text = f"'{declared.name}' lies in '{found.name}': it cannot have a role of its own"
            raise error("bad-overlay", text, at.key, notes=notes)
        if found.device != buffer.device:
            text = f"'{declared.name}' is on '{buffer.device}', '{found.name}' on '{found.device}'"
            raise error("bad-overlay", text, at.key, notes=notes)
        if offset % nbytes:
            text = f"offset {offset} does not suit {buffer.dtype} elements of {nbytes} bytes"
            raise error("bad-overlay", text, at["offset"].span)
        if offset + buffer.nbytes > found.nbytes:
            text = (
                f"'{declared.name}' has {buffer.nbytes} bytes from {offset} on, "
                f"but '{found.name}' has {found.nbytes} bytes"
            )
            raise error("bad-overlay", text, at.key, notes=notes)
        if buffer.per_count or found.per_count:
            which = declared.name if buffer.per_count else found.name
            text = f"the rows of '{which}' follow the count '{self.count_name}'"
            hint = "bytes that shift with the count cannot be laid over each other"
            raise error("bad-overlay", text, at.key, notes=notes, hint=hint)
        if buffer.is_symmetric and not found.is_symmetric:
            text = f"'{declared.name}' is symmetric, but '{found.name}', in which it lies, is not"
            raise error("bad-overlay", text, declared.site["symmetric"].key, notes=notes)
        root, start = found.overlay or (found.name, 0)
        return replace(buffer, overlay=(root, start + offset))

    def make_unused(self, names: Mapping[str, Declared | None], indices: set[str]) -> None:
        """Buffers that no op names: they are checked, and those with a role exist."""
        for declared in names.values():
            if declared is None or declared.spec.each is not None or declared in self.depths:
                continue
            if self.is_made(declared):
                continue
            scope = {**dict.fromkeys(indices, 0), **declared.scope}
            probe = replace(declared, scope=scope)
            with self.faults.collecting():
                self.instance(probe, None)

    def is_made(self, declared: Declared) -> bool:
        return declared.prefix + declared.name in self.made


def on_rank(last: Round, draft: Draft | None, declared: Declared) -> str:
    """What the names of an iteration begin with on the buffer's rank, which may not be the op's."""
    if declared.rank is None or draft is None or draft.context.rank is None:
        return last.prefix
    return declared.rank.prefix + last.prefix.removeprefix(draft.context.rank.prefix)


def base_of(declared: Declared) -> Declared | None:
    """The buffer over which one lies."""
    at = declared.spec.at
    if at is None:
        return None
    name = evaluate_word(at.buffer, declared.scope, declared.site["at"]["buffer"].span)
    seen = {declared.name}
    base = declared.siblings.get(name)
    while base is not None and base.spec.at is not None:
        if base.name in seen:
            text = f"'{declared.name}' lies over itself"
            raise error("bad-overlay", text, declared.site["at"].key)
        seen.add(base.name)
        base = base.siblings.get(str(base.spec.at.buffer))
    return declared.siblings.get(name)


def unknown_base(declared: Declared) -> SpecError:
    assert declared.spec.at is not None
    name = declared.spec.at.buffer
    span = declared.site["at"]["buffer"].span
    if name in declared.siblings:
        return error("bad-overlay", f"'{name}' is left out at these values", span)
    hint = did_you_mean(name, declared.siblings)
    return error("unknown-buffer", f"unknown buffer '{name}'", span, hint=hint)


def owner_depth(declared: Declared, users: list[tuple[Draft, Use]]) -> int:
    """How many repeats enclose the one to which a scratch buffer belongs."""
    common = users[0][0].context.repeats
    for draft, _ in users:
        shared = 0
        for ours, theirs in zip(common, draft.context.repeats, strict=False):
            if ours != theirs:
                break
            shared += 1
        common = common[:shared]
    for draft, use in users:
        deeper = draft.context.rounds[len(common) :]
        if use.is_written and deeper and not declared.spec.at:
            outside = next(
                each
                for each in users
                if each[0].context.repeats[: len(common) + 1]
                != draft.context.repeats[: len(common) + 1]
            )
            raise error(
                "scratch-escapes",
                f"'{declared.name}' is scratch, which ends with each '{deeper[0].index}', but it "
                f"is written here and used outside",
                use.span,
                notes=[
                    Note("used here", outside[1].span),
                    Note("declared here", declared.site.key),
                ],
                hint="what carries over has a role, such as state",
            )
    return max(len(common), declared.depth)


def with_users(buffers: Mapping[str, Buffer], ops: Iterable[Op]) -> dict[str, Buffer]:
    """The buffers; mapped memory knows the devices that use it."""
    users: dict[str, set[str]] = {
        name: set() for name, each in buffers.items() if each.device == MAPPED
    }
    for op in ops:
        for each in op.accesses:
            if each.region.buffer in users:
                users[each.region.buffer].add(op.device)
    near = {name: tuple(sorted(devices - {HOST})) for name, devices in users.items()}
    return {**buffers, **{name: replace(buffers[name], near=each) for name, each in near.items()}}
