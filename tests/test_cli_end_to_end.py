"""The command line on a real spec: compiled, proven, and run on the reference backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphc.cli.build import PASSES
from graphc.cli.guard import guarded

SPEC = """\
graphc: 1
name: echo
doc: Rows go to the peer and come back.
params:
  tokens: {default: 40, min: 0, count: true}
  hidden: {default: 16}
  route: {default: auto, choices: [auto, host, host_push, p2p]}
  wire: {default: f16, choices: [f16, f32]}
  pieces: {default: 4, min: 1}
devices: [primary, peer]
buffers:
  x: {device: primary, dtype: f32, shape: [tokens, hidden], role: input}
  there: {device: peer, dtype: f32, shape: [tokens, hidden]}
  y: {device: primary, dtype: f32, shape: [tokens, hidden], role: output}
ops:
  - {name: out, transfer: {source: x, target: there, wire: =wire}}
  - {name: back, transfer: {source: there, target: y, wire: f32}}
schedule:
  out: {route: =route, pieces: pieces}
  back: {route: =route, pieces: pieces}
"""
ROOT = Path(__file__).parent.parent
LAYER = str(ROOT / "specs" / "moe_peer.yaml")
REFERENCE = ["--backend", "reference"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "echo.yaml"
    path.write_text(SPEC)
    return str(path)


def test_check_proves_every_route_of_auto_in_one_line(spec: str, capsys: Capture) -> None:
    assert guarded(["check", spec]) == 0
    out = capsys.readouterr().out
    assert out.startswith("echo: no race in ")
    assert out.count("\n") == 1


def test_check_counts_as_json(spec: str, capsys: Capture) -> None:
    assert guarded(["check", spec, "--set", "route=p2p", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert len(found["schedules"]) == 1
    assert found["schedules"][0]["pairs"] > 0


@pytest.mark.parametrize(
    ("values", "code"),
    [("piecs=3", "unknown-param"), ("pieces=0", "bad-value"), ("route=carrier", "bad-value")],
)
def test_a_wrong_value_is_the_authors_mistake(
    spec: str, values: str, code: str, capsys: Capture
) -> None:
    assert guarded(["check", spec, "--set", values, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


@pytest.mark.parametrize("other", ["pieces=1", "pieces=64", "route=host,pieces=3"])
def test_another_schedule_leaves_the_same_bits(spec: str, other: str, capsys: Capture) -> None:
    words = ["run", spec, *REFERENCE, "--set", "route=p2p", "--compare", other, "--json"]
    assert guarded(words) == 0
    (compared,) = json.loads(capsys.readouterr().out)["compare"]
    assert compared["equal"]


def test_another_wire_leaves_other_bits(spec: str, capsys: Capture) -> None:
    words = ["run", spec, *REFERENCE, "--set", "route=p2p", "--compare", "wire=f32", "--json"]
    assert guarded(words) == 1
    (compared,) = json.loads(capsys.readouterr().out)["compare"]
    assert compared["differences"][0]["different"] > 0


def test_shapes_cannot_be_compared(spec: str, capsys: Capture) -> None:
    words = ["run", spec, *REFERENCE, "--set", "route=p2p", "--compare", "tokens=8"]
    assert guarded(words) == 2
    assert "not the shapes" in capsys.readouterr().err


def test_a_plan_that_was_written_runs_to_the_same_bits(spec: str, capsys: Capture) -> None:
    values = ["--set", "route=p2p"]
    assert guarded(["compile", spec, *values, "--no-cubins", "-o", "echo.graphc"]) == 0
    capsys.readouterr()
    digests = []
    for words in ([spec, *values], ["echo.graphc"]):
        assert guarded(["run", *words, *REFERENCE, "--count", "7", "--json"]) == 0
        digests.append(json.loads(capsys.readouterr().out)["outputs"]["y"]["digest"])
    assert digests[0] == digests[1]


def test_a_spec_with_mistakes_writes_no_plan(spec: str) -> None:
    Path(spec).write_text(SPEC.replace("target: y", "target: z"))
    assert guarded(["compile", spec, "-o", "echo.graphc"]) == 1
    assert sorted(each.name for each in Path().iterdir()) == ["echo.yaml"]


@pytest.mark.parametrize("name", PASSES)
def test_the_stage_after_each_pass_can_be_printed(spec: str, name: str, capsys: Capture) -> None:
    words = ["compile", spec, "--no-cubins", "--set", "route=host", "--dump-after", name]
    assert guarded(words) == 0
    out = capsys.readouterr().out
    assert out.startswith(("program echo", "schedule echo"))
    assert "0x" not in out


def test_one_piece_asks_for_less(spec: str, capsys: Capture) -> None:
    words = ["show", spec, "--set", "route=host", "--resources", "--json"]
    assert guarded(words) == 0
    used = json.loads(capsys.readouterr().out)["variants"][0]["resources"]
    assert used["one_piece"]["ops"] < used["this"]["ops"]
    assert used["one_piece"]["waits"] < used["this"]["waits"]


def test_show_draws_what_it_was_asked_for(spec: str, tmp_path: Path) -> None:
    assert guarded(["show", spec, "--set", "route=p2p", "--svg", "echo.svg"]) == 0
    assert "echo: route p2p" in (tmp_path / "echo.svg").read_text()


def test_the_peer_layer_in_three_pieces_leaves_the_bits_of_one(capsys: Capture) -> None:
    words = ["run", LAYER, "--preset", "small", "--backend", "reference", "--set", "route=p2p"]
    words += ["--set", "pieces=3", "--compare", "pieces=1", "--json"]
    assert guarded(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["outputs"]["residual"]["shape"]


def test_what_takes_long_is_said_and_what_does_not_fit_is_refused(
    spec: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", LAYER, *REFERENCE, "--set", "layers=1"]
    small = [*words, "--preset", "small"]
    assert guarded(small) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("graphc.cli.weight.MOST_BYTES", 1000)
    assert guarded(small) == 0
    assert "multiply-adds, which may last\n" in capsys.readouterr().err
    monkeypatch.setattr("graphc.backends.hostmemory.available_memory", lambda: 10**6)
    assert guarded(words) == 3
    err = capsys.readouterr().err
    assert "bytes of host memory, and 1000000 are available" in err
    assert "hint: --preset small is soon done" in err


def test_costs_are_those_of_the_contracts(spec: str) -> None:
    from graphc import api
    from graphc.cli.request import request
    from graphc.cli.weight import bytes_of, multiply_adds_of

    def weight(tokens: int) -> tuple[float, int]:
        plan = api.compile("moe_peer", preset="small", cubins=False, tokens=tokens)
        schedule = plan.variants[0].schedule
        return multiply_adds_of(request(Path(LAYER)), schedule), bytes_of(schedule)

    (few, small), (many, large) = weight(32), weight(320)
    assert few > 32 * 64 * 16  # the router alone
    assert 5 * few < many < 15 * few
    assert small < large


def test_an_svg_is_not_written_over_a_folder(spec: str, capsys: Capture) -> None:
    assert guarded(["show", spec, "--svg", "."]) == 1
    assert "error[cannot-write]: cannot write '.': it is a folder" in capsys.readouterr().err


def test_a_count_below_zero_is_one_mistake_at_the_value(spec: str, capsys: Capture) -> None:
    for word in (LAYER, spec):
        assert guarded(["check", word, "--set", "tokens=-1", "--json"]) == 1
        (found,) = json.loads(capsys.readouterr().out)["error"]["diagnostics"]
        assert found["file"] == "--set tokens=-1"
        assert found["message"] == "'tokens' is -1, but must be at least 0"
    Path("own.yaml").write_text(SPEC.replace("default: 40, min: 0", "default: 40"))
    assert guarded(["check", "own.yaml", "--set", "tokens=-1", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["error"]["diagnostics"]
    assert found["file"] == "--set tokens=-1"
    assert found["message"].endswith("it is the count")


def test_what_a_terminal_would_obey_is_written_out(spec: str, capsys: Capture) -> None:
    Path("bell.yaml").write_text(SPEC.replace("name: echo", 'name: "e\\e[31mcho"', 1))
    assert guarded(["check", "bell.yaml"]) in (0, 1)
    assert guarded(["check", "no\x1b[31m\u202efile"]) == 1
    found = capsys.readouterr()
    assert "\x1b" not in found.out + found.err
    assert "no\\x1b[31m\\u202efile" in found.err
