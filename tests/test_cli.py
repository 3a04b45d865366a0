"""The command line, as its users meet it: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graphc.cli.guard import guarded
from graphc.cli.request import assignment, value_of
from graphc.cli.run import values_of
from graphc.text.diagnostics import CompilerBug, CudaError, Span, UsageError, error

SPEC = "specs/moe_peer.yaml"
ROOT = Path(__file__).parent.parent


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text("graphc: 1\nname: tiny\n")
    return path


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """In place of ``graphc.api``: each test says what ``check`` does."""
    import graphc

    stub = ModuleType("graphc.api")
    monkeypatch.setitem(sys.modules, "graphc.api", stub)
    monkeypatch.setattr(graphc, "api", stub, raising=False)
    return stub


def raising(problem: BaseException) -> Any:
    def check(path: Path, **options: object) -> None:
        raise problem

    return check


FAULT = error("bad-value", "found 0, expected more", Span("spec.yaml", 2, 7, 4), hint="try 1")


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (FAULT, 1),
        (UsageError("count 9 is outside 0 to 8"), 2),
        (CudaError("cuMemAlloc", "OUT_OF_MEMORY", "no memory left"), 3),
        (CompilerBug("verify", "a race"), 70),
        (ValueError("oh"), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda each: type(each).__name__,
)
def test_each_kind_of_error_has_its_code_and_one_message(
    problem: BaseException,
    code: int,
    spec: Path,
    api: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api.check = raising(problem)  # type: ignore[attr-defined]
    assert guarded(["check", str(spec)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error[") == 1
    assert "Traceback" not in err


def test_with_json_the_error_is_one_object_and_the_code_is_the_same(
    spec: Path, api: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    api.check = raising(FAULT)  # type: ignore[attr-defined]
    assert guarded(["check", str(spec), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["error"]
    assert found["code"] == "bad-value"
    assert found["message"] == "found 0, expected more"
    assert (found["file"], found["line"], found["column"]) == ("spec.yaml", 2, 7)
    assert found["hint"] == "try 1"
    assert found["exit_code"] == 1
    assert len(found["diagnostics"]) == 1


def test_a_fault_of_ours_says_where_its_traceback_is(
    spec: Path,
    api: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api.check = raising(ZeroDivisionError("no"))  # type: ignore[attr-defined]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("GRAPHC_TRACEBACK", raising=False)
    assert guarded(["check", str(spec)]) == 70
    (written,) = tmp_path.glob("graphc-traceback-*.txt")
    assert str(written) in capsys.readouterr().err
    assert "ZeroDivisionError" in written.read_text()
    monkeypatch.setenv("GRAPHC_TRACEBACK", "1")
    assert guarded(["check", str(spec)]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["frobnicate"], "No such command"),
        (["check"], "Missing argument"),
        (["check", "--bad"], "No such option"),
        (["check", SPEC, "--set", "pieces"], "expected name=value"),
        (["check", SPEC, "--set", "preset=small"], "option of the command"),
        (["run", SPEC, "--repeats", "0"], "--repeats"),
        (["show", SPEC, "--stage", "soup"], "--stage"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_what_is_wrong(
    words: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    assert guarded(words) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "compile", "show", "run"])
def test_a_missing_file_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded([command, "nowhere.yaml"]) == 1
    assert "error[missing-file]: cannot read 'nowhere.yaml'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "check", "compile", "show", "run", "doctor"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded([*([command] if command else []), "--help"]) == 0
    out = capsys.readouterr().out
    assert f"graphc {command}".rstrip() in out
    assert "Examples:" in out or "Start here:" in out


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'networkx', 'pydantic', 'rich', 'yaml', 'jinja2'} & set(sys.modules)"
    script = (
        "import sys\nfrom graphc.cli.guard import guarded\n"
        f"assert guarded(['--help']) == 0\nassert not {heavy}, {heavy}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=ROOT)


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m graphc.cli run --help | head -c 1"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.stderr == ""


def test_doctor_names_what_is_missing_and_what_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphc.gpu import probe

    monkeypatch.setattr(
        probe, "doctor_facts", lambda: probe.DoctorFacts(nvrtc="13.0", missing=("no driver",))
    )
    assert guarded(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "no driver" in out
    assert "reference backend" in out
    assert guarded(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["can"]["run_reference"]
    assert not found["can"]["run_cuda"]


def test_doctor_shows_each_direction_of_each_pair(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphc.gpu import probe
    from graphc.gpu.protocol import DeviceFacts

    gpus = tuple(
        DeviceFacts(i, "H200", 90, 132, 232_448, 150 << 30, "0000:17:00.0") for i in (0, 1)
    )
    peers = (
        probe.PeerFacts(0, 1, says=True, copies=True, reads=True, writes=True),
        probe.PeerFacts(1, 0, says=True, copies=True, why="wrong bytes arrived by reads, writes"),
    )
    rates = (probe.LinkRate("GPU 0 -> host", 55.25),)
    facts = probe.DoctorFacts("13.0", "13.0", gpus, (0, None), peers, rates)
    monkeypatch.setattr(probe, "doctor_facts", lambda: facts)
    assert guarded(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "GPU 0: H200, capability 9.0, 132 SMs" in out
    assert "wrong bytes arrived by reads, writes" in out
    assert "GPU 0 -> host  55.2 GB/s" in out


@pytest.mark.parametrize(
    ("word", "value"),
    [("8", 8), ("-3", -3), ("1e3", 1000.0), ("010", "010"), ("on", "on"), ("true", True)],
)
def test_values_are_read_as_the_strict_yaml_of_specs(word: str, value: object) -> None:
    assert value_of(word) == value
    assert type(value_of(word)) is type(value)


def test_a_value_may_hold_an_equals_sign_and_a_list_keeps_its_commas() -> None:
    assert assignment("route==x") == ("route", "=x")
    assert values_of("sums=[1/4, 3/4],route=host") == {"sums": ["1/4", "3/4"], "route": "host"}


@pytest.mark.parametrize("arch", ["banana", "sm_9", "90", "sm_90x", "sm_11", "compute_90", ""])
def test_what_is_no_architecture_is_told_those_that_are(
    arch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", "moe_peer", "--preset", "small", "--no-cubins", "--set", "route=host"]
    assert guarded([*words, "--arch", arch, "-o", str(tmp_path / "x.graphc")]) == 2
    said = capsys.readouterr().err
    assert f"error[usage]: --arch: '{arch}' is no architecture" in said
    assert "sm_90" in said
    assert not (tmp_path / "x.graphc").exists()


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_100a"])
def test_an_architecture_needs_no_gpu_of_its_kind(arch: str, tmp_path: Path) -> None:
    words = ["compile", "moe_peer", "--preset", "small", "--no-cubins", "--set", "route=host"]
    assert guarded([*words, "--arch", arch, "-o", str(tmp_path / "x.graphc")]) == 0


@pytest.mark.parametrize("command", ["check", "compile"])
def test_a_plan_in_place_of_a_spec_is_told_what_takes_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "moe.graphc"
    words = ["compile", "moe_peer", "--preset", "small", "--no-cubins", "--set", "route=host"]
    assert guarded([*words, "-o", str(plan)]) == 0
    before = plan.read_bytes()
    assert guarded([command, str(plan)]) == 2
    said = capsys.readouterr().err
    assert "is a plan" in said
    assert "'graphc run' and 'graphc show' take it" in said
    assert plan.read_bytes() == before


def test_help_names_a_spec_that_is_found_from_any_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["--help"], ["check", "--help"], ["compile", "--help"], ["run", "--help"]):
        assert guarded(words) == 0
        said = capsys.readouterr().out
        assert "moe_peer" in said
        assert "specs/" not in said


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_value_is_called_as_it_was_given(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded([command, "moe_peer", "--preset", "small", "--set", "pieces=0"]) == 1
    assert "--set pieces=0: error[bad-value]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [(["--version"], {"graphc"}), (["compile", SPEC, "--dump-after", "list"], {"passes"})],
)
def test_whatever_is_asked_for_as_json_is_json(
    words: list[str], found: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded([*words, "--json"]) == 0
    assert {*json.loads(capsys.readouterr().out)} == found


def test_json_in_front_of_a_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["--json", "check", SPEC]) == 2
    assert "--json goes behind the command" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["kernels", "routes"])
def test_a_missing_folder_is_one_kind_of_mistake(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import graphc

    assert guarded(["check", SPEC, f"--{option}", "nofolder"]) == UsageError.exit_code
    with pytest.raises(UsageError) as caught:
        graphc.check(SPEC, **{option: "nofolder"})  # type: ignore[arg-type]
    assert capsys.readouterr().err == f"error[usage]: {caught.value}\n"


def test_a_lack_of_memory_is_the_machines(
    spec: Path, api: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    api.check = raising(MemoryError("Unable to allocate 4 TiB"))  # type: ignore[attr-defined]
    assert guarded(["check", str(spec)]) == 3
    assert "OUT_OF_MEMORY: Unable to allocate 4 TiB" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("words", "where", "code", "message"),
    [
        ("--version --json", ">/dev/full", 1, "cannot write to stdout: No space left"),
        ("--version --json", ">&-", 0, ""),
        ("check nofile --json", ">/dev/full", 1, "cannot read 'nofile'"),
        ("check nofile --json", ">&-", 1, "cannot read 'nofile'"),
        ("check nofile", "2>&-", 1, ""),
        ("check nofile", "2>/dev/full", 1, ""),
    ],
)
def test_an_output_that_takes_nothing_is_no_fault_of_ours(
    words: str, where: str, code: int, message: str
) -> None:
    command = f"{sys.executable} -m graphc {words} {where}"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == bool(message)
