"""Sets that take their beginnings together say what plain bit sets say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphc.passes.assign_streams import are_ordered, followers
from graphc.passes.closure import ancestors, as_set, histories, knows, shared

MOST = 14


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """For each node some of the nodes in front of it."""
    count = draw(st.integers(1, MOST))
    return [
        draw(st.lists(st.integers(0, node - 1), unique=True, max_size=3)) if node else []
        for node in range(count)
    ]


nodes = st.sets(st.integers(0, MOST - 1))


@given(graphs())
def test_histories_are_the_ancestors_and_the_node(before: list[list[int]]) -> None:
    plain = ancestors(before)
    for node, history in enumerate(histories(before)):
        known = [other for other in range(len(before) + 2) if knows(history, other)]
        assert as_set(known) == plain[node] | 1 << node


@given(graphs(), nodes)
def test_what_is_shared_is_in_all(before: list[list[int]], some: set[int]) -> None:
    found = [each for node, each in enumerate(histories(before)) if node in some or not node]
    for node in range(len(before) + 2):
        assert knows(shared(found), node) == all(knows(each, node) for each in found)


@given(graphs(), nodes, nodes)
def test_a_group_is_ordered_if_each_of_it_is_with_each_other(
    before: list[list[int]], some: set[int], others: set[int]
) -> None:
    count = len(before)
    group = sorted(each for each in some if each < count) or [0]
    rest = {each for each in others if each < count}
    plain = ancestors(before)
    expected = all(
        one == two or plain[max(one, two)] >> min(one, two) & 1
        for one in group
        for two in rest | {*group}
    )
    assert are_ordered(group, rest, before, followers(before)) == expected
