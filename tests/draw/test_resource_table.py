"""What a schedule is said to use."""

from __future__ import annotations

from peer_example import peer_schedule

from graphc.draw.resources import resource_table, resources
from graphc.ir import Record, Wait


def test_what_is_counted_is_what_is_issued() -> None:
    schedule = peer_schedule(3)
    used = resources(schedule)
    assert used.waits == sum(isinstance(each, Wait) for each in schedule.instructions)
    assert used.records == sum(isinstance(each, Record) for each in schedule.instructions)
    assert used.ops == len(schedule.program.ops) == sum(used.ops_by_kind.values())
    assert used.streams == 7
    assert set(used.nbytes) == {"primary", "peer", "host"}
    assert sum(used.nbytes.values()) == sum(each.nbytes for each in schedule.memory.allocations)


def test_one_piece_needs_fewer_ops_and_waits_and_no_fewer_bytes() -> None:
    many, one = resources(peer_schedule(8)), resources(peer_schedule(1))
    assert one.ops < many.ops
    assert one.waits < many.waits
    assert one.nbytes == many.nbytes


def test_the_table_sets_both_side_by_side() -> None:
    table = resource_table(
        {"this": resources(peer_schedule(2)), "one piece": resources(peer_schedule(1))}
    ).splitlines()
    assert table[0].split() == ["this", "one", "piece"]
    assert table[1].split() == ["ops", "24", "15"]
    assert any(line.startswith("bytes: host, mapped") for line in table)
