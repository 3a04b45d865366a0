"""Break the passes and the verifier on purpose, one line at a time: the tests must notice.

    python tests/mutants.py            all of them
    python tests/mutants.py verify     those whose file or sentence contains the word

Each mutant is a copy of the repository with one text replaced. The script prints a table and ends
with 1 if a mutant survives, or if a text to be replaced is gone (then mend the list).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUITE = ("tests/passes", "tests/test_verify.py", "tests/laws")
CALLS = ("tests/kernels/test_contract.py",)
CONTRACTS = ("tests/test_contracts_hold.py",)
PEERS = ("tests/kernels/test_peers.py", "tests/spec/test_ranks.py")
DIVIDED = ("tests/test_verify_units.py", "tests/laws/test_unit_laws.py")
DIVISION = (
    "tests/passes/test_divided.py",
    "tests/passes/test_handshakes.py",
    "tests/laws/test_division_laws.py",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    sentence: str
    old: str
    new: str
    suite: tuple[str, ...] = SUITE


INFER = "graphc/passes/infer_dependencies.py"
MEMORY = "graphc/passes/plan_memory.py"
STREAMS = "graphc/passes/assign_streams.py"
EVENTS = "graphc/passes/insert_events.py"
DIVIDE = "graphc/passes/divide.py"
AMEND = "graphc/passes/amend.py"
PROGRESS = "graphc/passes/keep_progress.py"
HANDSHAKES = "graphc/passes/find_handshakes.py"
SPLIT = "graphc/passes/split_pieces.py"
BIND = "graphc/kernels/bind.py"
CALL = "graphc/kernels/call.py"
TRACE = "graphc/verify/trace.py"
SWEEP = "graphc/verify/sweep.py"
EXAMINE = "graphc/verify/examine.py"
ACCESSES = "graphc/verify/accesses.py"
REGIONS = "graphc/verify/regions.py"
SHARED = "graphc/verify/memory.py"
VERDICT = "graphc/verify/__init__.py"
BETWEEN = "graphc/verify/units.py"

MUTANTS = (
    Mutant(
        INFER,
        "forgets write-after-read",
        "| WAR * bool(before & READS and after & WRITES)",
        "| WAR * 0",
    ),
    Mutant(
        INFER,
        "forgets to note a second reader",
        "top.members.append(op)",
        "pass",
    ),
    Mutant(
        INFER,
        "takes the cell behind the region, too",
        "first, last = self.cut(start), self.cut(stop)",
        "first, last = self.cut(start), self.cut(stop + 1)",
    ),
    Mutant(
        INFER,
        "loses the accesses of a cell that is cut",
        "return replace(self, members=list(self.members))",
        "return replace(self, members=[])",
    ),
    Mutant(
        INFER,
        "forgets what lies below a layer",
        "key, kinds, [op], top.members, top.kinds, top.is_written or writes",
        "key, kinds, [op], [], 0, top.is_written or writes",
    ),
    Mutant(
        INFER,
        "lets scatters of all steps commute",
        'return ("scatter", (op.kin, access.argument, access.region.buffer)), WRITES',
        'return ("scatter", 0), WRITES',
    ),
    Mutant(
        INFER,
        "lets sums of floats commute",
        "case Mode.ACCUMULATE if is_exact:",
        "case Mode.ACCUMULATE:",
    ),
    Mutant(
        INFER,
        "lets sums of all kernels commute",
        "return template, access.argument, sorted_items(options), sorted_items(scalars)",
        "return access.argument",
    ),
    Mutant(
        INFER,
        "lets sums commute whatever the options",
        "return template, access.argument, sorted_items(options), sorted_items(scalars)",
        "return template, access.argument, sorted_items(scalars)",
    ),
    Mutant(
        INFER,
        "lays an overlay on the start of its base",
        "places[name] = Place(cells, 0 if buffer.per_count else offset)",
        "places[name] = Place(cells, 0)",
    ),
    Mutant(
        INFER,
        "sees no crossing of counted overlays",
        "if meet and (one.per_count or two.per_count):",
        "if meet and False:",
    ),
    Mutant(INFER, "ignores `after`", "collect_after(program, orders)", "pass"),
    Mutant(
        INFER,
        "forgets who waits for a join",
        "before[user][node] = AFTER",
        "pass",
    ),
    Mutant(
        INFER,
        "never makes a join",
        "if len(users) * len(members) > len(users) + len(members):",
        "if False:",
    ),
    Mutant(
        INFER,
        "does not see that bytes were never written",
        "is_written &= top.is_written",
        "pass",
    ),
    Mutant(
        MEMORY,
        "shares while an op on the old buffer may still run",
        "return all(knows(new.before_all, op) for op in later)",
        "return True",
    ),
    Mutant(
        MEMORY,
        "shares what others overlay",
        "if life.buffer in overlaid or not life.writes:",
        "if False:",
    ),
    Mutant(
        MEMORY,
        "does not let a row grow",
        "rows[number].nbytes = max(rows[number].nbytes, buffer.nbytes)",
        "pass",
    ),
    Mutant(
        MEMORY,
        "never shares",
        "        if fits(rows[number].lives[-1], life):",
        "        if False:",
    ),
    Mutant(
        MEMORY,
        "shares tightly without the orders for it",
        "for node in latest(needed(link, index) & ~known, closure):",
        "for node in ():",
    ),
    Mutant(
        STREAMS,
        "goes behind any step's stream, not only a free one",
        "free = [each for each in queues if before >> each.tail & 1]",
        "free = queues",
    ),
    Mutant(
        STREAMS,
        "does not prefer a predecessor's stream",
        "return next((each for each in free if each.tail in steps.before[step]), free[0])",
        "return free[0]",
    ),
    Mutant(
        STREAMS,
        "gives every lane a stream",
        "if are_ordered(sorted(group), together, before, after):",
        "if False:",
    ),
    Mutant(
        STREAMS,
        "lays every lane like compute",
        "if are_ordered(sorted(group), together, before, after):",
        "if True:",
    ),
    Mutant(
        STREAMS,
        "issues breadth first",
        "keys.append((block, op.piece.stop.numerator / op.piece.stop.denominator))",
        "keys.append((block, 0.0))",
    ),
    Mutant(
        STREAMS,
        "issues late what is not cut, though a first piece needs it",
        "keys[index] = min([keys[index], *(keys[user] for user in after[index])])",
        "pass",
    ),
    Mutant(
        EVENTS,
        "skips the earliest predecessor",
        "for bit in sorted(wanted, reverse=True):",
        "for bit in sorted(wanted, reverse=True)[: max(1, len(wanted) - 1)]:",
    ),
    Mutant(
        EVENTS,
        "never drops a wait that another implies",
        "known = joined(known, self.at[bit])",
        "known = grown(known, bit)",
    ),
    Mutant(
        EVENTS,
        "believes that a stream knows what runs elsewhere",
        "by_stream[stream] = grown(known, bit)",
        "by_stream[stream] = grown(grown(known, bit), bit - 1)",
    ),
    Mutant(
        EVENTS,
        "forgets to fork a stream",
        "own.append(BEGIN)",
        "pass",
    ),
    Mutant(
        EVENTS,
        "forgets to join a stream",
        "joins, _ = knowledge.missing(list(tails.values()), by_stream[part.origin])",
        "joins, _ = knowledge.missing(list(tails.values())[1:], by_stream[part.origin])",
    ),
    Mutant(
        EVENTS,
        "drops an edge that nothing implies",
        "follows = joined(follows, closure[node])",
        "follows = grown(joined(follows, closure[node]), max(node - 1, 0))",
    ),
    Mutant(
        SPLIT,
        "lets pieces overlap",
        "return pairwise([at(pieces[0].start), *(at(piece.stop) for piece in pieces)])",
        "return [(0, at(piece.stop)) for piece in pieces]",
    ),
    Mutant(
        TRACE,
        "finds everything ordered",
        "return after.clock.get(before.chain, -1) >= before.position",
        "return True",
    ),
    Mutant(
        TRACE,
        "learns from a wait what came before it only on the waiting stream",
        "seen[stream] = {**known, **events[event]}",
        "seen[stream] = known",
    ),
    Mutant(
        TRACE,
        "takes the first record of an event, not the latest",
        "                    events[event] = known",
        "                    events.setdefault(event, known)",
    ),
    Mutant(
        TRACE,
        "lets the host know everything",
        "before=self.before(op, {**known, **self.host} if self.host else known),",
        "before=self.before(op, {**known, **dict.fromkeys(range(len(self.trace.actions)))}),",
    ),
    Mutant(
        SWEEP,
        "forgets the readers since the last write",
        "below, latest, earlier = front.latest, [touch], front.latest",
        "below, latest, earlier = [each for each in front.latest if each.key != 'read'], "
        "[touch], front.latest",
    ),
    Mutant(
        SWEEP,
        "checks a reader that joins others against nothing",
        "below, latest, earlier = front.earlier, front.latest, front.earlier",
        "below, latest, earlier = [], front.latest, front.earlier",
    ),
    Mutant(
        SWEEP,
        "copies the cell behind an access too late",
        "fresh.append(Front(stop, front.stop, list(front.latest), front.earlier))",
        "fresh.append(Front(stop, front.stop, front.latest, front.earlier))",
    ),
    Mutant(
        ACCESSES,
        "lets scatters of all steps commute",
        "return action.op.kin, access.argument, action.replay",
        "return access.argument, action.replay",
    ),
    Mutant(
        ACCESSES,
        "lets sums of all kernels commute",
        'return "accumulate", access.argument, *operation(action.op)',
        'return "accumulate", access.argument',
    ),
    Mutant(
        ACCESSES,
        "lets sums by all arguments commute",
        'return "accumulate", access.argument, *operation(action.op)',
        'return "accumulate", *operation(action.op)',
    ),
    Mutant(
        VERDICT,
        "believes the regions of a plan",
        "found += region_faults(each.program)",
        "pass",
    ),
    Mutant(
        REGIONS,
        "region: takes a piece's rows for all pieces",
        "return share and (factor * share[0], factor * share[1])",
        "return share and (0, factor * share[1])",
    ),
    Mutant(
        REGIONS,
        "region: a piece's own row is a place in rows that follow the count",
        "                if buffer.per_count:\n"
        "                    return 0, buffer.nominal_rows(self.nominal)\n"
        "                return op.piece.index",
        "                return op.piece.index",
    ),
    Mutant(
        REGIONS,
        "region: blocks end with the piece",
        "high = [each for each in rows.blocks if each >= piece.stop]",
        "high = [piece.stop]",
    ),
    Mutant(
        REGIONS,
        "region: a slot is large enough for anything",
        "if unit * -(-share.numerator // share.denominator) > room:",
        "if False:",
    ),
    Mutant(
        REGIONS,
        "region: bounds need not be rows at the nominal extent",
        "return self.nominal % bound.denominator == 0",
        "return True",
    ),
    Mutant(
        REGIONS,
        "region: a copy goes by whatever is said",
        "if isinstance(op.work, Copy | Fill) and rows.kind is not RowsKind.RING:",
        "if False:",
    ),
    Mutant(
        CALL,
        "call: overlays are buffers of their own",
        "return buffer.overlay or (buffer.name, 0)",
        "return buffer.name, 0",
        CALLS,
    ),
    Mutant(
        BIND,
        "call: those that are alike but for where they meet are one",
        "return arguments, len(options), tuple(values), meetings(given)",
        "return arguments, len(options), tuple(values)",
        CALLS,
    ),
    Mutant(
        BIND,
        "call: an axis of any length",
        "if max(parts) > MOST_ROWS:",
        "if False:",
        CALLS,
    ),
    Mutant(
        EXAMINE,
        "does not look at shared memory",
        "    sweep_memory(sweep, touches)",
        "    pass",
    ),
    Mutant(
        SHARED,
        "compares counted overlays by their bytes",
        "if ours.counted_nbytes or theirs.counted_nbytes:",
        "if False:",
    ),
    Mutant(
        EXAMINE,
        "never unrolls a second replay",
        "        launches *= 2\n        trace = trace_launches(launches, order, dropped)",
        "pass",
    ),
    Mutant(
        TRACE,
        "does not see a stream that never joins",
        "            if not self.is_before(number, end):\n                yield number, end",
        "            pass",
    ),
    Mutant(
        TRACE,
        "units: an await tells nothing",
        "if type(op.work) is not Await:",
        "if True:",
        DIVIDED,
    ),
    Mutant(
        TRACE,
        "units: a handshake is of this launch",
        "signals = self.earlier if each.is_handshake else self.sent",
        "signals = self.sent",
        DIVIDED,
    ),
    Mutant(
        TRACE,
        "units: a handshake is of any launch, this one's first",
        "signals = self.earlier if each.is_handshake else self.sent",
        "signals = {**self.earlier, **self.sent}",
        DIVIDED,
    ),
    Mutant(
        TRACE,
        "units: free ones have one caller",
        "        if is_free(schedule):\n            groups",
        "        if False:\n            groups",
        DIVIDED,
    ),
    Mutant(
        TRACE,
        "units: launches of a unit are in no order",
        "            if unit in self.callers:",
        "            if False:",
        DIVIDED,
    ),
    Mutant(
        TRACE,
        "units: what runs before the beginning is not seen",
        "elif not self.is_before(counted.get(unit, number), number):",
        "elif False:",
        DIVIDED,
    ),
    Mutant(
        TRACE,
        "units: a unit ends whenever",
        "end = ends[unit if unit in ends else ALL_UNITS]",
        "end = max(ends.values())",
        DIVIDED,
    ),
    Mutant(
        EXAMINE,
        "units: entries are looked at by themselves",
        "yield from product(schedules, repeat=2)",
        "yield from ((each, each) for each in schedules)",
        DIVIDED,
    ),
    Mutant(
        EXAMINE,
        "units: one launch is enough",
        "if any(is_free(each) for each in schedules):",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        EXAMINE,
        "units: callers beside units are not looked at",
        "with_caller=len(launches) > 1",
        "with_caller=False",
        DIVIDED,
    ),
    Mutant(
        ACCESSES,
        "units: scatters of two launches commute",
        "return action.op.kin, access.argument, action.replay",
        "return action.op.kin, access.argument",
        DIVIDED,
    ),
    Mutant(
        ACCESSES,
        "units: scatters of two ranks do not commute",
        "return action.op.kin, access.argument, action.replay",
        "return action.op.step, access.argument, action.replay",
        DIVIDED,
    ),
    Mutant(
        ACCESSES,
        "units: a caller beside a unit has the memory of all",
        "if devices is None or buffer.device in devices:",
        "if True:",
        DIVIDED,
    ),
    Mutant(
        ACCESSES,
        "units: a caller beside a unit has state",
        "roles = WRITTEN_BESIDE if is_before else READ_BESIDE",
        "pass",
        DIVIDED,
    ),
    Mutant(
        ACCESSES,
        "units: extents of entries are not brought together",
        "self.growth = nominal // schedule.program.nominal",
        "self.growth = 1",
        DIVIDED,
    ),
    Mutant(
        ACCESSES,
        "units: a buffer is one in all entries, wherever it lies",
        "        slot.allocation,\n        slot.offset,\n        slot.offset + buffer.nbytes,",
        "        name,\n        0,\n        buffer.nbytes,",
        DIVIDED,
    ),
    Mutant(
        SHARED,
        "units: a buffer is in use from its first launch to its last",
        "by_replay.setdefault(trace.actions[touch.action].replay, [])",
        "by_replay.setdefault(0, [])",
        DIVIDED,
    ),
    Mutant(
        REGIONS,
        "region: a rank's row is any row",
        "return (rows.factor, rows.factor + 1) if is_there else None",
        "return 0, buffer.rows",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: a signal is heard by whom it is not sent to",
        "if unit not in known.work.to:",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: a signal may come later",
        "if known.at > at:",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: a unit may await its own signal",
        "    if known.unit == unit:",
        "    if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: whose signal it is does not matter",
        "    if known.unit != awaited.unit:",
        "    if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: another entry may signal in this launch",
        "    if awaited.entry != entry:",
        "    if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: events lead anywhere",
        "if recorded.get(each.event, unit) != unit:",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: edges lead anywhere",
        "if unit_of.get(one) != unit_of.get(two):",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: devices are shared",
        "            if device in owners:\n",
        "            if False:\n",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: nothing needs to count launches",
        "        if part.name not in begins:",
        "        if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: a unit may begin late",
        "if unit not in begun and each.op != begins[unit]:",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: streams of no unit",
        "        if stream.device not in owners:",
        "        if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: units begin on any stream",
        'if owners.get(device_of.get(unit.origin, "")) != unit.name:',
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: allocations of one name are several",
        "if allocations.setdefault(each.name, each) != each:",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: what outlives a launch may be another buffer",
        "if kept.setdefault(name, facts) != facts:",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: flags are put up twice",
        "if schedule.sync is Signalling.MEMOPS and is_free(schedule):",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        BETWEEN,
        "units: entries are launched in two ways",
        "if is_free(each) != is_free(first):",
        "if False:",
        DIVIDED,
    ),
    Mutant(
        "templates/moe_combine.cu.j2",
        "contract: what is updated is written",
        "shape: [tokens, hidden], access: update, rows: split}",
        "shape: [tokens, hidden], access: write, rows: split}",
        CONTRACTS,
    ),
    Mutant(
        "templates/group_rows.cu.j2",
        "contract: what is written in part is written whole",
        "access: write_some, rows: split}",
        "access: write, rows: split}",
        CONTRACTS,
    ),
    Mutant(
        "templates/grouped_down.cu.j2",
        "contract: rows of other pieces are not declared",
        "h:       {dtype: [f16, bf16], shape: [tokens, top_k, ff], access: read, rows: split",
        "h:       {dtype: [f16, bf16], shape: [tokens, top_k, ff], access: read, rows: piece",
        CONTRACTS,
    ),
    Mutant(
        "templates/residual_add.cu.j2",
        "contract: what is updated is only read",
        'x: {dtype: f32, shape: [n, "*m"], access: update, rows: split}',
        'x: {dtype: f32, shape: [n, "*m"], access: read, rows: split}',
        CONTRACTS,
    ),
    Mutant(
        DIVIDE,
        "forgets what the streams order",
        "tails[stream] = node",
        "pass",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "drops a signal of several ops if one of them is known",
        "if not all(knows(known, other) for other in source):",
        "if not any(knows(known, other) for other in source):",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "does not know what a signal tells",
        "known = joined(known, self.after(source))\n        if any",
        "pass\n        if any",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "keeps signals that others make needless together",
        "kept = self.needed(kept, base)",
        "pass",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "lets the caller overwrite what another unit reads",
        "self.guests[unit].append(node)",
        "pass",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "lets a unit read what another's caller has yet to write",
        "self.edges[node].append(unit)",
        "pass",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "takes the caller's reading for writing",
        "other.role is Role.OUTPUT and not access.mode.is_write",
        "False",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "signals before all is done that it speaks for",
        "self.behind.setdefault(source[-1], []).append(op)",
        "self.behind.setdefault(source[0], []).append(op)",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "gives every op of a graph of nodes an await of its own",
        "alone = node if whole.by_streams or node >= len(whole.ops) else 0",
        "alone = node",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "lets ops run before their unit has begun",
        "(whole.ops[unit].name, name, AFTER)\n            for name",
        "(whole.ops[unit].name, name, AFTER)\n            for name in ()\n            for name",
        DIVISION,
    ),
    Mutant(
        DIVIDE,
        "forgets what a join orders in its unit",
        "                    self.add_join(join, unit, members, here)",
        "                    pass",
        DIVISION,
    ),
    Mutant(
        AMEND,
        "lays all signals on one side stream",
        "if all(knows(known, other) for other in last):",
        "if True:",
        DIVISION,
    ),
    Mutant(
        PROGRESS,
        "lets a unit await what it has yet to do something for",
        "found.append((missing, node))",
        "pass",
        DIVISION,
    ),
    Mutant(
        PROGRESS,
        "takes a way through another unit for one within",
        "if units[other] == unit:",
        "if True:",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "has all units run side by side",
        "if not one.down[before] & two.up[after]:",
        "if True:",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "does not see which units an op reaches",
        "self.down[other] |= self.down[node]",
        "pass",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "keeps pairs that others imply",
        "if not no_later[after] & (behind | own[before] & ~bits[after])",
        "if True",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "drops pairs that only themselves imply",
        "own[before] & ~bits[after]",
        "own[before]",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "forgets what lies below reads at the end",
        "if len(old.last) > 1:",
        "if False:",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "forgets what comes after reads at the beginning",
        "if len(new.first) > 1:",
        "if False:",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "lets scatters of two launches commute",
        'ACROSS_LAUNCHES = ("read", "accumulate")',
        'ACROSS_LAUNCHES = ("read", "accumulate", "scatter")',
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "lets sums of two launches conflict",
        'ACROSS_LAUNCHES = ("read", "accumulate")',
        'ACROSS_LAUNCHES = ("read",)',
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "sees no crossing of counted overlays",
        "if one != two and meet and (here[2] or there[2]):",
        "if False:",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "compares entries by bytes of other nominal extents",
        "self.scale = nominal // program.nominal",
        "self.scale = 1",
        DIVISION,
    ),
    Mutant(
        HANDSHAKES,
        "adds a handshake to an await that serves others",
        "and len(edges.succ[name]) == 1",
        "and len(edges.succ[name]) >= 1",
        DIVISION,
    ),
    Mutant(
        MEMORY,
        "lets units share an arena",
        "if buffer.is_symmetric or unit_of.get(buffer.device) != unit_of[op.device]:",
        "if buffer.is_symmetric:",
        DIVISION,
    ),
    Mutant(
        EVENTS,
        "drops edges of a unit for a way through another",
        "return tuple(edge for part in names for edge in reduced(part, graph.edges.pred))",
        "return tuple(reduced([name for part in names for name in part], graph.edges.pred))",
        DIVISION,
    ),
    Mutant(
        "graphc/reference/moe.py",
        "a reference that writes a row too many",
        "    out[lo:hi] = result",
        "    out[lo : hi + 1] = result[:1]",
        CONTRACTS,
    ),
    Mutant(
        INFER,
        "ranks: those of one op scatter against each other",
        'return ("scatter", (op.kin, access.argument, access.region.buffer)), WRITES',
        'return ("scatter", (op.step, access.argument, access.region.buffer)), WRITES',
    ),
    Mutant(
        INFER,
        "ranks: those of one op may conflict",
        "if ops[other].kin == op.kin:",
        "if ops[other].step == op.step:",
        PEERS,
    ),
    Mutant(
        BIND,
        "ranks: every row is the first",
        "return Rows(RowsKind.ROW, row)",
        "return Rows(RowsKind.ROW, 0)",
        PEERS,
    ),
    Mutant(
        BIND,
        "ranks: calls over more of them are alike",
        "            len(each.peers),",
        "            0,",
        PEERS,
    ),
    Mutant(
        CALL,
        "ranks: the memory of the first is that of all",
        "for each in argument.buffers):",
        "for each in argument.buffers[:1]):",
        PEERS,
    ),
    Mutant(
        CALL,
        "ranks: the first is given apart, so all are",
        "        for buffer in argument.buffers:\n            before",
        "        for buffer in argument.buffers[:1]:\n            before",
        PEERS,
    ),
    Mutant(
        "graphc/passes/choose_routes.py",
        "ranks: peers are written without asking",
        "asked.add(Requirement(Need.PEER_WRITE, device, other))",
        "pass",
        PEERS,
    ),
    Mutant(
        "graphc/spec/build.py",
        "ranks: one after the other, not op by op",
        "drafts = sorted(drafts, key=lambda each: each.place)",
        "drafts = list(drafts)",
        PEERS,
    ),
    Mutant(
        "graphc/spec/buffers.py",
        "ranks: a buffer of another rank has this one's name",
        "return declared.rank.prefix + last.prefix.removeprefix(draft.context.rank.prefix)",
        "return last.prefix",
        PEERS,
    ),
)


def main(words: list[str]) -> int:
    chosen = [
        each
        for each in MUTANTS
        if not words or any(word in f"{each.file} {each.sentence}" for word in words)
    ]
    survivors = 0
    for mutant in chosen:
        start = time.perf_counter()
        verdict = judge(mutant)
        survivors += verdict.startswith("SURVIVED") or verdict.startswith("gone")
        name = Path(mutant.file).stem
        took = time.perf_counter() - start
        print(f"{name:20} {mutant.sentence:62} {verdict}  {took:.0f} s", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants were caught")
    return 1 if survivors else 0


def judge(mutant: Mutant) -> str:
    """Run the tests on a copy with the one change; name the test that caught it."""
    source = (ROOT / mutant.file).read_text()
    if source.count(mutant.old) != 1:
        return f"gone: the text is there {source.count(mutant.old)} times"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("graphc", "tests", "templates", "specs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "-k", "not thousand", *mutant.suite],
            cwd=copy,
            env={**os.environ, "HYPOTHESIS_PROFILE": "mutants"},
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode == 0:
        return "SURVIVED"
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"caught by {failed[0].split(' - ')[0].rpartition('::')[2] if failed else '?'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
